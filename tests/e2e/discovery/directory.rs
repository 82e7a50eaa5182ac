//! Directories that misbehave under a fleet of the real binary.

use crate::agents::{self, completed};
use crate::builtin::Life;
use crate::lifecycle::{agent, gauge, gauge_becomes};
use crate::suite::tokens;
use crate::support::{chat, ready};
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};
use stator_tests::stock::MODEL;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;

/// An agent with a short lease; its name too.
async fn simulated(dir: &Path) -> (Process, String) {
    let dir = format!("--discovery-dir={}", dir.display());
    let flags = ["--engine=sim", "--workers=1", "--lease-ms=1000", "--drain-timeout-s=0"];
    let mut agent = agent(&dir, &flags);
    let name = agent.event("serving").await["agent"].as_str().expect("a name").to_owned();
    (agent, name)
}

async fn proxy(dir: &Path) -> (Process, Client) {
    let dir = format!("--discovery-dir={}", dir.display());
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let client = Client::new(ready(&mut proxy).await);
    (proxy, client)
}

/// Requests one after the other, until they are enough.
struct Steady {
    enough: Arc<AtomicBool>,
    task: JoinHandle<Vec<u16>>,
}

impl Steady {
    fn start(client: &Client) -> Self {
        let (client, enough) = (Client::new(client.address()), Arc::new(AtomicBool::new(false)));
        let stop = enough.clone();
        let task = tokio::spawn(async move {
            let mut statuses = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let reply = client.post("/v1/chat/completions", &chat("Hello", 2)).await;
                statuses.push(reply.status.as_u16());
            }
            statuses
        });
        Self { enough, task }
    }

    async fn all_answered(self) {
        self.enough.store(true, Ordering::Relaxed);
        let statuses = stator_tests::soon("the last answer", self.task).await.unwrap();
        assert!(!statuses.is_empty());
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    }
}

/// Makes that an agent cannot write its record, as root neither: a folder is in its way.
fn block(dir: &Path, agent: &str) -> PathBuf {
    let way = dir.join(format!(".{agent}.tmp"));
    until_made(|| std::fs::create_dir(&way));
    way
}

/// The agent may be about to move its file.
fn until_made(mut make: impl FnMut() -> std::io::Result<()>) {
    while let Err(error) = make() {
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_loses_nobody() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("fleet");
    let (first, one) = simulated(&dir).await;
    let (second, other) = simulated(&dir).await;
    let (_proxy, client) = proxy(&dir).await;
    gauge_becomes(&client, "stator_proxy_workers", 2.0).await;
    let load = Steady::start(&client);

    let in_the_way = [block(&dir, &one), block(&dir, &other)];
    gauge_becomes(&client, "stator_fleet_agents_suspect", 2.0).await;
    gauge_becomes(&client, "stator_fleet_discovery_stale", 1.0).await;
    assert_eq!(gauge(&client, "stator_proxy_workers").await, Some(2.0));
    // Who comes now finds them all the same: they answer.
    let (_late, late) = proxy(&dir).await;
    gauge_becomes(&late, "stator_proxy_workers", 2.0).await;
    assert_eq!(late.post("/v1/chat/completions", &chat("Hello", 2)).await.status, 200);

    for way in in_the_way {
        std::fs::remove_dir(way).unwrap();
    }
    gauge_becomes(&client, "stator_fleet_agents_suspect", 0.0).await;
    gauge_becomes(&client, "stator_fleet_discovery_stale", 0.0).await;
    load.all_answered().await;

    // One that is dead is not kept: it does not answer.
    signal(first.id(), "KILL");
    gauge_becomes(&client, "stator_fleet_agents", 1.0).await;
    assert_eq!(gauge(&client, "stator_fleet_discovery_stale").await, Some(0.0));
    drop(second);
}

#[tokio::test]
async fn agents_hand_prompts_over_although_a_lease_has_ended() {
    let home = tempfile::tempdir().unwrap();
    let begin = async |name, flag| {
        let flags = ["--engine=sim", "--sim-preset=none", "--lease-ms=1000", flag];
        Life::begin(home.path(), name, &flags).await
    };
    let _prefill = begin("prefill", "--role=prefill").await;
    let (_proxy, client) = agents::proxy(home.path(), &["--router-split=always"]).await;
    let _way = block(home.path(), "prefill");
    gauge_becomes(&client, "stator_fleet_agents_suspect", 1.0).await;
    // It never saw that lease hold.
    let decode = begin("decode", "--role=decode").await;
    gauge_becomes(&client, "stator_proxy_workers", 2.0).await;
    stator_tests::soon("a request that two share", async {
        for seed in 0.. {
            completed(&client, MODEL, &tokens(seed, 200), 8).await;
            if decode.metric("prefills_total{by=\"prefill_worker\"}").await > 0.0 {
                break;
            }
        }
    })
    .await;
    assert_eq!(gauge(&client, "stator_fleet_agents_suspect").await, Some(1.0));
    assert_eq!(decode.metric("prefills_total{by=\"itself_unregistered\"}").await, 0.0);
}

#[tokio::test]
async fn a_directory_that_was_removed_is_made_again_and_loses_nobody() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("fleet");
    let (mut first, _) = simulated(&dir).await;
    let (mut second, _) = simulated(&dir).await;
    let (_proxy, client) = proxy(&dir).await;
    gauge_becomes(&client, "stator_proxy_workers", 2.0).await;
    let load = Steady::start(&client);
    // An agent may write a record while the directory is emptied.
    while std::fs::remove_dir_all(&dir).is_err() {}
    tokio::select! {
        _ = first.event("made the discovery directory again") => {}
        _ = second.event("made the discovery directory again") => {}
    }
    stator_tests::soon("both records", async {
        let count = || {
            std::fs::read_dir(&dir).map_or(0, |files| {
                files
                    .flatten()
                    .filter(|f| f.path().extension().is_some_and(|e| e == "json"))
                    .count()
            })
        };
        while count() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    gauge_becomes(&client, "stator_fleet_agents_suspect", 0.0).await;
    assert_eq!(gauge(&client, "stator_proxy_workers").await, Some(2.0));
    load.all_answered().await;
}

#[tokio::test]
async fn an_agent_whose_clock_is_an_hour_late_is_used_like_any_other() {
    let home = tempfile::tempdir().unwrap();
    let (written, shown) = (home.path().join("written"), home.path().join("shown"));
    std::fs::create_dir(&shown).unwrap();
    let (_agent, name) = simulated(&written).await;
    let path = written.join(format!("{name}.json"));
    // An agent serves a moment before it has registered.
    let read = async {
        loop {
            match std::fs::read(&path) {
                Ok(record) => return record,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let record = stator_tests::soon("the agent's record", read).await;
    let mut record: Value = serde_json::from_slice(&record).unwrap();
    let end = record["lease_expires_unix_ms"].as_u64().unwrap() - 3_600_000;
    record["lease_expires_unix_ms"] = json!(end);
    record["lease_ms"] = json!(60_000);
    std::fs::write(shown.join(format!("{name}.json")), record.to_string()).unwrap();
    let (_proxy, client) = proxy(&shown).await;
    assert_eq!(client.post("/v1/chat/completions", &chat("Hello", 2)).await.status, 200);
    assert_eq!(gauge(&client, "stator_fleet_agents_suspect").await, Some(0.0));
}
