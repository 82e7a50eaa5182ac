//! Follows one agent: its record, its connection, its workers' events and load.
//!
//! One task per agent owns all of this; what it learns goes to whoever places requests on the
//! agent's workers: a [`super::Pool`], or a picker.

use super::client::{AgentClient, Snapshot};
use super::members::Members;
use super::metrics::FleetMetrics;
use super::source::EventSource;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use stator_events::KvSink;
use stator_events::feed::{Action, Feed, Input};
use stator_events::subscribe::News;
use stator_placement::Worker;
use stator_protos::discovery::{AgentRecord, WorkerRecord};
use stator_protos::kv_event::{self, KvEvent};
use stator_protos::load::Load;
use stator_protos::topic::{Topic, TopicKind};
use stator_protos::{Generation, WorkerRank};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Messages of the event plane that may wait; the publisher is held up beyond them.
const NEWS_MAX: usize = 1024;
/// Replays and snapshots of one agent that may be on their way at once.
const QUESTIONS_MAX: usize = 16;
/// Blocks of one snapshot: of a small worker at least, and of any.
const SNAPSHOT_BLOCKS_MIN: usize = 1024;
const SNAPSHOT_BLOCKS_MAX: usize = 1 << 25;
/// Longest wait for a snapshot: an engine answers between two steps.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(30);
/// Waits between snapshots of one worker, from the second to the longest.
const SNAPSHOT_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

type Events = Vec<KvEvent>;

/// The task of one agent.
pub(super) struct AgentTask<S: Members + KvSink> {
    sink: Arc<S>,
    client: Arc<AgentClient>,
    record: watch::Receiver<AgentRecord>,
    source: EventSource,
    workers: FxHashMap<WorkerRank, Followed>,
    /// Whether another agent has one of the workers: it may leave.
    contested: bool,
    subscribed: bool,
    links_up: watch::Receiver<usize>,
    questions: JoinSet<Answer>,
    turns: Arc<Semaphore>,
    metrics: FleetMetrics,
}

/// One life of a worker.
struct Followed {
    generation: Generation,
    total_blocks: u32,
    /// Of its blocks; none where its engine is asked in text and names none.
    feed: Option<Feed<Events>>,
    /// A snapshot is to be taken as soon as the subscription stands.
    snapshot_due: bool,
    last_snapshot: Option<Instant>,
    backoff: Duration,
}

struct Answer {
    worker: WorkerRank,
    generation: Generation,
    content: Content,
}

enum Content {
    Replay(Result<Vec<(u64, Bytes)>, String>),
    Snapshot(Result<Snapshot, String>),
}

/// Follows an agent until the sender of its record is gone, or the future is dropped; its workers
/// leave the sink then.
///
/// # Cancel safety
///
/// Dropping the future ends everything that it started.
pub async fn follow<S: Members + KvSink>(
    sink: Arc<S>,
    client: Arc<AgentClient>,
    record: watch::Receiver<AgentRecord>,
    metrics: FleetMetrics,
) {
    AgentTask::new(sink, client, record, metrics).run().await;
}

impl<S: Members + KvSink> AgentTask<S> {
    pub(super) fn new(
        sink: Arc<S>,
        client: Arc<AgentClient>,
        record: watch::Receiver<AgentRecord>,
        metrics: FleetMetrics,
    ) -> Self {
        let source = EventSource::of(&record.borrow(), &client);
        let links_up = client.links_up();
        Self {
            sink,
            client,
            record,
            source,
            workers: FxHashMap::default(),
            contested: false,
            subscribed: false,
            links_up,
            questions: JoinSet::new(),
            turns: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            metrics,
        }
    }

    /// Follows the agent until its record's sender is gone, or the task is dropped.
    pub(super) async fn run(mut self) {
        let (sender, mut news) = mpsc::channel(NEWS_MAX);
        let mut subscriber = JoinSet::new();
        subscriber.spawn(self.source.clone().follow(sender));
        let mut tick = tokio::time::interval(self.sink.refresh_interval());
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.reconcile();
        loop {
            tokio::select! {
                changed = self.record.changed() => match changed {
                    Ok(()) => self.reconcile(),
                    Err(_) => return,
                },
                // The client lives as long as the task, and with it the sender.
                Ok(()) = self.links_up.changed() => self.reconcile(),
                Some(item) = news.recv() => self.news(item),
                Some(answer) = self.questions.join_next() => match answer {
                    Ok(answer) => self.answer(answer),
                    Err(error) => tracing::error!(%error, "a question to an agent failed"),
                },
                _ = tick.tick() => {
                    self.sink.refresh(&mut self.workers.keys().copied());
                    if self.contested {
                        self.reconcile();
                    }
                }
            }
        }
    }

