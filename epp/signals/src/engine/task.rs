//! Follows one engine: subscription, numbering, replays.

use super::recover::{Pace, unbroken_end};
use super::translate::{Skipped, Translator};
use crate::feeds::FeedCounts;
use crate::{SignalMetrics, WorkerSink};
use bytes::Bytes;
use stator_fleet::feed::{Action, Feed, Input};
use stator_fleet::subscribe::{self, News, Subscription};
use stator_placement::Closure;
use stator_protos::kv_event::{self, EngineEvent, KvEvent};
use stator_protos::{Generation, WorkerRank};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Messages that may wait; the publisher is held up beyond them.
pub(super) const NEWS_MAX: usize = 1024;

type Events = Vec<EngineEvent>;

/// The task of one engine.
pub(super) struct Task {
    worker: WorkerRank,
    translator: Translator,
    /// Makes of what is translated what the index has to be told.
    closure: Closure,
    sink: Arc<dyn WorkerSink>,
    metrics: SignalMetrics,
    counts: Arc<FeedCounts>,
    generation: Generation,
    /// `None` before the first connection.
    feed: Option<Feed<Events>>,
    start: Start,
    /// Number of the last live message of this life.
    last: Option<u64>,
    replay_endpoint: Option<String>,
    questions: JoinSet<Answer>,
    pace: Pace,
    /// Scratch space.
    translated: Vec<KvEvent>,
    closed: Vec<KvEvent>,
}

/// How the feed's beginning is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// It is found, or there is no connection.
    Done,
    /// The engine was asked for all that it remembers; the first live message since, if one came.
    Asked(Option<u64>),
    /// It begins with the next live message.
    NextMessage,
}

struct Answer {
    generation: Generation,
    from_start: bool,
    batches: Result<Vec<(u64, Bytes)>, String>,
}

