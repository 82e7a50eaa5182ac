//! What an agent costs: the same requests sent straight to an engine and through its agent.
//!
//! For each scenario one line per way is printed: what the agent and the engine spent of the CPU,
//! and how long tokens were on their way. The engine is the pretend vLLM beside this, whose tokens
//! say when they were made. `tests/compare/agent/run` is what uses it.

mod blocks;
mod figures;
mod relayed;
mod ways;

use blocks::Over;
use clap::{Parser, Subcommand};
use figures::{Figures, Usage};
use relayed::Relay;
use stator_fleet::{AgentClient, ClientSettings};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use ways::{Way, Worker};

/// Why nothing was measured; only printed.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Longest wait for the agent's connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Load for an agent and the engine behind it.
#[derive(Parser)]
struct Args {
    /// URL of the engine.
    #[arg(long)]
    engine: String,
    /// Request plane of the agent.
    #[arg(long)]
    agent: String,
    /// Process of the agent.
    #[arg(long)]
    agent_pid: u32,
    /// Process of the engine.
    #[arg(long)]
    engine_pid: u32,
    /// Socket of the relay, for a third way.
    #[arg(long, requires = "relay_pid")]
    relay: Option<PathBuf>,
    /// Process of the relay.
    #[arg(long)]
    relay_pid: Option<u32>,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Requests and tokens.
    Tokens {
        /// Seconds of a measurement, 1 to 600.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=600))]
        seconds: u64,
        /// Rounds over all scenarios, 1 to 100.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
        /// Only scenarios with this in their name.
        #[arg(long, default_value = "")]
        only: String,
    },
    /// KV events: stored, replayed, told as a snapshot, removed.
    Events {
        /// How many blocks, 1 to 100000000.
        #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
        blocks: u64,
        /// Blocks per second, 0 for as many as the engine can send.
        #[arg(long, default_value_t = 1_000_000)]
        rate: u64,
        /// The plane on which events are heard.
        #[arg(long, value_enum, default_value = "request-plane")]
        over: Over,
    },
}

/// Requests of one kind.
struct Scenario {
    name: &'static str,
    streams: u32,
    prompt: u32,
    tokens: u32,
    /// From the start of a stream's request to that of its next one.
    period: Duration,
}

const SCENARIOS: [Scenario; 4] = [
    Scenario {
        name: "500 requests/s of 1000 in, 1 out",
        streams: 20,
        prompt: 1000,
        tokens: 1,
        period: Duration::from_millis(40),
    },
    Scenario {
        name: "100 requests/s of 10000 in, 1 out",
        streams: 10,
        prompt: 10_000,
        tokens: 1,
        period: Duration::from_millis(100),
    },
    Scenario {
        name: "200 streams of 100 in, 200 out",
        streams: 200,
        prompt: 100,
        tokens: 200,
        period: Duration::ZERO,
    },
    Scenario {
        name: "20 streams of 100 in, 200 out",
        streams: 20,
        prompt: 100,
        tokens: 200,
        period: Duration::ZERO,
    },
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let client = Arc::new(AgentClient::connect(&args.agent, &ClientSettings::default())?);
    let mut up = client.links_up();
    tokio::time::timeout(CONNECT_TIMEOUT, up.wait_for(|links| *links > 0)).await??;
    match &args.what {
        What::Tokens { seconds, rounds, only } => {
            let span = Duration::from_secs(*seconds);
            let worker = client.describe().await?.workers.first().ok_or("no worker")?.worker;
            println!("| {:<34} | {:<6} |{}", "scenario", "way", Figures::HEAD);
            println!("|:{:-<34}-|:{:-<6}-|{}", "", "", Figures::RULE);
            let relay = match &args.relay {
                Some(path) => Some(Relay::connect(path).await?),
                None => None,
            };
            let wanted = || SCENARIOS.iter().filter(|scenario| scenario.name.contains(only));
            for scenario in (0..*rounds).flat_map(|_| wanted()) {
                let relayed = relay.clone().map(|relay| ("relay", Way::Relay(relay)));
                let ways = [
                    ("direct", Way::engine(&args.engine)?),
                    ("agent", Way::Agent { client: client.clone(), worker }),
                ];
                for (name, way) in ways.into_iter().chain(relayed) {
                    let figures = measure(&args, scenario, &way, span).await?;
                    println!("| {:<34} | {name:<6} |{figures}", scenario.name);
                }
            }
            Ok(())
        }
        What::Events { blocks, rate, over } => {
            blocks::measure(&args, &client, *over, (*blocks, *rate)).await
        }
    }
}

/// Sends requests for a while, and measures what they cost after a while of it.
async fn measure(
    args: &Args,
    scenario: &Scenario,
    way: &Way,
    span: Duration,
) -> Result<Figures, Failure> {
    let start = Instant::now();
    let from = start + Duration::from_secs(1);
    let until = from + span;
    let mut streams = JoinSet::new();
    for n in 0..scenario.streams {
        let worker = Worker::new(way.clone(), (scenario.prompt, scenario.tokens), n);
        let (period, streams_in_all) = (scenario.period, scenario.streams);
        streams.spawn(async move {
            // Not all at once.
            let first = start + period.mul_f64(f64::from(n) / f64::from(streams_in_all));
            worker.run((first, period), (from, until)).await
        });
    }
    tokio::time::sleep_until(from.into()).await;
    let before = Usage::read(args)?;
    tokio::time::sleep_until(until.into()).await;
    let used = Usage::read(args)? - before;
    let mut figures = Figures::new(used, span);
    while let Some(seen) = streams.join_next().await {
        figures.add(seen??);
    }
    figures.sort();
    Ok(figures)
}
