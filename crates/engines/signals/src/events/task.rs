//! A follower's work on messages: numbering, replays, lives.

use super::control::View;
use super::dialect::Dialect;
use super::listener::EngineListener;
use super::metrics::{FeedCounts, FollowMetrics};
use super::outer::OuterBlocks;
use super::recover::{Pace, unbroken_end};
use super::settings::FollowSettings;
use super::sink::WorkerSink;
use super::translate::{SkipCounts, Translator};
use bytes::Bytes;
use stator_events::feed::{Action, Feed, Input};
use stator_events::subscribe::{self, News};
use stator_placement::Closure;
use stator_protos::kv_event::{EngineEvent, KvEvent};
use stator_protos::{Generation, WorkerRank};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::Instant;

type Events = Vec<EngineEvent>;

/// The task that follows one engine.
pub(super) struct Task {
    worker: WorkerRank,
    dialect: Dialect,
    translator: Translator,
    /// Turns translated events into those that the index needs.
    closure: Closure,
    sink: Arc<dyn WorkerSink>,
    /// Blocks outside the engine, which are in the closure as well.
    outer: Option<Arc<dyn OuterBlocks>>,
    listener: Option<Arc<dyn EngineListener>>,
    metrics: FollowMetrics,
    counts: Arc<FeedCounts>,
    generation: Generation,
    /// `None` before the first connection.
    feed: Option<Feed<Events>>,
    start: Start,
    /// Number of the last live message of this life.
    last: Option<u64>,
    /// Number of the latest message of this life, live or replayed.
    seen: Option<u64>,
    /// Whether the sink knows what the engine itself holds.
    known: bool,
    /// Last batch that describes a cache which was reset since; the engine itself may report the
    /// reset later.
    cleared_up_to: Option<u64>,
    replay_endpoint: Option<String>,
    pub(super) questions: JoinSet<Answer>,
    pace: Pace,
    /// Scratch space.
    translated: Vec<KvEvent>,
    closed: Vec<KvEvent>,
}

/// State of the search for the feed's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// The beginning is found, or there is no connection.
    Done,
    /// A full replay was requested; holds the first live message since, if one came.
    Asked(Option<u64>),
    /// The next live message is the beginning.
    NextMessage,
}

/// The result of a replay request.
pub(super) struct Answer {
    generation: Generation,
    from_start: bool,
    batches: Result<Vec<(u64, Bytes)>, String>,
}

