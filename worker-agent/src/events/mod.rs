//! The event plane: KV events and load of the agent's workers, numbered and published on the request
//! plane, and on ZMQ for stock subscribers.
//!
//! An engine's driver never waits for subscribers. It appends each batch to its worker's
//! [`log::EventLog`] and to a bounded queue. [`publish`] empties the queue to [`subscribers`], whom
//! [`serve`] speaks to, and into a PUB socket; a [`reader`] answers replays from the logs, for
//! [`serve`] and for the socket of [`replay`]. What a queue loses is a gap in the numbers, which
//! subscribers see and heal.

pub(crate) mod log;
pub(crate) mod plane;
pub(crate) mod publish;
pub(crate) mod queue;
mod reader;
mod replay;
pub(crate) mod serve;
mod subscribers;
mod turns;

use crate::metrics::AgentMetrics;
use bytes::Bytes;
use log::EventLog;
use parking_lot::Mutex;
use queue::{Message, Queue};
use rustc_hash::FxHashMap;
use stator_protos::kv_event::{self, KvEvent};
use stator_protos::load::Load;
use stator_protos::topic::{Topic, TopicKind};
use stator_protos::{Generation, WorkerRank};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The log of one worker's life as replay finds it.
#[derive(Clone, Debug)]
struct LogEntry {
    /// Topic frame of its batches.
    topic: Bytes,
    /// Its batches.
    log: Arc<Mutex<EventLog>>,
}

/// The feeds of the agent's workers: of each its present life, which is what is published, replayed
/// and repeated.
#[derive(Debug)]
pub(crate) struct Feeds {
    log_bytes: usize,
    queue: Arc<Queue>,
    metrics: AgentMetrics,
    open: Mutex<FxHashMap<WorkerRank, Open>>,
}

/// Publication of a worker's present life.
#[derive(Debug)]
struct Open {
    generation: Generation,
    log: LogEntry,
    loads: Arc<LoadFeed>,
}

impl Feeds {
    /// No feeds yet; each is to keep `log_bytes` of events for replay.
    pub(crate) fn new(log_bytes: usize, queue: Arc<Queue>, metrics: AgentMetrics) -> Self {
        Self { log_bytes, queue, metrics, open: Mutex::default() }
    }

    /// Opens the feed of a life, and closes that of the worker's life before.
    pub(crate) fn open(&self, worker: WorkerRank, generation: Generation) -> WorkerFeed {
        let (queue, metrics) = (self.queue.clone(), self.metrics.clone());
        let feed =
            WorkerFeed::new(WorkerLife { worker, generation }, self.log_bytes, queue, metrics);
        let open = Open { generation, log: feed.log(), loads: feed.loads() };
        self.open.lock().insert(worker, open);
        feed
    }

    /// Closes the feed of a life, unless a later one has taken its place.
    pub(crate) fn close(&self, worker: WorkerRank, generation: Generation) {
        let mut open = self.open.lock();
        if open.get(&worker).is_some_and(|life| life.generation == generation) {
            open.remove(&worker);
        }
    }

    /// Number of open feeds.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.open.lock().len()
    }

    /// The logs of all that are open.
    fn logs(&self) -> Vec<LogEntry> {
        self.open.lock().values().map(|life| life.log.clone()).collect()
    }

    /// Publishes the last load of every worker again.
    pub(crate) fn repeat_loads(&self) {
        for life in self.open.lock().values() {
            life.loads.repeat();
        }
    }
}

/// One life of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerLife {
    pub(crate) worker: WorkerRank,
    pub(crate) generation: Generation,
}

/// A worker's outlet for events and load, filled by its driver.
#[derive(Debug)]
pub(crate) struct WorkerFeed {
    rank: u16,
    generation: Generation,
    events_topic: Bytes,
    log: Arc<Mutex<EventLog>>,
    queue: Arc<Queue>,
    loads: Arc<LoadFeed>,
    metrics: AgentMetrics,
}

/// The load reports of one worker's life. Repeating the last one is what keeps an idle worker's
/// subscribers sure that they missed nothing.
#[derive(Debug)]
struct LoadFeed {
    topic: Bytes,
    last: Mutex<Load>,
    /// Number of the next batch; written by the driver alone, after the batch before it is queued.
    next: AtomicU64,
    queue: Arc<Queue>,
    metrics: AgentMetrics,
}

impl LoadFeed {
    /// Publishes `load`. Its number frame is the number of the next batch, so that a subscriber
    /// that lost the last batch before a silence notices.
    fn report(&self, load: Load) {
        *self.last.lock() = load;
        self.repeat();
    }

    /// Publishes the last report again.
    fn repeat(&self) {
        let mut payload = Vec::new();
        self.last.lock().encode(&mut payload);
        let number = self.next.load(Ordering::Acquire);
        let message = Message { topic: self.topic.clone(), number, payload: Bytes::from(payload) };
        self.metrics.messages_dropped.inc_by(self.queue.push(message));
    }
}

impl WorkerFeed {
    /// A feed of one life of `worker` whose log keeps `log_bytes`.
    pub(crate) fn new(
        WorkerLife { worker, generation }: WorkerLife,
        log_bytes: usize,
        queue: Arc<Queue>,
        metrics: AgentMetrics,
    ) -> Self {
        let topic = |kind| Bytes::from(Topic { kind, worker, generation }.to_string());
        let loads = LoadFeed {
            topic: topic(TopicKind::Load),
            last: Mutex::default(),
            next: AtomicU64::new(0),
            queue: queue.clone(),
            metrics: metrics.clone(),
        };
        Self {
            rank: worker.rank,
            generation,
            events_topic: topic(TopicKind::KvEvents),
            log: Arc::new(Mutex::new(EventLog::new(log_bytes))),
            queue,
            loads: Arc::new(loads),
            metrics,
        }
    }

    /// The log, for replay.
    fn log(&self) -> LogEntry {
        LogEntry { topic: self.events_topic.clone(), log: self.log.clone() }
    }

    /// The load reports, for repeating them.
    fn loads(&self) -> Arc<LoadFeed> {
        self.loads.clone()
    }

    /// The worker's life.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// Number of the next batch.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.loads.next.load(Ordering::Acquire)
    }

    /// Numbers and publishes a batch.
    pub(crate) fn events(&mut self, events: &[KvEvent]) {
        let mut payload = Vec::new();
        kv_event::encode(unix_seconds(), events, Some(self.rank.into()), &mut payload);
        let payload = Bytes::from(payload);
        let number = self.log.lock().append(payload.clone());
        let message = Message { topic: self.events_topic.clone(), number, payload };
        self.metrics.messages_dropped.inc_by(self.queue.push(message));
        self.loads.next.store(number + 1, Ordering::Release);
    }

    /// Publishes a load report.
    pub(crate) fn load(&self, load: Load) {
        self.loads.report(load);
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