impl Task {
    pub(super) fn new(
        worker: WorkerRank,
        (translator, closure): (Translator, Closure),
        sink: Arc<dyn WorkerSink>,
        metrics: SignalMetrics,
    ) -> Self {
        Self {
            worker,
            translator,
            closure,
            sink,
            counts: metrics.feeds.of(worker),
            metrics,
            generation: Generation(0),
            feed: None,
            start: Start::Done,
            last: None,
            replay_endpoint: None,
            questions: JoinSet::new(),
            pace: Pace::default(),
            translated: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// Follows the engine until dropped.
    pub(super) async fn run(mut self, subscription: Subscription, replay_endpoint: Option<String>) {
        self.replay_endpoint = replay_endpoint;
        let (sender, mut news) = mpsc::channel(NEWS_MAX);
        let mut subscriber = JoinSet::new();
        subscriber.spawn(subscribe::follow(subscription, sender));
        loop {
            tokio::select! {
                item = news.recv() => match item {
                    Some(item) => {
                        self.counts.waiting.store(news.len(), Ordering::Relaxed);
                        self.news(item);
                    }
                    None => return,
                },
                Some(answer) = self.questions.join_next() => match answer {
                    Ok(answer) => self.answer(answer),
                    Err(error) => tracing::error!(%error, "a question to an engine failed"),
                },
            }
        }
    }

    fn news(&mut self, news: News) {
        match news {
            // Whoever is there now may be another than before.
            News::Subscribed => {
                if self.feed.is_some() {
                    FeedCounts::count(&self.counts.reconnections);
                }
                self.begin();
            }
            News::Message(_, number, payload) => {
                FeedCounts::count(&self.counts.messages);
                self.message(number, &payload);
            }
            News::Malformed => self.malformed(),
        }
    }

    fn malformed(&self) {
        self.metrics.messages_malformed.inc();
        FeedCounts::count(&self.counts.receive_errors);
    }

    /// A life begins, of which nothing is known.
    fn begin(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        self.generation = Generation(now.max(self.generation.0.saturating_add(1)));
        self.metrics.lives.inc();
        tracing::debug!(worker = %self.worker, generation = %self.generation, "an engine's life");
        self.sink.life(self.worker, self.generation);
        // What the life before was asked answers nothing any more.
        self.questions = JoinSet::new();
        self.last = None;
        let mut actions = Vec::new();
        self.feed = Some(Feed::start(&mut actions));
        self.act(actions);
    }

    fn message(&mut self, number: u64, payload: &[u8]) {
        if self.last.is_some_and(|last| number <= last) {
            // Numbers only start again with the process.
            self.begin();
        }
        self.last = Some(number);
        let events = self.decode(payload);
        match self.start {
            Start::Asked(None) => self.start = Start::Asked(Some(number)),
            Start::NextMessage => self.follow_from(number),
            Start::Done | Start::Asked(Some(_)) => {}
        }
        self.feed(match events {
            Some(batch) => Input::Batch { number, batch },
            // It exists but cannot be followed: as good as lost.
            None => Input::Next(number.saturating_add(1)),
        });
    }

    fn decode(&self, payload: &[u8]) -> Option<Events> {
        match kv_event::decode_engine(payload) {
            Ok(batch) => {
                self.metrics.events_skipped.inc_by(batch.skipped.into());
                Some(batch.events)
            }
            Err(error) => {
                self.malformed();
                tracing::debug!(worker = %self.worker, %error, "an event batch is malformed");
                None
            }
        }
    }

    fn answer(&mut self, answer: Answer) {
        let Answer { generation, from_start, batches } = answer;
        if generation != self.generation {
            return;
        }
        let batches = match batches {
            Ok(batches) => batches.into_iter().map(|(n, payload)| (n, self.decode(&payload))),
            Err(reason) => {
                self.metrics.replays_failed.inc();
                FeedCounts::count(&self.counts.replay_errors);
                tracing::debug!(worker = %self.worker, reason, "a replay failed");
                return match from_start {
                    true => self.follow_live(),
                    false => self.feed(Input::ReplayFailed),
                };
            }
        };
        if !from_start {
            let decoded: Option<Vec<_>> = batches.map(|(n, batch)| Some((n, batch?))).collect();
            return self.feed(decoded.map_or(Input::ReplayFailed, Input::Replayed));
        }
        match unbroken_end(batches) {
            Some((next, batches)) => self.replace(next, &batches),
            None => self.follow_live(),
        }
    }

    /// Begins with the first live message that came, or that will.
    fn follow_live(&mut self) {
        match self.start {
            Start::Asked(Some(first)) => self.follow_from(first),
            Start::Asked(None) | Start::NextMessage => self.start = Start::NextMessage,
            Start::Done => {}
        }
    }

    fn follow_from(&mut self, next: u64) {
        self.replace(next, &[]);
    }

    /// Takes it that the engine holds what these batches say and nothing else, and follows from
    /// batch `next` on.
    fn replace(&mut self, next: u64, batches: &[Events]) {
        self.start = Start::Done;
        self.forget();
        for events in batches {
            self.close(events);
        }
        self.feed(Input::Snapshot { next });
    }

    fn forget(&mut self) {
        self.translator.clear();
        self.closure.clear();
    }

    /// Leaves in `closed` what the index has to be told of these events.
    fn close(&mut self, events: &[EngineEvent]) {
        self.translated.clear();
        self.closed.clear();
        let skipped = self.translator.translate(events, &mut self.translated);
        for event in &self.translated {
            self.closure.apply(event, &mut self.closed);
        }
        self.count(skipped);
    }

    fn count(&mut self, skipped: Skipped) {
        self.metrics.feeds.add(self.translator.take_tally());
        self.metrics.events_skipped.inc_by(skipped.events);
        self.metrics.block_size_mismatches.inc_by(skipped.block_sizes);
        self.metrics.blocks_skipped.inc_by(skipped.blocks);
    }

    fn feed(&mut self, input: Input<Events>) {
        let Some(feed) = &mut self.feed else { return };
        let mut actions = Vec::new();
        feed.take(input, &mut actions);
        self.act(actions);
    }

    /// Does what is to be done, and what follows from it.
    fn act(&mut self, actions: Vec<Action<Events>>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Unknown => {
                    self.forget();
                    self.sink.unknown(self.worker);
                }
                Action::Replace => {
                    let blocks = self.closure.blocks().collect();
                    self.sink.replace(self.worker, self.generation, blocks);
                }
                Action::Apply(events) => self.apply(&events),
                Action::AskSnapshot => self.ask_all(),
                Action::AskReplay(next) => {
                    if self.replay_endpoint.is_some() {
                        self.ask_replay(next, Duration::ZERO);
                    } else if let Some(feed) = &mut self.feed {
                        let mut more = Vec::new();
                        feed.take(Input::ReplayFailed, &mut more);
                        actions.extend(more);
                    }
                }
            }
        }
    }

    fn apply(&mut self, events: &[EngineEvent]) {
        self.metrics.batches.inc();
        self.close(events);
        if !self.closed.is_empty() {
            self.sink.apply(self.worker, self.generation, &self.closed);
        }
    }

    /// Asks for all that the engine remembers, if it can be asked.
    fn ask_all(&mut self) {
        if self.replay_endpoint.is_none() {
            self.start = Start::NextMessage;
            return;
        }
        self.start = Start::Asked(None);
        let delay = self.pace.delay(Instant::now());
        self.ask_replay(0, delay);
    }

    fn ask_replay(&mut self, start: u64, delay: Duration) {
        let Some(endpoint) = self.replay_endpoint.clone() else { return };
        self.metrics.replays.inc();
        let (generation, from_start) = (self.generation, self.start != Start::Done);
        self.questions.spawn(async move {
            tokio::time::sleep(delay).await;
            let batches = subscribe::replay(&endpoint, None, start).await;
            Answer { generation, from_start, batches }
        });
    }
}
