//! The event plane as a whole: what feeds it, and the tasks that publish, replay and repeat.

use super::queue::Queue;
use super::subscribers::Subscribers;
use super::{Feeds, publish, replay, serve};
use crate::metrics::AgentMetrics;
use stator_runtime::Shutdown;
use stator_zmtp::{Publisher, Router};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Pause between two reports of every worker's load.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// The event plane of an agent: its feeds, and the subscribers to them.
#[derive(Debug)]
pub(crate) struct EventPlane {
    queue: Arc<Queue>,
    feeds: Arc<Feeds>,
    subscribers: Arc<Subscribers>,
    metrics: AgentMetrics,
}

/// The tasks of the event plane.
#[derive(Debug)]
pub(crate) struct EventTasks {
    publishing: JoinHandle<()>,
    /// Over ZMQ, where its socket is open.
    replaying: Option<JoinHandle<()>>,
    /// Has no end of its own.
    heartbeat: JoinHandle<()>,
}

impl EventPlane {
    /// An event plane without feeds or subscribers; each feed is to keep `log_bytes` for replay.
    pub(crate) fn new(log_bytes: usize, metrics: AgentMetrics) -> Self {
        let queue = Arc::new(Queue::default());
        let feeds = Arc::new(Feeds::new(log_bytes, queue.clone(), metrics.clone()));
        let subscribers = Arc::new(Subscribers::new(metrics.clone()));
        Self { queue, feeds, subscribers, metrics }
    }

    /// The feeds of the workers.
    pub(crate) fn feeds(&self) -> Arc<Feeds> {
        self.feeds.clone()
    }

    /// The service of the request plane that streams events until `ended`.
    pub(crate) fn service(&self, ended: &Shutdown) -> serve::Service {
        let (feeds, subscribers) = (self.feeds.clone(), self.subscribers.clone());
        serve::Service::new(feeds, subscribers, self.metrics.clone(), ended.clone())
    }

    /// Starts to publish, and to replay and publish on the ZMQ sockets that are open, until `ended`.
    pub(crate) fn spawn(
        self,
        publisher: Option<Publisher>,
        replayer: Option<Router>,
        ended: &Shutdown,
    ) -> EventTasks {
        let Self { queue, feeds, subscribers, metrics } = self;
        EventTasks {
            publishing: tokio::spawn(publish::run(
                queue,
                publish::Outlets { subscribers, publisher },
                metrics.clone(),
                ended.clone(),
            )),
            replaying: replayer.map(|router| {
                tokio::spawn(replay::run(feeds.clone(), router, metrics, ended.clone()))
            }),
            heartbeat: tokio::spawn(heartbeat(feeds)),
        }
    }
}

impl EventTasks {
    /// Ends the heartbeat, and waits at most `limit` for each of the other tasks, which must have
    /// been told to end.
    pub(crate) async fn end(self, limit: Duration) {
        self.heartbeat.abort();
        for mut plane in [Some(self.publishing), self.replaying].into_iter().flatten() {
            // One that answers a peer who does not read is not waited for.
            if tokio::time::timeout(limit, &mut plane).await.is_err() {
                plane.abort();
            }
        }
    }
}

/// Repeats every worker's last load, so that a quiet worker's subscribers know that nothing was
/// lost before the silence.
async fn heartbeat(feeds: Arc<Feeds>) {
    let mut beat = tokio::time::interval(HEARTBEAT);
    loop {
        beat.tick().await;
        feeds.repeat_loads();
    }
}
