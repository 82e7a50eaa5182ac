//! The edge against an API server that misbehaves. What is right is tested on a real one.

use super::entry::KubernetesEntry;
use super::objects::Pod;
use super::watcher::KubernetesWatcher;
use super::{METADATA, SLICES};
use crate::record::sample;
use crate::roster::{AgentChange, Roster, Sighting};
use crate::source::{KubernetesSource, Readiness};
use crate::{Registry, Watch};
use serde_json::{Value, json};
use stator_kube::PODS;
use stator_kube_testkit::{Mood, Server, soon};
use std::sync::Arc;
use std::time::Duration;

fn metadata() -> String {
    METADATA.path(Some("n"))
}

fn pods() -> String {
    PODS.path(Some("n"))
}

fn pod(name: &str, ready: bool) -> Value {
    let conditions = json!([{"type": "Ready", "status": if ready { "True" } else { "False" }}]);
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"app": "x"}},
        "status": {"conditions": conditions},
    })
}

/// An agent of a name in the pod of the same name.
async fn publish(server: &Server, name: &str) -> KubernetesEntry {
    let pod = Pod { name: name.into(), uid: format!("uid-{name}") };
    let mut entry = KubernetesEntry::of(server.cluster().api, "n".into(), pod);
    entry.publish(&sample(name, 0)).await.expect("the server takes it");
    entry
}

/// A namespace of the server, followed.
struct Followed {
    server: Arc<Server>,
    watcher: KubernetesWatcher,
    roster: Roster,
    there: Vec<String>,
}

impl Followed {
    fn new(server: Server, source: &KubernetesSource) -> Self {
        let watcher = KubernetesWatcher::of(&server.cluster(), "n".into(), source);
        Self { server: Arc::new(server), watcher, roster: Roster::default(), there: Vec::new() }
    }

    /// Agents and pods `a` and `b`, all ready and all known.
    async fn with_two() -> Self {
        let server = Server::start().await;
        for name in ["a", "b"] {
            server.put(&pods(), pod(name, true));
            publish(&server, name).await;
        }
        let source = KubernetesSource { selector: Some("app=x".into()), ..Default::default() };
        let mut followed = Self::new(server, &source);
        followed.until(|seen, there| there == ["a", "b"] && seen.complete).await;
        followed
    }

