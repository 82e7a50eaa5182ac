//! Cost of a request for the proxy by its API, its protocol and its coding.
//!
//! `cargo run --release -p stator-tests --example surfaces [-- part of a row's name]`, after
//! `cargo build --release -p stator`.
//!
//! A simulated engine makes a token every 5 ms in a process of its own; two proxies, one of them with
//! TLS, are asked by 64 clients at a time. Rows take turns for some rounds. Each row prints the median
//! and the range of the CPU time of its proxy for a request, and the median of its ratio to another row
//! of the same round: whole answers to a whole chat, streams to a streamed one.

mod wire;

use serde_json::{Value, json};
use stator_tests::process::Process;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use wire::{Certificates, Wire};

/// Clients at a time.
const CLIENTS: usize = 64;
/// Length of a measurement.
const MEASURE: Duration = Duration::from_secs(3);
/// Measurements of each row.
const ROUNDS: usize = 5;
/// Length of a tick in `/proc`, the same on all Linux machines that matter.
const TICK: Duration = Duration::from_millis(10);
const MODEL: &str = "stator-tiny";
const CHAT: &str = "/v1/chat/completions";

/// Requests of one kind.
struct Row {
    name: &'static str,
    /// Name of the row that it is compared with; its own for none.
    base: &'static str,
    path: &'static str,
    body: Value,
    wire: Wire,
}

/// A proxy that is measured.
struct Proxy {
    process: Process,
    address: SocketAddr,
}

impl Proxy {
    async fn start(discovery: &str, flags: &[&str]) -> Self {
        let mut args = vec!["proxy", "--http-port=0", "--metrics-port=0", discovery];
        args.extend(flags);
        let mut process = Process::start(&args);
        let listening = process.event("listening").await;
        process.event("serving a model").await;
        let address = listening["address"].as_str().expect("an address");
        Self { address: address.parse().expect("an address and a port"), process }
    }

    fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()));
        let stat = stat.expect("the proxy runs");
        let fields = stat.rsplit_once(") ").expect("a name in brackets").1;
        let ticks = fields.split(' ').skip(11).take(2);
        TICK * ticks.map(|ticks| ticks.parse::<u32>().expect("a number")).sum()
    }
}

/// The rows: chat first, which others are compared with.
fn rows() -> Vec<Row> {
    let words = "Tell me of the sea. ".repeat(8);
    let messages = json!([{"role": "user", "content": words}]);
    let chat = json!({"model": MODEL, "messages": messages, "max_tokens": 16, "temperature": 0,
        "ignore_eos": true});
    let anthropic = json!({"model": MODEL, "messages": messages, "max_tokens": 16,
        "temperature": 0});
    let responses = json!({"model": MODEL, "input": words, "max_output_tokens": 16,
        "temperature": 0, "store": false});
    let with = |body: &Value, name: &str, value: Value| {
        let mut body = body.clone();
        body[name] = value;
        body
    };
    let streamed = |body: &Value| with(body, "stream", json!(true));
    let mut choices = with(&chat, "n", json!(32));
    choices["max_tokens"] = json!(64);
    let row =
        |name, base, path, body: &Value, wire| Row { name, base, path, body: body.clone(), wire };
    let plain = Wire::default();
    let [http2, tls] = [Wire { http2: true, ..plain }, Wire { tls: true, ..plain }];
    let once = Wire { once: true, ..plain };
    let api = |name, path, body: &Value| row(name, "chat", path, body, plain);
    let stream = |name, path, body| row(name, "chat, streamed", path, &streamed(body), plain);
    let chats = |name, wire| row(name, "chat", CHAT, &chat, wire);
    let many = |name, wire| row(name, "32 choices", CHAT, &choices, wire);
    vec![
        stream("chat, streamed", CHAT, &chat),
        stream("messages, streamed", "/v1/messages", &anthropic),
        stream("responses, streamed", "/v1/responses", &responses),
        chats("chat", plain),
        api("messages", "/v1/messages", &anthropic),
        api("responses", "/v1/responses", &responses),
        chats("chat, zstd body", Wire { packed: true, ..plain }),
        chats("chat, HTTP/2", http2),
        chats("chat, TLS", tls),
        chats("chat, HTTP/2 over TLS", Wire { tls: true, ..http2 }),
        chats("chat, new connections", once),
        chats("chat, new connections, TLS", Wire { tls: true, ..once }),
        many("32 choices", plain),
        many("32 choices, gzip", Wire { accept: "gzip", ..plain }),
        many("32 choices, zstd", Wire { accept: "zstd", ..plain }),
    ]
}

