//! Agents and followers against an etcd that misbehaves.

mod server;

use super::client::EtcdClient;
use super::entry::EtcdEntry;
use super::watcher::EtcdWatcher;
use crate::record::sample;
use crate::roster::{AgentChange, Roster, Sighting};
use crate::source::EtcdSource;
use crate::{DiscoveryError, Registry, Watch};
use server::Server;
use stator_protos::discovery::AgentRecord;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(5);

/// Waits for what must happen; the limit is only met when it never does.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.expect("it happens in time")
}

fn source(servers: &[&Server]) -> EtcdSource {
    EtcdSource {
        endpoints: servers.iter().map(|server| server.address.to_string()).collect(),
        prefix: "/x".into(),
        user: None,
        password_file: None,
        tls: None,
    }
}

async fn publish(server: &Server, agent: &str) -> EtcdEntry {
    let mut entry = EtcdEntry::open(&source(&[server]), LEASE).await.expect("a client");
    entry.publish(&sample(agent, 0)).await.expect("the server takes it");
    entry
}

/// A prefix, followed.
struct Followed {
    watcher: EtcdWatcher,
    roster: Roster,
    there: Vec<String>,
}

impl Followed {
    async fn new(source: &EtcdSource) -> Self {
        let watcher = EtcdWatcher::open(source).await.expect("a client");
        Self { watcher, roster: Roster::default(), there: Vec::new() }
    }

    async fn until(&mut self, done: impl Fn(&Sighting, &[String]) -> bool) -> Sighting {
        loop {
            let seen = soon(self.watcher.next()).await;
            for change in self.roster.update(&seen, Duration::ZERO) {
                match change {
                    AgentChange::Up(record) => self.there.push(record.agent_id.clone()),
                    AgentChange::Lapsed(record) => self.leave(&record.agent_id),
                    AgentChange::Down(agent) => self.leave(&agent),
                }
            }
            self.there.sort_unstable();
            self.there.dedup();
            if done(&seen, &self.there) {
                return seen;
            }
        }
    }

    fn leave(&mut self, agent: &str) {
        self.there.retain(|known| known != agent);
    }

    async fn until_there(&mut self, expected: &[&str]) {
        self.until(|seen, there| there == expected && !seen.stale).await;
    }
}

#[tokio::test]
async fn agents_come_change_and_leave() {
    let server = Server::start().await;
    let mut a = publish(&server, "a").await;
    let _b = publish(&server, "b").await;
    let _c = publish(&server, "c").await;
    // Three are more than the server gives at once.
    let mut followed = Followed::new(&source(&[&server])).await;
    followed.until_there(&["a", "b", "c"]).await;
    let draining = AgentRecord { accepting: false, ..sample("a", 0) };
    a.publish(&draining).await.expect("the server takes it");
    followed.until(|seen, _| !seen.records["a"].accepting).await;
    let previous = a.previous("a").await.expect("the server answers");
    assert!(!previous.expect("it was published").accepting);
    assert_eq!(a.previous("none").await.expect("the server answers"), None);
    a.withdraw().await.expect("the server takes it");
    followed.until_there(&["b", "c"]).await;
}

#[tokio::test]
async fn a_lease_that_ends_takes_its_agent_away_and_renewing_brings_it_back() {
    let server = Server::start().await;
    let mut entry = publish(&server, "a").await;
    let mut followed = Followed::new(&source(&[&server])).await;
    followed.until_there(&["a"]).await;
    entry.renew().await.expect("the lease holds");
    server.expire();
    followed.until_there(&[]).await;
    entry.renew().await.expect("a new lease is granted");
    followed.until_there(&["a"]).await;
    // So does a change while the lease is gone.
    server.expire();
    followed.until_there(&[]).await;
    entry.publish(&sample("a", 0)).await.expect("a new lease is granted");
    followed.until_there(&["a"]).await;
}

#[tokio::test]
async fn a_lost_lease_leaves_by_the_event_that_tells_of_it_and_nobody_asks() {
    let server = Server::start().await;
    let _entry = publish(&server, "a").await;
    let mut followed = Followed::new(&source(&[&server])).await;
    followed.until_there(&["a"]).await;
    let asked = server.requests();
    server.expire();
    let seen = soon(followed.watcher.next()).await;
    assert!(seen.complete && seen.records.is_empty(), "{seen:?}");
    assert_eq!(server.requests(), asked);
}

