//! Follows one engine, whichever way its messages come.

use super::control::{Command, Control};
use super::dialect::Dialect;
use super::listener::EngineListener;
use super::metrics::{FeedCounts, FollowMetrics};
use super::outer::OuterBlocks;
use super::settings::FollowSettings;
use super::sink::WorkerSink;
use super::task::Task;
use super::trtllm::Places;
use stator_events::subscribe::{self, News, Subscription};
use stator_protos::WorkerRank;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Most messages that wait; the publisher is held up beyond them.
pub const NEWS_MAX: usize = 1024;

/// Transport of an engine's messages.
#[derive(Debug)]
pub enum Source {
    /// vLLM's and SGLang's sockets.
    Zmq {
        /// The live feed.
        subscription: Subscription,
        /// Endpoint for replays, if the engine gives them.
        replay_endpoint: Option<String>,
    },
    /// Messages of the ZMQ kind that another task collects.
    Collected {
        /// The messages; their sender starts each connection with [`News::Subscribed`].
        news: mpsc::Receiver<News>,
        /// Endpoint for replays, if the engine gives them.
        replay_endpoint: Option<String>,
    },
    /// An engine that tells nothing: only the blocks outside of it are known, see
    /// [`Follower::beside`].
    Silent,
    /// One rank of a TensorRT-LLM server; made by [`super::TrtLlmDrain::new`].
    TrtLlm {
        /// Messages from the drain.
        news: mpsc::Receiver<News>,
        /// Tokens per block of the engine.
        block_size: NonZeroU32,
    },
}

/// Follows the events of one engine, or of one of its ranks.
pub struct Follower {
    task: Task,
    source: Source,
    control: Control,
    commands: mpsc::Receiver<Command>,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Follower {
    /// Makes a follower that has not begun; it reports to `sink` under `worker`.
    pub fn new(
        worker: WorkerRank,
        source: Source,
        settings: FollowSettings,
        sink: Arc<dyn WorkerSink>,
    ) -> Self {
        let (dialect, replay_endpoint) = match &source {
            Source::Zmq { replay_endpoint, .. } | Source::Collected { replay_endpoint, .. } => {
                (Dialect::MsgPack, replay_endpoint.clone())
            }
            Source::Silent => (Dialect::MsgPack, None),
            Source::TrtLlm { block_size, .. } => {
                let places = Places::new(settings.blocks_max);
                (Dialect::TrtLlm { block_size: *block_size, places }, None)
            }
        };
        let task = Task::new(worker, settings, sink, dialect).replayed_from(replay_endpoint);
        let (control, commands) = Control::new();
        Self { task, source, control, commands }
    }

    /// Adds counters to the follower.
    #[must_use]
    pub fn counted(self, metrics: FollowMetrics, counts: Arc<FeedCounts>) -> Self {
        Self { task: self.task.counted(metrics, counts), ..self }
    }

    /// Adds blocks outside the engine: the sink hears of them as of the engine's own, also while
    /// those are unknown.
    #[must_use]
    pub fn beside(self, outer: Arc<dyn OuterBlocks>) -> Self {
        Self { task: self.task.beside(outer), ..self }
    }

    /// Adds a listener to the engine's own events.
    #[must_use]
    pub fn heard_by(self, listener: Arc<dyn EngineListener>) -> Self {
        Self { task: self.task.heard_by(listener), ..self }
    }

    /// The handle that controls the follower while it runs.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Follows the engine until dropped, or until no more messages can come.
    pub async fn run(self) {
        let Self { mut task, source, control: _control, mut commands } = self;
        let mut inlet = Inlet::open(source);
        loop {
            // Commands run between two messages, so that they see whole batches only.
            tokio::select! {
                item = inlet.news.recv() => match item {
                    Some(item) => {
                        task.counts().waiting.store(inlet.news.len(), Ordering::Relaxed);
                        task.news(item);
                    }
                    None => return,
                },
                Some(answer) = task.questions.join_next() => match answer {
                    Ok(answer) => task.answer(answer),
                    Err(error) => tracing::error!(%error, "a question to an engine failed"),
                },
                Some(command) = commands.recv() => match command {
                    Command::Look(look) => look(&task.view()),
                    Command::Cleared(done) => {
                        task.cleared();
                        let _ = done.send(());
                    }
                    Command::OuterChanged => task.outer_changed(),
                    Command::Restarted(done) => {
                        inlet.reopen();
                        task.restarted(inlet.subscription.is_some());
                        let _ = done.send(());
                    }
                },
            }
        }
    }
}

/// The follower's incoming messages.
struct Inlet {
    news: mpsc::Receiver<News>,
    /// The subscription that this inlet holds; `None` where another task collects the messages.
    subscription: Option<Subscription>,
    /// Keeps the messages of a silent engine from ending.
    _silent: Option<mpsc::Sender<News>>,
    /// Dropping it ends the subscription.
    _subscriber: JoinSet<()>,
}

impl Inlet {
    fn open(source: Source) -> Self {
        match source {
            Source::Zmq { subscription, .. } => {
                let (news, _subscriber) = subscribe(&subscription);
                Self { news, subscription: Some(subscription), _silent: None, _subscriber }
            }
            Source::Silent => {
                let (silent, news) = mpsc::channel(1);
                // There is room for one: its life begins, and nothing follows.
                let _ = silent.try_send(News::Subscribed);
                let (_silent, _subscriber) = (Some(silent), JoinSet::new());
                Self { news, subscription: None, _silent, _subscriber }
            }
            Source::Collected { news, .. } | Source::TrtLlm { news, .. } => {
                Self { news, subscription: None, _silent: None, _subscriber: JoinSet::new() }
            }
        }
    }

    /// Drops the messages that wait; only later ones are received.
    fn reopen(&mut self) {
        match &self.subscription {
            Some(subscription) => (self.news, self._subscriber) = subscribe(subscription),
            None => while self.news.try_recv().is_ok() {},
        }
    }
}

fn subscribe(subscription: &Subscription) -> (mpsc::Receiver<News>, JoinSet<()>) {
    let (sender, news) = mpsc::channel(NEWS_MAX);
    let mut subscriber = JoinSet::new();
    subscriber.spawn(subscribe::follow(subscription.clone(), sender));
    (news, subscriber)
}
