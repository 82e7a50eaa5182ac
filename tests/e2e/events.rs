//! The event plane, read by libzmq and msgpack as any subscriber would.

use crate::contract::Certificates;
use crate::lifecycle::{agent, gauge, gauge_becomes};
use crate::support::{chat, ready};
use stator_events::subscribe::{self, News, Subscription};
use stator_fleet::{AgentClient, ClientSettings, events};
use stator_runtime::dial::DialArgs;
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::soon;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::mpsc;

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

/// More connections than the agent takes, and replays that nobody reads: a stock subscriber that comes
/// later hears all the same of the worker's blocks, live and by replay, and so does a proxy, which has
/// no part in this.
#[tokio::test]
async fn connections_that_are_of_no_use_lock_nobody_out() {
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
    let (sender, mut news) = mpsc::channel(1024);
    let prefixes = vec!["kv-events".into(), "load".into()];
    let silence = Some(subscribe::AGENT_SILENCE);
    let subscription = Subscription { endpoint: events.into(), prefixes, silence };
    tokio::spawn(subscribe::follow(subscription, sender));
    let mut first = async || soon("news", news.recv()).await.expect("it follows");
    assert!(matches!(first().await, News::Subscribed));
    // Its connection is of use once it was sent something.
    assert!(matches!(first().await, News::Message(..)));

    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let client = Client::new(ready(&mut proxy).await);
    let prompt = "The house stood by the road. ".repeat(20);
    client.post("/v1/chat/completions", &chat(&prompt, 40)).await;
    soon("the proxy hears of blocks", async {
        while gauge(&client, "stator_proxy_kv_index_blocks").await.is_none_or(|n| n < 4.0) {}
    })
    .await;
    loop {
        match first().await {
            News::Message(topic, ..) if topic.starts_with(b"kv-events") => break,
            _ => {}
        }
    }
    assert!(!subscribe::replay(replay, None, 0).await.unwrap().is_empty());
    drop(idle);
}

/// Sockets of a process that listen for TCP.
fn listeners(process: u32) -> usize {
    let inode = |link: PathBuf| {
        let target = std::fs::read_link(link).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
        Some(inode)
    };
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let own: Vec<_> = descriptors.filter_map(|entry| inode(entry.ok()?.path())).collect();
    let tables = ["tcp", "tcp6"].map(|table| {
        std::fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default()
    });
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let fields = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Local address, remote address, state, ..., inode: 0A listens.
    fields.filter(|fields| fields[3] == "0A" && own.iter().any(|inode| inode == fields[9])).count()
}

/// A client of an agent with these flags.
fn dialled(endpoint: &str, flags: DialArgs) -> Option<AgentClient> {
    let settings = ClientSettings { dial: flags.dial().unwrap(), ..ClientSettings::default() };
    AgentClient::connect(endpoint, &settings).ok()
}

/// A fleet whose agents have certificates, a token of operators and no ZMQ: prompts go to the agents
/// that hold them, also through a proxy that has sent none, and strangers read nothing.
#[tokio::test]
async fn events_ride_on_the_request_plane_under_its_certificates() {
    const PROMPTS: usize = 8;
    let (certificates, home) = (Certificates::new(), tempfile::tempdir().unwrap());
    let dir = format!("--discovery-dir={}", home.path().display());
    let [ca, own] = certificates.flags("agent");
    let token = certificates.folder.path().join("token");
    std::fs::write(&token, "a-secret-of-the-operators\n").unwrap();
    let token = format!("--operations-token-file={}", token.display());
    let mut agents = Vec::new();
    for name in ["--agent-id=a", "--agent-id=b"] {
        let args = ["agent", "--listen=127.0.0.1:0", "--events-listen=off", "--metrics-port=0"];
        let own = [&*dir, &ca, &own, &token, "--request-tls-client-auth", name];
        let mut agent = Process::start(&[&args[..], &own, &["--workers=1"]].concat());
        let serving = agent.event("serving").await;
        assert_eq!((&serving["events"], &serving["replay"]), (&"".into(), &"".into()));
        assert_eq!(listeners(agent.id()), 2, "requests and metrics");
        agents.push((agent, serving["endpoint"].as_str().unwrap().to_owned()));
    }
    let [_, own] = certificates.flags("proxy");
    let args = ["proxy", "--http-port=0", "--metrics-port=0", "--request-tls-server-name=agent"];
    let args = [&args[..], &["--router-mode=kv", &dir, &ca, &own]].concat();
    let mut proxies = [Process::start(&args), Process::start(&args)];
    let mut clients = Vec::new();
    for proxy in &mut proxies {
        let client = Client::new(ready(proxy).await);
        gauge_becomes(&client, "stator_proxy_workers", 2.0).await;
        clients.push(client);
    }
    let prompts: Vec<_> =
        (0..PROMPTS).map(|n| format!("House {n} by the road. ").repeat(20)).collect();
    for prompt in &prompts {
        clients[0].post("/v1/chat/completions", &chat(prompt, 2)).await;
    }
    soon("the other proxy hears of all prompts", async {
        let least = 4.0 * PROMPTS as f64;
        while gauge(&clients[1], "stator_proxy_kv_index_blocks").await.is_none_or(|n| n < least) {}
    })
    .await;
    for prompt in &prompts {
        let reply = clients[1].post("/v1/chat/completions", &chat(prompt, 2)).await.json();
        let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert!(cached.is_some_and(|tokens| tokens >= 64), "{reply}");
    }

    let endpoint = &agents[0].1;
    let trusting = |name: Option<&str>, from: &Certificates| DialArgs {
        request_tls_ca_file: Some(certificates.folder.path().join("ca.crt")),
        request_tls_cert_dir: name.map(|name| from.of(name)),
        request_tls_server_name: Some("agent".into()),
    };
    let read = async |client: &AgentClient| events::replay(client, "", 0).await;
    let plain = dialled(&endpoint.replace("https", "http"), DialArgs::default()).unwrap();
    let nameless = dialled(endpoint, trusting(None, &certificates)).unwrap();
    let foreign = dialled(endpoint, trusting(Some("proxy"), &Certificates::new())).unwrap();
    for stranger in [&plain, &nameless, &foreign] {
        read(stranger).await.unwrap_err();
        let (sender, mut news) = mpsc::channel(1);
        tokio::select! {
            () = events::follow(stranger, vec![String::new()], Duration::from_secs(1), sender) => {}
            heard = news.recv() => panic!("a stranger hears {heard:?}"),
            // Each attempt ends with an error, and so does the third.
            () = refused(stranger) => {}
        }
    }
    let mut batches = 0;
    for (_, endpoint) in &agents {
        let known = dialled(endpoint, trusting(Some("proxy"), &certificates)).unwrap();
        let worker = known.describe().await.unwrap().workers[0];
        let topic = format!("kv-events/{}/{}", worker.worker, worker.generation);
        batches += events::replay(&known, &topic, 0).await.unwrap().len();
    }
    assert!(batches >= PROMPTS, "{batches}");
}

/// Asks three times for events that were published, in vain.
async fn refused(stranger: &AgentClient) {
    for _ in 0..3 {
        events::replay(stranger, "", 0).await.unwrap_err();
    }
}