#[tokio::test]
async fn a_server_that_is_down_empties_nothing() {
    let server = Server::start().await;
    let mut entry = publish(&server, "a").await;
    let _b = publish(&server, "b").await;
    let mut followed = Followed::new(&source(&[&server])).await;
    followed.until_there(&["a", "b"]).await;
    server.down(true);
    followed.until(|seen, _| seen.stale).await;
    let error = entry.renew().await.expect_err("the server is down");
    assert!(matches!(error, DiscoveryError::Unreachable(_)), "{error}");
    server.put("/x/agents/b", None);
    // It is asked again while it is out, and nobody leaves.
    let stays = followed.until(|_, there| {
        assert_eq!(there, ["a", "b"]);
        false
    });
    tokio::select! {
        () = server.asked(3) => {}
        _ = stays => {}
    }
    server.down(false);
    followed.until_there(&["a"]).await;
    entry.renew().await.expect("the lease holds");
}

#[tokio::test]
async fn another_member_is_asked_where_one_is_down() {
    let (gone, server) = (Server::start().await, Server::start().await);
    let both = source(&[&gone, &server]);
    gone.down(true);
    let mut entry = EtcdEntry::open(&both, LEASE).await.expect("a client");
    entry.publish(&sample("a", 0)).await.expect("the other takes it");
    assert_eq!((gone.keys(), server.keys()), (0, 1));
    Followed::new(&both).await.until_there(&["a"]).await;
    // A member whose machine is gone is passed over as well.
    drop(gone);
    Followed::new(&both).await.until_there(&["a"]).await;
}

#[tokio::test]
async fn what_was_compacted_is_listed_anew() {
    let server = Server::start().await;
    let _a = publish(&server, "a").await;
    let mut client = EtcdClient::open(&source(&[&server])).await.expect("a client");
    let (entries, revision) = client.list("/x/agents/").await.expect("the server answers");
    assert_eq!(entries.keys().collect::<Vec<_>>(), ["a"]);
    let mut followed = Followed::new(&source(&[&server])).await;
    followed.until_there(&["a"]).await;
    server.down(true);
    followed.until(|seen, _| seen.stale).await;
    server.put("/x/agents/a", None);
    server.compact();
    server.down(false);
    followed.until_there(&[]).await;
    let mut late = client.watch("/x/agents/", revision + 1).await.expect("the server answers");
    let refusal = loop {
        let answer = soon(late.message()).await.expect("a watch").expect("an answer");
        if answer.canceled {
            break answer;
        }
    };
    assert!(refusal.compact_revision > revision);
    // An open watch that is told of it lists anew too.
    server.put("/x/agents/b", Some(&serde_json::to_string(&sample("b", 0)).unwrap()));
    followed.until_there(&["b"]).await;
}

#[tokio::test]
async fn what_is_no_record_is_malformed_and_hides_no_others() {
    let server = Server::start().await;
    let _a = publish(&server, "a").await;
    server.put("/x/agents/b", Some("{"));
    server.put("/y", Some("{"));
    let mut followed = Followed::new(&source(&[&server])).await;
    let seen = followed.until(|_, there| there == ["a"]).await;
    assert_eq!(seen.malformed, ["b".to_owned()].into());
    // One that was there and becomes unreadable stays as it was.
    server.put("/x/agents/a", Some("{"));
    let seen = followed.until(|seen, _| seen.malformed.contains("a")).await;
    assert_eq!(seen.newly_malformed.len(), 1);
    assert_eq!(followed.there, ["a"]);
}

#[tokio::test]
async fn a_token_that_has_run_out_is_replaced() {
    let server = Server::start().await;
    let mut client = EtcdClient::open(&source(&[&server])).await.expect("a client");
    client.authenticate_as("me", "secret");
    server.guard("secret", "first");
    client.list("/x/").await.expect("the first token is taken");
    server.guard("secret", "second");
    client.list("/x/").await.expect("the second token is taken");
    server.guard("changed", "third");
    let error = client.list("/x/").await.expect_err("the password is wrong");
    assert!(error.to_string().contains("authentication failed"), "{error}");
}

#[tokio::test]
async fn a_user_needs_a_password_and_certificates_must_be_there() {
    let server = Server::start().await;
    let nobody = EtcdSource { user: Some("me".into()), ..source(&[&server]) };
    let error = EtcdClient::open(&nobody).await.err().expect("there is no password").to_string();
    assert_eq!(error, "STATOR_ETCD_PASSWORD: not set; user \"me\" of etcd needs it");
    let tls = Some(crate::source::EtcdTls { ca: "/missing".into(), identity: None });
    let error = EtcdClient::open(&EtcdSource { tls, ..source(&[&server]) }).await.err();
    let error = error.expect("there is no file").to_string();
    assert!(error.starts_with("etcd: cannot read /missing: "), "{error}");
}