    /// Makes the sink's members what the record and the connection say.
    fn reconcile(&mut self) {
        let record = self.record.borrow_and_update().clone();
        let accepting = record.accepting && *self.links_up.borrow_and_update() > 0;
        self.client.set_profile(&record.profile);
        let gone: Vec<_> = self
            .workers
            .keys()
            .filter(|known| !record.workers.iter().any(|found| found.worker == **known))
            .copied()
            .collect();
        for worker in gone {
            self.workers.remove(&worker);
            self.sink.leave(worker, &self.client);
        }
        // A contested worker is tried again with every change, and warned of once.
        let was_contested = std::mem::take(&mut self.contested);
        for worker in &record.workers {
            let publishes_events = record.model.takes_tokens();
            let suspect = self.client.is_suspect();
            let told = Worker { publishes_events, suspect, ..Worker::new(worker, accepting) };
            if self.sink.join(told, &self.client) {
                self.meet(worker, publishes_events);
                continue;
            }
            self.contested = true;
            if !was_contested {
                self.metrics.records_refused.inc();
                tracing::warn!(worker = %worker.worker, "another agent has this worker already");
            }
        }
    }

    fn meet(&mut self, record: &WorkerRecord, publishes_events: bool) {
        let life = |known: &Followed| known.generation == record.generation;
        if self.workers.get(&record.worker).is_some_and(life) {
            return;
        }
        let mut actions = Vec::new();
        let followed = Followed {
            generation: record.generation,
            total_blocks: record.total_blocks,
            feed: publishes_events.then(|| Feed::start(&mut actions)),
            snapshot_due: false,
            last_snapshot: None,
            backoff: SNAPSHOT_BACKOFF.0,
        };
        self.workers.insert(record.worker, followed);
        self.act(record.worker, actions, None);
    }

    fn news(&mut self, news: News) {
        match news {
            News::Subscribed => {
                self.subscribed = true;
                let due: Vec<_> = self
                    .workers
                    .iter_mut()
                    .filter_map(|(worker, followed)| {
                        std::mem::take(&mut followed.snapshot_due).then_some(*worker)
                    })
                    .collect();
                for worker in due {
                    self.ask_snapshot(worker);
                }
            }
            News::Message(topic, number, payload) => match Topic::parse(&topic) {
                Some(topic) => self.message(topic, number, &payload),
                None => drop(self.metrics.messages_malformed.inc()),
            },
            News::Malformed => drop(self.metrics.messages_malformed.inc()),
        }
    }

    fn message(&mut self, topic: Topic, number: u64, payload: &[u8]) {
        let Some(followed) = self.workers.get(&topic.worker) else { return };
        if followed.generation != topic.generation {
            // An earlier life's last words, or a later one's first, which its snapshot will have.
            return;
        }
        let input = match topic.kind {
            TopicKind::KvEvents => match self.decode(payload) {
                Some(batch) => Input::Batch { number, batch },
                // It exists but cannot be followed: as good as lost.
                None => Input::Next(number.saturating_add(1)),
            },
            TopicKind::Load => {
                match Load::decode(payload) {
                    Ok(load) => self.sink.load(topic.worker, topic.generation, load),
                    Err(_) => drop(self.metrics.messages_malformed.inc()),
                }
                Input::Next(number)
            }
        };
        self.feed(topic.worker, input, None);
    }

    fn decode(&self, payload: &[u8]) -> Option<Events> {
        match kv_event::decode(payload) {
            Ok(decoded) => {
                self.metrics.events_skipped.inc_by(decoded.skipped.into());
                Some(decoded.batch.events)
            }
            Err(error) => {
                self.metrics.messages_malformed.inc();
                tracing::debug!(%error, "an event batch is malformed");
                None
            }
        }
    }

    fn answer(&mut self, answer: Answer) {
        let Answer { worker, generation, content } = answer;
        // An answer about an earlier life says nothing of this one.
        if self.workers.get(&worker).is_none_or(|followed| followed.generation != generation) {
            return;
        }
        let endpoint = self.client.endpoint();
        match content {
            Content::Replay(Ok(batches)) => {
                let decoded: Option<Vec<_>> = batches
                    .into_iter()
                    .map(|(number, payload)| Some((number, self.decode(&payload)?)))
                    .collect();
                self.feed(worker, decoded.map_or(Input::ReplayFailed, Input::Replayed), None);
            }
            Content::Replay(Err(reason)) => {
                self.metrics.replays_failed.inc();
                tracing::debug!(%worker, endpoint, reason, "a replay failed");
                self.feed(worker, Input::ReplayFailed, None);
            }
            Content::Snapshot(Ok(snapshot)) if snapshot.generation == generation => {
                let next = snapshot.next_sequence;
                self.feed(worker, Input::Snapshot { next }, Some(snapshot));
            }
            Content::Snapshot(result) => {
                self.metrics.snapshots_failed.inc();
                let reason = result.err().unwrap_or_else(|| "it is of another life".into());
                tracing::debug!(%worker, reason, "a snapshot failed");
                self.feed(worker, Input::SnapshotFailed, None);
            }
        }
    }