/// The rows that have `part` in their names, and those that they are compared with.
fn chosen(part: &str) -> Vec<Row> {
    let bases: Vec<_> =
        rows().iter().filter(|row| row.name.contains(part)).map(|row| row.base).collect();
    let is_chosen = |row: &Row| row.name.contains(part) || bases.contains(&row.name);
    rows().into_iter().filter(is_chosen).collect()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Microseconds of the proxy's CPU for a request of a row.
async fn measure(row: &Row, proxy: &Proxy, certificates: &Certificates) -> f64 {
    let body = row.wire.body(&row.body);
    let (start, cpu) = (Instant::now(), proxy.cpu_time());
    let clients = (0..CLIENTS).map(|_| async {
        let (mut sent, mut connection) = (0u64, None);
        while start.elapsed() < MEASURE {
            let mut sender = match connection.take().filter(|_| !row.wire.once) {
                Some(sender) => sender,
                None => row.wire.connect(proxy.address, certificates).await,
            };
            sender.post(row.path, row.wire, body.clone()).await;
            connection = Some(sender);
            sent += 1;
        }
        sent
    });
    let sent: u64 = futures::future::join_all(clients).await.into_iter().sum();
    (proxy.cpu_time() - cpu).as_secs_f64() * 1e6 / sent as f64
}

#[tokio::main]
async fn main() {
    let only = std::env::args().nth(1).unwrap_or_default();
    let home = tempfile::tempdir().expect("a folder");
    let discovery = format!("--discovery-dir={}", home.path().display());
    let certificates = Certificates::new(home.path());
    let path = format!("--cert-path={}", home.path().display());
    let _agent = Process::start(&[
        "agent",
        "--listen=127.0.0.1:0",
        "--events-listen=tcp://127.0.0.1:0",
        "--replay-listen=tcp://127.0.0.1:0",
        "--metrics-port=0",
        "--engine=sim",
        "--sim-step-ms=5",
        &discovery,
    ]);
    let plain = Proxy::start(&discovery, &[]).await;
    let secure = Proxy::start(&discovery, &["--secure-serving", &path]).await;
    let rows = chosen(&only);
    let mut figures = vec![Vec::new(); rows.len()];
    for _ in 0..ROUNDS {
        for (row, figures) in rows.iter().zip(&mut figures) {
            let proxy = if row.wire.tls { &secure } else { &plain };
            figures.push(measure(row, proxy, &certificates).await);
        }
    }
    println!("{:<28} {:>16} {:>20} {:>8}", "", "CPU us/request", "least to most", "ratio");
    for (row, own) in rows.iter().zip(&figures) {
        let least = own.iter().copied().fold(f64::INFINITY, f64::min);
        let most = own.iter().copied().fold(0.0, f64::max);
        let range = format!("{least:.0} to {most:.0}");
        let base = rows.iter().position(|other| other.name == row.base).expect("it is measured");
        let ratios = own.iter().zip(&figures[base]).map(|(own, base)| own / base).collect();
        let ratio =
            if row.name == row.base { String::new() } else { format!("{:.2}", median(ratios)) };
        println!("{:<28} {:>16.0} {range:>20} {ratio:>8}", row.name, median(own.clone()));
    }
}
