//! The event plane, read by libzmq and msgpack as any subscriber would.

use crate::lifecycle::{agent, gauge};
use crate::support::{chat, ready};
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::soon;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
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

/// A greeting of ZMTP 3.1, and the command that says what socket the peer has.
fn greeting(ready: &[u8]) -> Vec<u8> {
    let mut greeting = vec![0; 64];
    greeting[0] = 0xff;
    greeting[9..12].copy_from_slice(&[0x7f, 3, 1]);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting.extend(ready);
    greeting
}

/// Connects as a peer that says who it is, then `words`, and never reads.
async fn mute(endpoint: &str, words: &[u8]) -> TcpStream {
    let address = endpoint.strip_prefix("tcp://").expect("TCP");
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    // The agent may have closed it already.
    let _ = stream.write_all(words).await;
    stream
}

/// More connections than the agent takes, and replays that nobody reads: a proxy that comes later
/// learns all the same what the worker holds, and how busy it is.
#[tokio::test]
async fn connections_that_are_of_no_use_lock_no_proxy_out() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let mut agent = agent(&dir, &["--workers=1", "--engine=sim"]);
    let serving = agent.event("serving").await;
    let [events, replay] = ["events", "replay"].map(|plane| serving[plane].as_str().unwrap());
    let subscriber = greeting(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB");
    let asker = {
        let mut words = greeting(b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER");
        // An empty frame, and the number from which all is to be told.
        words.extend(b"\x01\x00\x00\x08\0\0\0\0\0\0\0\0");
        words
    };
    let mut idle = Vec::new();
    for number in 0..1100 {
        let words = if number % 2 == 0 { &subscriber[..] } else { &[] };
        idle.push(mute(events, words).await);
        idle.push(mute(replay, words).await);
    }
    for _ in 0..4 {
        idle.push(mute(replay, &asker).await);
    }
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let client = Client::new(ready(&mut proxy).await);
    let prompt = "The house stood by the road. ".repeat(20);
    client.post("/v1/chat/completions", &chat(&prompt, 40)).await;
    soon("the proxy hears of blocks", async {
        while gauge(&client, "stator_proxy_kv_index_blocks").await.is_none_or(|n| n < 4.0) {}
    })
    .await;
    let batches = gauge(&client, "stator_fleet_batches_total").await;
    assert!(batches.is_some_and(|batches| batches >= 1.0), "{batches:?}");
    drop(idle);
}
