//! KV events as vLLM publishes them, as fast as they are ordered, and replays of all of them.

use crate::{BLOCK_SIZE, Failure};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored, encode};
use stator_zmtp::{Publisher, Router};
use std::path::Path;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Topic of all events.
const TOPIC: &[u8] = b"kv-events";
/// Blocks of one prompt, all of them in one event.
const BLOCKS_PER_EVENT: u64 = 64;
/// Events in one message: what a step stores for several prompts.
const EVENTS_PER_BATCH: u64 = 2;
/// The number frame that ends a replay.
const END: [u8; 8] = [0xff; 8];

/// Blocks that are to be stored or removed.
#[derive(Deserialize)]
pub(crate) struct Order {
    /// Number of the first; its hash follows from it.
    first: u64,
    /// How many.
    blocks: u64,
    /// Whether they are removed.
    removed: bool,
    /// Blocks per second, 0 for as fast as they can be sent.
    rate: u64,
}

/// The publisher.
pub(crate) struct Events {
    publisher: Mutex<Publisher>,
    /// All messages so far; their numbers are their places.
    sent: Arc<SyncMutex<Vec<Bytes>>>,
    sources: Value,
}

impl Events {
    /// Binds both sockets in a folder.
    pub(crate) async fn bind(folder: &Path) -> Result<Self, Failure> {
        let at = |name: &str| format!("ipc://{}", folder.join(name).display());
        let (publish, replay) = (at("events"), at("replay"));
        let publisher = Publisher::bind(&publish).await?;
        let replays = Router::bind(&replay).await?;
        let sent = Arc::new(SyncMutex::new(Vec::new()));
        tokio::spawn(answer(replays, sent.clone()));
        let sources = json!({"0": {
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": publish,
            "replay_endpoint": replay, "topic": "kv-events"}});
        Ok(Self { publisher: Mutex::new(publisher), sent, sources })
    }

    /// What `/kv_event_sources` says.
    pub(crate) fn sources(&self) -> Value {
        self.sources.clone()
    }

    /// Publishes what is ordered; returns how many seconds sending took.
    pub(crate) async fn publish(&self, order: Order) -> Result<f64, Failure> {
        // Made before any is sent: an engine's other process does that.
        let payloads: Vec<Bytes> = payloads(&order);
        let publisher = self.publisher.lock().await;
        let start = Instant::now();
        let mut blocks = 0;
        for payload in payloads {
            let number = {
                let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
                sent.push(payload.clone());
                sent.len() as u64 - 1
            };
            let number = Bytes::copy_from_slice(&number.to_be_bytes());
            publisher.publish(&[Bytes::from_static(TOPIC), number, payload]);
            blocks += BLOCKS_PER_EVENT * EVENTS_PER_BATCH;
            match blocks.checked_mul(1_000_000).and_then(|blocks| blocks.checked_div(order.rate)) {
                Some(due_us) => {
                    let due = start + Duration::from_micros(due_us);
                    if due > Instant::now() + Duration::from_millis(1) {
                        tokio::time::sleep_until(due.into()).await;
                    }
                }
                // The socket has a task of its own, which needs a turn.
                None => tokio::task::yield_now().await,
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

fn payloads(order: &Order) -> Vec<Bytes> {
    let numbers: Vec<u64> = (order.first..order.first + order.blocks).collect();
    let batches = numbers.chunks((BLOCKS_PER_EVENT * EVENTS_PER_BATCH) as usize).map(|batch| {
        let events = batch.chunks(BLOCKS_PER_EVENT as usize);
        let event = if order.removed { removed } else { stored };
        let events: Vec<KvEvent> = events.map(event).collect();
        let mut payload = Vec::new();
        encode(0.0, &events, Some(0), &mut payload);
        Bytes::from(payload)
    });
    batches.collect()
}

/// A prompt of its own.
fn stored(blocks: &[u64]) -> KvEvent {
    let token = |n: u64| 1 + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49) as u32;
    let tokens = |block: &u64| {
        let first = block * u64::from(BLOCK_SIZE);
        (first..first + u64::from(BLOCK_SIZE)).map(token)
    };
    KvEvent::Stored(Stored {
        hashes: blocks.iter().copied().map(hash).collect(),
        parent: None,
        tokens: blocks.iter().flat_map(tokens).collect(),
        block_size: BLOCK_SIZE,
        medium: Medium::Device,
        lora_name: None,
    })
}

fn removed(blocks: &[u64]) -> KvEvent {
    // The end of a prompt goes before its beginning.
    let hashes = blocks.iter().rev().copied().map(hash).collect();
    KvEvent::Removed(Removed { hashes, medium: Medium::Device })
}

/// The engine's name for a block: an odd factor gives each number another.
fn hash(block: u64) -> u64 {
    (block + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Answers replay requests, one after the other.
async fn answer(mut router: Router, sent: Arc<SyncMutex<Vec<Bytes>>>) {
    loop {
        let request = router.recv().await;
        let [_, start] = &request.frames[..] else { continue };
        let Ok(start) = start.as_ref().try_into().map(u64::from_be_bytes) else { continue };
        let payloads = sent.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let numbered = (0u64..).zip(payloads).skip(usize::try_from(start).unwrap_or(usize::MAX));
        for (number, payload) in numbered {
            let number = Bytes::copy_from_slice(&number.to_be_bytes());
            let answer = [Bytes::new(), Bytes::from_static(TOPIC), number, payload];
            if request.reply.send(&answer).await.is_err() {
                break;
            }
        }
        // A peer that is gone needs no end.
        let end = Bytes::from_static(&END);
        let _ = request.reply.send(&[Bytes::new(), Bytes::new(), end, Bytes::new()]).await;
    }
}
