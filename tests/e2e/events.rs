//! The event plane, read by libzmq and msgpack as any subscriber would.

use crate::lifecycle::agent;
use crate::support::{chat, ready};
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::soon;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

#[tokio::test]
async fn a_stock_subscriber_reads_the_events_and_their_replay() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let mut agent = agent(&dir, &["--workers=1"]);
    let serving = agent.event("serving").await;
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let client = Client::new(ready(&mut proxy).await);

    let endpoints = ["events", "replay"].map(|plane| serving[plane].as_str().unwrap().to_owned());
    let python = std::env::var("STATOR_TEST_PYTHON").expect("`tests/run` sets STATOR_TEST_PYTHON");
    let mut subscriber = Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/python/subscriber.py"))
        .args(endpoints)
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(subscriber.stdout.take().unwrap()).lines();
    assert_eq!(soon("the subscriber", lines.next_line()).await.unwrap().unwrap(), "subscribed");

    // A subscriber that joined is sent what follows; one that joined too late asks for replay.
    let prompt = "The house stood by the road. ".repeat(20);
    client.post("/v1/chat/completions", &chat(&prompt, 40)).await;
    let status = soon("the subscriber's verdict", subscriber.wait()).await.unwrap();
    let mut said = String::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        said.push_str(&line);
    }
    assert!(status.success(), "{said}");
}