    fn feed(&mut self, worker: WorkerRank, input: Input<Events>, snapshot: Option<Snapshot>) {
        let Some(followed) = self.workers.get_mut(&worker) else { return };
        let Some(feed) = &mut followed.feed else { return };
        let mut actions = Vec::new();
        feed.take(input, &mut actions);
        self.act(worker, actions, snapshot);
    }

    fn act(
        &mut self,
        worker: WorkerRank,
        actions: Vec<Action<Events>>,
        mut snapshot: Option<Snapshot>,
    ) {
        // The worker may have left while its answer was on the way.
        let Some(generation) = self.workers.get(&worker).map(|known| known.generation) else {
            return;
        };
        for action in actions {
            match action {
                Action::Unknown => self.sink.unknown(worker),
                Action::Replace => {
                    let snapshot = snapshot.take().expect("a snapshot is replaced by when it came");
                    self.sink.replace(worker, generation, snapshot.blocks);
                }
                Action::Apply(events) => {
                    self.metrics.batches.inc();
                    self.sink.apply(worker, generation, &events);
                }
                Action::AskReplay(start) => self.ask_replay(worker, generation, start),
                Action::AskSnapshot => self.ask_snapshot(worker),
            }
        }
    }

    fn ask_replay(&mut self, worker: WorkerRank, generation: Generation, start: u64) {
        self.metrics.replays.inc();
        let topic = Topic { kind: TopicKind::KvEvents, worker, generation }.to_string();
        let (source, turns) = (self.source.clone(), self.turns.clone());
        self.questions.spawn(async move {
            // The semaphore is never closed.
            let _turn = turns.acquire().await;
            let content = Content::Replay(source.replay(&topic, start).await);
            Answer { worker, generation, content }
        });
    }

    /// Takes a snapshot once the subscription stands: what is published after it must arrive.
    fn ask_snapshot(&mut self, worker: WorkerRank) {
        let Some(followed) = self.workers.get_mut(&worker) else { return };
        if !self.subscribed {
            followed.snapshot_due = true;
            return;
        }
        self.metrics.snapshots.inc();
        let now = Instant::now();
        let since = followed.last_snapshot.map(|last| now - last);
        let delay = followed.snapshot_delay(since);
        followed.last_snapshot = Some(now + delay);
        // As many as agents keep, on all media.
        let blocks_max = (followed.total_blocks as usize).saturating_mul(4);
        let blocks_max = blocks_max.clamp(SNAPSHOT_BLOCKS_MIN, SNAPSHOT_BLOCKS_MAX);
        let generation = followed.generation;
        let (client, turns) = (self.client.clone(), self.turns.clone());
        self.questions.spawn(async move {
            tokio::time::sleep(delay).await;
            let _turn = turns.acquire().await;
            let asked = tokio::time::timeout(SNAPSHOT_TIMEOUT, client.snapshot(worker, blocks_max));
            let result = match asked.await {
                Ok(result) => result.map_err(|status| status.to_string()),
                Err(_) => Err(format!("no answer within {SNAPSHOT_TIMEOUT:?}")),
            };
            Answer { worker, generation, content: Content::Snapshot(result) }
        });
    }
}

impl Followed {
    /// Wait before the next snapshot: none at first, then twice as long each time that the last one
    /// did not last.
    fn snapshot_delay(&mut self, since_last: Option<Duration>) -> Duration {
        let lasted = since_last.is_none_or(|since| since > self.backoff * 4);
        if lasted {
            self.backoff = SNAPSHOT_BACKOFF.0;
            return Duration::ZERO;
        }
        let delay = self.backoff;
        self.backoff = (self.backoff * 2).min(SNAPSHOT_BACKOFF.1);
        delay
    }
}

impl<S: Members + KvSink> Drop for AgentTask<S> {
    fn drop(&mut self) {
        for worker in self.workers.keys() {
            self.sink.leave(*worker, &self.client);
        }
    }
}
