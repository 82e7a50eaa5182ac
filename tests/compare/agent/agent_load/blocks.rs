//! KV events through an agent: as they come, replayed, as a snapshot.

use crate::figures::Usage;
use crate::{Args, Failure};
use bytes::Bytes;
use clap::ValueEnum;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use stator_events::subscribe::{self, News, Subscription};
use stator_fleet::{AgentClient, events};
use stator_protos::discovery::AgentRecord;
use stator_protos::kv_event::{KvEvent, decode};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Longest silence of a feed that has more to say.
const SILENCE: Duration = Duration::from_secs(30);
/// Messages that may wait to be counted.
const NEWS_MAX: usize = 65_536;
/// Blocks that a snapshot may have.
const BLOCKS_MAX: usize = 1 << 28;

/// The plane on which events are heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Over {
    /// On the request plane, as proxies and pickers do.
    RequestPlane,
    /// Over ZMQ, as stock subscribers do.
    Zmq,
}

/// What came on the live feed.
#[derive(Default)]
struct Counted {
    blocks: u64,
    messages: u64,
    /// Numbers that were left out.
    lost: u64,
    next: Option<u64>,
}

/// Has the engine publish that many blocks at that rate, and measures what becomes of them.
pub(crate) async fn measure(
    args: &Args,
    client: &Arc<AgentClient>,
    over: Over,
    (blocks, rate): (u64, u64),
) -> Result<(), Failure> {
    let record = client.describe().await?;
    let worker = record.workers.first().ok_or("no worker")?.worker;
    let mut news = subscribed(&record, client, over).await?;
    let mut counted = Counted::default();
    println!(
        "| {:<24} | blocks    | messages | lost | wall s | blocks/s  | agent CPU s | agent ns/block |",
        "step"
    );
    println!(
        "|:{:-<24}-|----------:|---------:|-----:|-------:|----------:|------------:|---------------:|",
        ""
    );
    for (step, removed) in [("stored", false), ("removed", true), ("stored again", false)] {
        let before = Usage::read(args)?;
        let order = json!({"first": 0, "blocks": blocks, "removed": removed, "rate": rate});
        let (ordered, heard) =
            tokio::join!(order_events(&args.engine, &order), hear(&mut news, blocks, &mut counted));
        let sent_s = ordered?;
        // The engine makes all its messages before it sends the first.
        let first = heard?;
        line(args, &format!("{step}, sent in {sent_s:.2} s"), &counted, (before, first))?;
        counted = Counted { next: counted.next, ..Counted::default() };
    }

    let before = (Usage::read(args)?, Instant::now());
    let topic = format!("kv-events/{worker}/{}", record.workers[0].generation);
    let batches = match over {
        Over::RequestPlane => events::replay(client, &topic, 0).await?,
        Over::Zmq => subscribe::replay(&record.replay_endpoint, Some(&topic), 0).await?,
    };
    let mut replayed = Counted::default();
    for (number, payload) in batches {
        replayed.take(number, &payload)?;
    }
    line(args, "replay of all that", &replayed, before)?;

    let before = (Usage::read(args)?, Instant::now());
    let snapshot = client.snapshot(worker, BLOCKS_MAX).await?;
    let snapshot =
        Counted { blocks: snapshot.blocks.len() as u64, messages: 1, ..Counted::default() };
    line(args, "snapshot", &snapshot, before)?;

    // An agent publishes what is new to it: the next pass would hear nothing of blocks still stored.
    let order = json!({"first": 0, "blocks": blocks, "removed": true, "rate": rate});
    let mut forgotten = Counted::default();
    let (ordered, heard) =
        tokio::join!(order_events(&args.engine, &order), hear(&mut news, blocks, &mut forgotten));
    ordered?;
    heard.map(drop)
}

impl Counted {
    fn take(&mut self, number: u64, payload: &[u8]) -> Result<(), Failure> {
        self.lost += number - self.next.unwrap_or(number);
        self.next = Some(number + 1);
        self.messages += 1;
        for event in decode(payload).map_err(|error| error.to_string())?.batch.events {
            self.blocks += match event {
                KvEvent::Stored(stored) => stored.hashes.len() as u64,
                KvEvent::Removed(removed) => removed.hashes.len() as u64,
                KvEvent::Cleared => 0,
            };
        }
        Ok(())
    }
}

async fn subscribed(
    record: &AgentRecord,
    client: &Arc<AgentClient>,
    over: Over,
) -> Result<mpsc::Receiver<News>, Failure> {
    let (endpoint, prefixes) = (record.events_endpoint.clone(), vec!["kv-events".into()]);
    let (sender, mut news) = mpsc::channel(NEWS_MAX);
    match over {
        Over::Zmq => {
            let subscription = Subscription { endpoint, prefixes, silence: None };
            tokio::spawn(subscribe::follow(subscription, sender));
        }
        Over::RequestPlane => {
            let client = client.clone();
            tokio::spawn(async move { events::follow(&client, prefixes, SILENCE, sender).await });
        }
    }
    match tokio::time::timeout(SILENCE, news.recv()).await? {
        Some(News::Subscribed) => Ok(news),
        other => Err(format!("not subscribed: {other:?}").into()),
    }
}

/// Counts until that many blocks have been told of; returns when the first message came.
async fn hear(
    news: &mut mpsc::Receiver<News>,
    blocks: u64,
    counted: &mut Counted,
) -> Result<Instant, Failure> {
    let mut first = None;
    while counted.blocks < blocks {
        let heard = tokio::time::timeout(SILENCE, news.recv()).await;
        let heard = heard.map_err(|_| format!("only {} blocks came", counted.blocks))?;
        match heard.ok_or("the feed ended")? {
            News::Message(_, number, payload) => {
                first.get_or_insert_with(Instant::now);
                counted.take(number, &payload)?;
            }
            News::Subscribed => return Err("the feed was interrupted".into()),
            News::Malformed => return Err("a message is malformed".into()),
        }
    }
    first.ok_or_else(|| "no blocks were asked for".into())
}

async fn order_events(engine: &str, order: &Value) -> Result<f64, Failure> {
    let stream = TcpStream::connect(engine.trim_start_matches("http://")).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::post("/bench/events")
        .header("host", "engine")
        .body(Full::new(Bytes::from(order.to_string())))?;
    let answer = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    let answer: Value = serde_json::from_slice(&answer)?;
    answer["seconds"].as_f64().ok_or_else(|| format!("the engine answered {answer}").into())
}

fn line(
    args: &Args,
    step: &str,
    counted: &Counted,
    (before, start): (Usage, Instant),
) -> Result<(), Failure> {
    let wall_s = start.elapsed().as_secs_f64();
    let cpu_s = (Usage::read(args)? - before).of_agent().as_secs_f64();
    let Counted { blocks, messages, lost, .. } = counted;
    let rate = *blocks as f64 / wall_s;
    let ns = cpu_s * 1e9 / (*blocks).max(1) as f64;
    println!(
        "| {step:<24} | {blocks:>9} | {messages:>8} | {lost:>4} | {wall_s:>6.2} | {rate:>9.0} | {cpu_s:>11.2} | {ns:>14.0} |"
    );
    Ok(())
}
