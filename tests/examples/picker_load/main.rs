//! Load for an endpoint picker: through a gateway, or by ext-proc itself in a gateway's place.
//!
//! Closed loop with a fixed number of requests in flight; with `--rate` requests begin at their
//! time as long as somebody is free to send them, and one that is late counts from when it was
//! due. Prints one JSON object. `tests/compare/epp/run` is what uses it.

mod client;
mod prompt;
mod wire;

use clap::{Parser, ValueEnum};
use client::{Client, Failure};
use prompt::Template;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A worker with this many failures gives up: something is wrong with what is measured.
const FAILURES_MAX: u64 = 20;

/// Load for an endpoint picker.
#[derive(Parser)]
struct Args {
    /// Where to: an address and a port.
    address: SocketAddr,
    /// What listens there.
    #[arg(long, value_enum, default_value_t = Kind::Http)]
    to: Kind,
    /// Requests in flight, 1 to 4096.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    concurrency: u16,
    /// Connections that they share, 1 to 64; by HTTP each has its own.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// Requests in all, 1 to 10000000.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    requests: Option<u64>,
    /// Send nothing new after so many seconds, 1 to 3600.
    #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=3600))]
    duration_s: u64,
    /// Requests per second, 1 to 1000000; without it as many as possible.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// Size of a body in bytes, 200 to 16777216.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(200..=16_777_216))]
    body_bytes: u32,
    /// Conversations, whose requests have all but the last message in common; 0 makes each request
    /// its own.
    #[arg(long, default_value_t = 64)]
    conversations: u64,
    /// Number of the first request, so that runs one after the other send different ones.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Largest piece of a body in one message of ext-proc, in bytes, 1024 to 4194304.
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1024..=4_194_304))]
    chunk_bytes: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// A gateway: completions by HTTP.
    Http,
    /// A picker: streams of ext-proc, one for each request.
    ExtProc,
}

/// What all workers share.
struct Plan {
    template: Template,
    start: Instant,
    end: Instant,
    requests: u64,
    /// From the start of one request to that of the next; zero is at once.
    gap: Duration,
    first: u64,
    next: AtomicU64,
}

/// What a worker saw.
#[derive(Default)]
struct Tally {
    latencies_us: Vec<u32>,
    failures: u64,
    failure: Option<Failure>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let clients = clients(&args).await?;
    let start = Instant::now();
    let plan = Arc::new(Plan {
        template: Template::new(args.body_bytes as usize, args.conversations),
        start,
        end: start + Duration::from_secs(args.duration_s),
        requests: args.requests.unwrap_or(10_000_000),
        gap: args.rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate),
        first: args.first,
        next: AtomicU64::new(0),
    });
    let workers: Vec<_> =
        clients.into_iter().map(|client| tokio::spawn(work(plan.clone(), client))).collect();
    let mut all = Tally::default();
    for worker in workers {
        let Tally { mut latencies_us, failures, failure } = worker.await?;
        all.latencies_us.append(&mut latencies_us);
        all.failures += failures;
        all.failure = all.failure.or(failure);
    }
    println!("{}", report(all, &plan));
    Ok(())
}

async fn clients(args: &Args) -> Result<Vec<Client>, Failure> {
    let mut senders = Vec::new();
    if let Kind::ExtProc = args.to {
        for _ in 0..args.connections {
            senders.push(client::connect_picker(args.address).await?);
        }
    }
    let client = |index: usize| match senders.get(index % senders.len().max(1)) {
        None => Client::http(args.address),
        Some(sender) => {
            Client::ExtProc { sender: sender.clone(), chunk_bytes: args.chunk_bytes as usize }
        }
    };
    Ok((0..usize::from(args.concurrency)).map(client).collect())
}

async fn work(plan: Arc<Plan>, mut client: Client) -> Tally {
    let mut tally = Tally::default();
    while tally.failures < FAILURES_MAX {
        let number = plan.next.fetch_add(1, Relaxed);
        let Some(begin) = plan.begin(number).await else { break };
        let asked = client.ask(plan.template.body(plan.first + number));
        let answered = match tokio::time::timeout(TIMEOUT, asked).await {
            Ok(answered) => answered,
            Err(_) => Err(format!("no answer within {TIMEOUT:?}").into()),
        };
        match answered {
            Ok(end) => {
                let us = end.saturating_duration_since(begin).as_micros();
                tally.latencies_us.push(u32::try_from(us).unwrap_or(u32::MAX));
            }
            Err(failure) => {
                tally.failures += 1;
                tally.failure.get_or_insert(failure);
            }
        }
    }
    tally
}

impl Plan {
    /// Waits for a request's turn; returns from when its latency counts, or that all is over.
    async fn begin(&self, number: u64) -> Option<Instant> {
        let due = self.start + self.gap.saturating_mul(u32::try_from(number).ok()?);
        let now = Instant::now();
        if number >= self.requests || due.max(now) >= self.end {
            return None;
        }
        if self.gap.is_zero() {
            return Some(now);
        }
        if now >= due {
            return Some(due);
        }
        // The timer is late by up to a millisecond, which is not what is measured.
        tokio::time::sleep_until(due.into()).await;
        Some(Instant::now())
    }
}

fn report(mut tally: Tally, plan: &Plan) -> Value {
    let seconds = plan.start.elapsed().as_secs_f64();
    let requests = tally.latencies_us.len();
    tally.latencies_us.sort_unstable();
    let quantile = |q: f64| {
        let rank = (q * requests as f64).ceil() as usize;
        tally.latencies_us.get(rank.saturating_sub(1)).map(|us| f64::from(*us))
    };
    json!({
        "requests": requests, "failures": tally.failures,
        "failure": tally.failure.map(|failure| failure.to_string()),
        "seconds": seconds, "requests_per_s": requests as f64 / seconds,
        "body_bytes": plan.template.size_bytes(),
        "latency_us": {"p50": quantile(0.5), "p99": quantile(0.99), "p999": quantile(0.999)},
    })
}