    async fn until(&mut self, done: impl Fn(&Sighting, &[String]) -> bool) {
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
                return;
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
async fn an_agent_is_there_while_its_pod_is_ready_and_stays() {
    let mut followed = Followed::with_two().await;
    followed.server.put(&pods(), pod("a", false));
    followed.until_there(&["b"]).await;
    followed.server.put(&pods(), pod("a", true));
    followed.until_there(&["a", "b"]).await;
    let mut ending = pod("a", true);
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    followed.server.put(&pods(), ending);
    followed.until_there(&["b"]).await;
    followed.server.delete(&pods(), "b");
    followed.until_there(&[]).await;
}

#[tokio::test]
async fn a_deleted_pod_leaves_by_the_event_that_tells_of_it_and_nobody_asks() {
    let mut followed = Followed::with_two().await;
    // Told of by the watch, which therefore stands.
    followed.server.put(&pods(), pod("a", false));
    followed.until_there(&["b"]).await;
    let asked = followed.server.requests(&pods());
    followed.server.delete(&pods(), "b");
    let seen = soon(followed.watcher.next()).await;
    assert!(seen.complete && seen.records.is_empty(), "{seen:?}");
    assert_eq!(followed.server.requests(&pods()), asked);
}

#[tokio::test]
async fn a_resource_of_an_earlier_pod_of_the_same_name_is_not_the_pods() {
    let mut followed = Followed::with_two().await;
    let mut successor = pod("a", true);
    successor["metadata"]["uid"] = json!("another");
    followed.server.put(&pods(), successor);
    followed.until_there(&["b"]).await;
}

#[tokio::test]
async fn an_agent_leaves_by_its_own_word() {
    let mut followed = Followed::with_two().await;
    let mut entry = publish(&followed.server, "a").await;
    let previous = entry.previous("a").await.expect("the server answers");
    assert_eq!(previous.expect("it was published").agent_id, "a");
    assert_eq!(entry.previous("other").await.expect("the server answers"), None);
    entry.withdraw().await.expect("the server takes it");
    followed.until_there(&["b"]).await;
    assert_eq!(entry.previous("a").await.expect("the server answers"), None);
}

#[tokio::test]
async fn a_record_that_was_published_without_an_answer_is_taken_away_all_the_same() {
    let server = Server::start().await;
    let pod = Pod { name: "a".into(), uid: "uid-a".into() };
    let mut entry = KubernetesEntry::of(server.cluster().api, "n".into(), pod);
    server.mood(&metadata(), Mood::Stalled);
    assert!(entry.publish(&sample("a", 0)).await.is_err());
    server.mood(&metadata(), Mood::Good);
    // What it was asked for while it did not answer.
    publish(&server, "a").await;
    entry.withdraw().await.expect("the server takes it");
    assert_eq!(entry.previous("a").await.expect("the server answers"), None);
}

#[tokio::test]
async fn slices_tell_readiness_where_they_are_asked() {
    let server = Server::start().await;
    for name in ["a", "b"] {
        publish(&server, name).await;
    }
    let slice = |a: bool, b: bool| {
        let endpoint = |name: &str, ready: bool| {
            let target = json!({"kind": "Pod", "uid": format!("uid-{name}")});
            json!({"targetRef": target, "conditions": {"ready": ready}})
        };
        json!({"metadata": {"name": "s"}, "endpoints": [endpoint("a", a), endpoint("b", b)]})
    };
    let slices = SLICES.path(Some("n"));
    server.put(&slices, slice(true, false));
    let source = KubernetesSource { readiness: Readiness::EndpointSlices, ..Default::default() };
    let mut followed = Followed::new(server, &source);
    followed.until_there(&["a"]).await;
    followed.server.put(&slices, slice(false, true));
    followed.until_there(&["b"]).await;
}

/// Whatever happens to the server, who was there stays, and is known to be old news; what
/// happened meanwhile is seen when it is back.
async fn check_outage(mood: Mood) {
    let mut followed = Followed::with_two().await;
    let both = [metadata(), pods()];
    both.iter().for_each(|path| followed.server.mood(path, mood));
    followed.until(|seen, _| seen.stale).await;
    followed.server.delete(&pods(), "a");
    // It is asked again while it is out, and nobody leaves.
    let server = followed.server.clone();
    let (path, asked) = (pods(), server.requests(&pods()));
    let stays = followed.until(|_, there| {
        assert_eq!(there, ["a", "b"]);
        false
    });
    tokio::select! {
        () = server.asked_more_than(&path, asked + 2) => {}
        () = stays => {}
    }
    both.iter().for_each(|path| followed.server.mood(path, Mood::Good));
    followed.until_there(&["b"]).await;
}

#[tokio::test]
async fn a_server_that_is_unavailable_empties_nothing() {
    check_outage(Mood::Failing).await;
}

#[tokio::test]
async fn connections_that_break_empty_nothing() {
    check_outage(Mood::Reset).await;
}

#[tokio::test]
async fn a_server_that_goes_silent_empties_nothing() {
    check_outage(Mood::Stalled).await;
}

#[tokio::test]
async fn versions_that_were_forgotten_are_listed_anew() {
    let mut followed = Followed::with_two().await;
    // The watch breaks, and what it missed cannot be told any more.
    followed.server.mood(&pods(), Mood::Reset);
    followed.until(|seen, _| seen.stale).await;
    followed.server.delete(&pods(), "a");
    followed.server.forget(&pods());
    followed.server.mood(&pods(), Mood::Good);
    followed.until_there(&["b"]).await;
    // An open watch is told in its stream.
    followed.server.forget(&pods());
    followed.server.put(&pods(), pod("a", true));
    followed.until_there(&["a", "b"]).await;
}

#[tokio::test]
async fn a_record_too_large_for_the_server_is_not_sent() {
    let server = Server::start().await;
    let mut entry = publish(&server, "a").await;
    let mut record = sample("a", 0);
    record.endpoint = "x".repeat(1 << 20);
    let error = entry.publish(&record).await.expect_err("it is too large");
    assert!(error.to_string().ends_with("limit 1048576"), "{error}");
}
