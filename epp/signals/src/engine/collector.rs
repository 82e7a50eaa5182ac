//! Receives events of engines that connect to the picker, and tells them apart by their topics.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_epp_scheduler::Endpoint;
use stator_events::subscribe::{self, News};
use stator_protos::WorkerRank;
use stator_signals::events::NEWS_MAX;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// A socket that engines connect to. A topic is `kv@ENGINE` or `kv@ENGINE@MODEL`, with any word
/// before the first `@`; the engine is named by its address, with or without the port of its
/// first rank, or by its pod's name, with or without the namespace.
///
/// Source: the topics that the guides of llm-d give to vLLM.
pub(super) struct Collector {
    feeds: Arc<Mutex<Feeds>>,
    /// Dropping it closes the socket.
    _listener: JoinSet<()>,
}

/// The engines that are followed, by what their topics call them.
#[derive(Default)]
struct Feeds {
    names: FxHashMap<String, WorkerRank>,
    feeds: FxHashMap<WorkerRank, Feed>,
}

struct Feed {
    news: mpsc::Sender<News>,
    /// Whether anything came.
    begun: bool,
}

impl Collector {
    /// Listens at `endpoint` for topics that begin with `prefix`. Must be called within a Tokio
    /// runtime.
    pub(super) fn start(endpoint: String, prefix: String) -> Self {
        let feeds = Arc::<Mutex<Feeds>>::default();
        let (heard, mut listener) = (feeds.clone(), JoinSet::new());
        listener.spawn(async move {
            subscribe::collect(&endpoint, &prefix, |news| heard.lock().deliver(news)).await;
        });
        Self { feeds, _listener: listener }
    }

    /// Opens a channel for what `worker` publishes from now on.
    pub(super) fn open(&self, worker: WorkerRank) -> (mpsc::Sender<News>, mpsc::Receiver<News>) {
        let (news, heard) = mpsc::channel(NEWS_MAX);
        let feed = Feed { news: news.clone(), begun: false };
        self.feeds.lock().feeds.insert(worker, feed);
        (news, heard)
    }

    /// Follows the engines of these endpoints, and no others.
    pub(super) fn follow(&self, endpoints: &[Arc<Endpoint>]) {
        let mut feeds = self.feeds.lock();
        feeds.names.clear();
        for endpoint in endpoints {
            for name in names(endpoint) {
                feeds.names.insert(name, endpoint.worker);
            }
        }
        let Feeds { names, feeds } = &mut *feeds;
        feeds.retain(|worker, _| names.values().any(|named| named == worker));
    }
}

impl Feeds {
    /// Sends a message on to whom it is of. Where nobody takes it, the numbers of later ones tell.
    fn deliver(&mut self, news: News) {
        let News::Message(topic, ..) = &news else { return };
        let Some(worker) = engine(topic).and_then(|engine| self.names.get(engine)) else {
            tracing::debug!(topic = %String::from_utf8_lossy(topic), "events of no endpoint");
            return;
        };
        let Some(feed) = self.feeds.get_mut(worker) else { return };
        if !feed.begun {
            feed.begun = feed.news.try_send(News::Subscribed).is_ok();
        }
        if feed.begun && feed.news.try_send(news).is_err() {
            tracing::debug!(%worker, "events come faster than they are read");
        }
    }
}

/// The engine that a topic names.
fn engine(topic: &[u8]) -> Option<&str> {
    std::str::from_utf8(topic).ok()?.split('@').nth(1)
}

fn names(endpoint: &Endpoint) -> Vec<String> {
    let Endpoint { address, namespace, name, pod, .. } = endpoint;
    let mut names = vec![address.to_string(), name.to_string()];
    if endpoint.worker.rank == 0 {
        names.extend([address.ip().to_string(), pod.to_string(), format!("{namespace}/{pod}")]);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::tests::endpoint;
    use bytes::Bytes;

    fn message(topic: &str) -> News {
        News::Message(topic.to_owned().into(), 7, Bytes::new())
    }

    #[tokio::test]
    async fn topics_name_engines_by_address_or_pod() {
        let first = Arc::new(endpoint("10.0.0.1:8000", &[]));
        let mut second = endpoint("10.0.0.1:8001", &[]);
        (second.worker.rank, second.name) = (1, "pod-rank-1".into());
        let second = Arc::new(second);
        let feeds = Arc::<Mutex<Feeds>>::default();
        let collector = Collector { feeds: feeds.clone(), _listener: JoinSet::new() };
        collector.follow(&[first.clone(), second.clone()]);
        let mut ears = [&first, &second].map(|endpoint| collector.open(endpoint.worker).1);
        let mut check = |topic: &str, wanted: Option<usize>| {
            feeds.lock().deliver(message(topic));
            let heard: Vec<_> = ears
                .iter_mut()
                .map(|ear| {
                    let news = std::iter::from_fn(|| ear.try_recv().ok());
                    news.filter(|news| matches!(news, News::Message(..))).count()
                })
                .collect();
            let expected: Vec<_> = (0..2).map(|at| usize::from(wanted == Some(at))).collect();
            assert_eq!(heard, expected, "{topic}");
        };
        check("kv@10.0.0.1:8000@model", Some(0));
        check("kv@10.0.0.1@a@b", Some(0));
        check("kv@default/pod", Some(0));
        check("kv@10.0.0.1:8001@model", Some(1));
        check("kv@pod-rank-1@model", Some(1));
        check("kv@10.0.0.2:8000@model", None);
        check("kv", None);
        collector.follow(&[first]);
        check("kv@10.0.0.1:8001@model", None);
        assert_eq!(feeds.lock().feeds.len(), 1);
    }
}