impl Task {
    pub(super) fn new(
        worker: WorkerRank,
        settings: FollowSettings,
        sink: Arc<dyn WorkerSink>,
        dialect: Dialect,
    ) -> Self {
        let FollowSettings { block_size, blocks_max } = settings;
        Self {
            worker,
            dialect,
            translator: Translator::new(block_size, blocks_max),
            closure: Closure::new(blocks_max),
            sink,
            outer: None,
            listener: None,
            metrics: FollowMetrics::default(),
            counts: Arc::default(),
            generation: Generation(0),
            feed: None,
            start: Start::Done,
            last: None,
            seen: None,
            known: false,
            cleared_up_to: None,
            replay_endpoint: None,
            questions: JoinSet::new(),
            pace: Pace::default(),
            translated: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// Sets the endpoint for replays of missed messages.
    pub(super) fn replayed_from(self, replay_endpoint: Option<String>) -> Self {
        Self { replay_endpoint, ..self }
    }

    pub(super) fn counted(self, metrics: FollowMetrics, counts: Arc<FeedCounts>) -> Self {
        Self { metrics, counts, ..self }
    }

    /// Adds blocks outside the engine.
    pub(super) fn beside(self, outer: Arc<dyn OuterBlocks>) -> Self {
        Self { outer: Some(outer), ..self }
    }

    /// Adds a listener to the engine's own events.
    pub(super) fn heard_by(self, listener: Arc<dyn EngineListener>) -> Self {
        Self { listener: Some(listener), ..self }
    }

    /// Follows changes of the blocks outside the engine.
    pub(super) fn outer_changed(&mut self) {
        // Before the first connection there is no life that has blocks: it begins with all of them.
        let Some(outer) = self.outer.as_ref().filter(|_| self.feed.is_some()) else { return };
        self.closed.clear();
        for event in &outer.take_changes() {
            self.closure.apply(event, &mut self.closed);
        }
        if !self.closed.is_empty() {
            self.sink.apply(self.worker, self.generation, &self.closed);
        }
    }

    pub(super) fn counts(&self) -> &FeedCounts {
        &self.counts
    }

    pub(super) fn view(&self) -> View<'_> {
        View { generation: self.generation, known: self.known, closure: &self.closure }
    }

    /// Starts over after a reset of the engine's cache.
    pub(super) fn cleared(&mut self) {
        if self.feed.is_none() {
            return;
        }
        self.cleared_up_to = self.seen.or(self.cleared_up_to);
        // A replay that is on its way may have what was there before.
        self.questions = JoinSet::new();
        self.start_over();
        match self.seen {
            Some(seen) => self.follow_from(seen.saturating_add(1)),
            None => self.start = Start::NextMessage,
        }
    }

    /// Begins another life after the engine's process was replaced. If a connection will follow,
    /// the blocks stay unknown until then.
    pub(super) fn restarted(&mut self, connects: bool) {
        self.cleared_up_to = None;
        if !connects {
            return self.begin();
        }
        self.new_life();
        (self.feed, self.start) = (None, Start::Done);
        self.unknown();
    }

    pub(super) fn news(&mut self, news: News) {
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

    /// Begins a life of which nothing is known yet.
    fn begin(&mut self) {
        self.new_life();
        let mut actions = Vec::new();
        self.feed = Some(Feed::start(&mut actions));
        self.act(actions);
    }

    fn new_life(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        self.generation = Generation(now.max(self.generation.0.saturating_add(1)));
        self.metrics.lives.inc();
        tracing::debug!(worker = %self.worker, generation = %self.generation, "an engine's life");
        self.sink.life(self.worker, self.generation);
        // What the life before was asked answers nothing any more.
        self.questions = JoinSet::new();
        (self.last, self.seen) = (None, None);
        self.dialect.restart();
    }

    /// Forgets everything known of this life and follows it anew.
    fn start_over(&mut self) {
        let mut asked = Vec::new();
        // What it asks for first is found in another way.
        self.feed = Some(Feed::start(&mut asked));
        self.unknown();
    }

    fn unknown(&mut self) {
        self.known = false;
        self.forget();
        self.sink.unknown(self.worker);
        // Whatever the engine holds, what is outside of it is known.
        let outer: Vec<_> = self.closure.blocks().collect();
        if !outer.is_empty() {
            self.sink.replace(self.worker, self.generation, outer);
        }
    }

    fn message(&mut self, number: u64, payload: &[u8]) {
        if self.last.is_some_and(|last| number <= last) {
            // Numbers only start again with the process.
            self.cleared_up_to = None;
            self.begin();
        }
        (self.last, self.seen) = (Some(number), Some(number));
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
        match self.dialect.decode(payload) {
            Ok(batch) => {
                self.metrics.events_skipped.inc_by(batch.skipped.into());
                self.metrics.fields_skipped.inc_by(batch.fields_skipped.into());
                Some(batch.events)
            }
            Err(error) => {
                self.malformed();
                tracing::debug!(worker = %self.worker, %error, "an event batch is malformed");
                None
            }
        }
    }

    pub(super) fn answer(&mut self, answer: Answer) {
        let Answer { generation, from_start, batches } = answer;
        if generation != self.generation {
            return;
        }
        match batches {
            Ok(batches) if from_start => self.remembered(batches),
            Ok(batches) => {
                let decoded = batches.into_iter().map(|(n, batch)| Some((n, self.decode(&batch)?)));
                let decoded: Option<Vec<_>> = decoded.collect();
                self.feed(decoded.map_or(Input::ReplayFailed, Input::Replayed));
            }
            Err(reason) => {
                self.metrics.replays_failed.inc();
                FeedCounts::count(&self.counts.replay_errors);
                tracing::debug!(worker = %self.worker, reason, "a replay failed");
                match from_start {
                    true => self.follow_live(),
                    false => self.feed(Input::ReplayFailed),
                }
            }
        }
    }

    /// Begins with the replay of all that the engine remembers.
    fn remembered(&mut self, batches: Vec<(u64, Bytes)>) {
        let newest = batches.last().map(|(number, _)| *number);
        if newest < self.cleared_up_to {
            // Numbers started again: what was reset is another process's.
            self.cleared_up_to = None;
        }
        let batches = batches.into_iter().map(|(number, payload)| {
            let believed = Some(number) > self.cleared_up_to;
            (number, self.decode(&payload).filter(|_| believed))
        });
        match unbroken_end(batches) {
            Some((next, batches)) => self.replace(next, &batches),
            None => self.follow_live(),
        }
    }

    /// Begins with the first live message since the request, or with the next one.
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

    /// Takes these batches for the engine's whole content, and follows from batch `next` on.
    fn replace(&mut self, next: u64, batches: &[Events]) {
        self.start = Start::Done;
        self.seen = self.seen.max(next.checked_sub(1));
        self.forget();
        for events in batches {
            self.close(events);
        }
        self.feed(Input::Snapshot { next });
    }

    fn forget(&mut self) {
        self.dialect.forget();
        self.translator.clear();
        self.closure.clear();
        // Nobody is told of these here: who calls this tells all that is held then.
        self.closed.clear();
        self.close_outer();
    }

    /// Adds all blocks outside the engine to a closure that has none of them.
    fn close_outer(&mut self) {
        let Some(outer) = &self.outer else { return };
        for event in &outer.all() {
            self.closure.apply(event, &mut self.closed);
        }
    }

    /// Translates events into `closed`, in the form that the index needs.
    fn close(&mut self, events: &[EngineEvent]) {
        self.translated.clear();
        self.closed.clear();
        let events = self.dialect.settle(events);
        if let Some(listener) = &self.listener {
            listener.heard(&events);
        }
        let skipped = self.translator.translate(&events, &mut self.translated);
        let translated = std::mem::take(&mut self.translated);
        for event in &translated {
            self.closure.apply(event, &mut self.closed);
            if *event == KvEvent::Cleared {
                // The engine's own are gone, and with them all that the closure had.
                self.close_outer();
            }
        }
        self.translated = translated;
        self.count(skipped);
    }

    fn count(&mut self, skipped: SkipCounts) {
        self.metrics.add(&self.translator.take_tally());
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

    /// Carries out actions, and those that follow from them.
    fn act(&mut self, actions: Vec<Action<Events>>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Unknown => self.unknown(),
                Action::Replace => {
                    self.known = true;
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
        if events.iter().any(|found| found.event == KvEvent::Cleared) {
            // The engine has said so itself by now, and its replays say so too.
            self.cleared_up_to = None;
        }
        self.close(events);
        if !self.closed.is_empty() {
            self.sink.apply(self.worker, self.generation, &self.closed);
        }
    }

    /// Requests a full replay, where the engine has an endpoint for it.
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
