//! One response that is kept: its items, and its events while it is worked on.

use bytes::Bytes;
use parking_lot::Mutex;
use stator_api::responses::ResponseEvents;
use stator_api::space::PrefixSpace;
use std::sync::Arc;
use tokio::sync::watch;

/// Text behind each event.
const EVENT_END: &[u8] = b"\n\n";

/// A response that is kept.
pub(crate) struct ResponseRecord {
    /// Owner of the response.
    pub space: PrefixSpace,
    /// The first response of its conversation, by its id without the prefix.
    pub session: Arc<str>,
    /// Items of the responses before it, oldest first; shared with them.
    pub earlier: Vec<Arc<str>>,
    /// Items of its own request.
    pub input: Vec<Arc<str>>,
    progress: Mutex<ResponseProgress>,
    /// Number of the next event; those who follow wait for it to change.
    news: watch::Sender<u64>,
    /// True once its client wants it no more.
    cancelled: watch::Sender<bool>,
    /// Whether it is generated while nobody waits.
    pub background: bool,
}

struct ResponseProgress {
    response: ResponseBody,
    /// The events so far of a response in the background, and the number of the first of each.
    log: Vec<(u64, Bytes)>,
}

/// A response, from whom its object is to be had.
enum ResponseBody {
    /// This process works on the response, or did.
    Written(ResponseEvents),
    /// An earlier process finished it.
    Read(FinishedResponse),
}

/// A response that is over, as bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FinishedResponse {
    /// Its object.
    pub object: Bytes,
    /// Its logged events, all of them or none.
    pub events: Bytes,
    /// Its output items.
    pub items: Vec<Arc<str>>,
}

impl ResponseBody {
    fn is_over(&self) -> bool {
        match self {
            Self::Written(events) => events.is_over(),
            Self::Read(_) => true,
        }
    }

    fn object(&self) -> Vec<u8> {
        match self {
            Self::Written(events) => {
                let mut out = Vec::new();
                events.push_object(&mut out);
                out
            }
            Self::Read(finished) => finished.object.to_vec(),
        }
    }

    fn items(&self) -> Vec<Arc<str>> {
        match self {
            Self::Written(events) => events.items().collect(),
            Self::Read(finished) => finished.items.clone(),
        }
    }

    /// Number of the next event.
    fn next_number(&self) -> u64 {
        match self {
            Self::Written(events) => events.next_number(),
            Self::Read(finished) => {
                memchr::memmem::find_iter(&finished.events, EVENT_END).count() as u64
            }
        }
    }
}

impl ResponseRecord {
    /// A response as it is now.
    pub(crate) fn new(keeping: &ResponseKeeping, events: ResponseEvents) -> Self {
        Self::with(keeping, ResponseBody::Written(events), Vec::new())
    }

    /// A response that is over.
    pub(crate) fn finished(keeping: &ResponseKeeping, finished: FinishedResponse) -> Self {
        let log = (!finished.events.is_empty()).then(|| (0, finished.events.clone()));
        Self::with(keeping, ResponseBody::Read(finished), log.into_iter().collect())
    }

    fn with(keeper: &ResponseKeeping, response: ResponseBody, log: Vec<(u64, Bytes)>) -> Self {
        Self {
            space: keeper.space,
            session: keeper.session.clone(),
            earlier: keeper.earlier.clone(),
            input: keeper.input.clone(),
            progress: Mutex::new(ResponseProgress { response, log }),
            news: watch::Sender::new(0),
            cancelled: watch::Sender::new(false),
            background: keeper.background,
        }
    }

    /// The response's object.
    pub(crate) fn object(&self) -> Vec<u8> {
        self.progress.lock().response.object()
    }

    /// All items that a response after it begins with.
    pub(crate) fn items(&self) -> Vec<Arc<str>> {
        let all = self.earlier.iter().chain(&self.input).cloned();
        all.chain(self.progress.lock().response.items()).collect()
    }

    /// The item of this id, which is the one at `at` of its own input or of its output.
    pub(crate) fn item(&self, id: &str, at: usize) -> Option<Arc<str>> {
        let given = self.input.get(at).cloned();
        let made = || self.progress.lock().response.items().into_iter().nth(at);
        let is_it = |item: &Arc<str>| item_id(item).as_deref() == Some(id);
        given.filter(is_it).or_else(|| made().filter(is_it))
    }

    /// Changes the response and logs the events of the change. One that is over stays as it is.
    pub(crate) fn advance(&self, write: impl FnOnce(&mut ResponseEvents, &mut Vec<u8>)) {
        let mut progress = self.progress.lock();
        let ResponseProgress { response: ResponseBody::Written(events), log } = &mut *progress
        else {
            return;
        };
        if events.is_over() {
            return;
        }
        let (first, mut out) = (events.next_number(), Vec::new());
        write(events, &mut out);
        if !out.is_empty() {
            log.push((first, out.into()));
        }
        let next = events.next_number();
        drop(progress);
        self.news.send_modify(|number| *number = next.max(*number + 1));
    }

    /// Whether nothing more comes.
    pub(crate) fn is_over(&self) -> bool {
        self.progress.lock().response.is_over()
    }

    /// The logged events from number `from` on, and the number of the next.
    pub(crate) fn events(&self, from: u64) -> (Vec<Bytes>, u64) {
        let progress = self.progress.lock();
        let logged = progress.log.iter();
        let wanted = logged.flat_map(|(first, events)| since(*first, events, from));
        (wanted.collect(), progress.response.next_number())
    }

    /// Follows changes.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Has the response end.
    pub(crate) fn cancel(&self) {
        self.cancelled.send_replace(true);
        self.advance(|events, _| events.cancel());
    }

    /// Waits until nobody wants the response.
    pub(crate) async fn unwanted(&self) {
        let mut cancelled = self.cancelled.subscribe();
        // The sender lives as long as the record.
        let _ = cancelled.wait_for(|cancelled| *cancelled).await;
    }

    /// The response as bytes; one that is not over as it is now.
    pub(crate) fn finish(&self) -> FinishedResponse {
        let progress = self.progress.lock();
        let events: Vec<_> = progress.log.iter().map(|(_, events)| events.clone()).collect();
        FinishedResponse {
            object: progress.response.object().into(),
            events: events.concat().into(),
            items: progress.response.items(),
        }
    }

    /// Bytes that it takes, about: its own items, and its object as the measure of the rest.
    pub(crate) fn bytes(&self) -> usize {
        let input: usize = self.input.iter().map(|item| item.len()).sum();
        let log: usize = self.progress.lock().log.iter().map(|(_, events)| events.len()).sum();
        let shared = self.earlier.len() * size_of::<Arc<str>>();
        size_of::<Self>() + input + log + shared + 2 * self.object().len()
    }

    #[cfg(test)]
    pub(crate) fn of_tests(space: PrefixSpace) -> Self {
        let identity = stator_api::delta::Identity { id: "r", created: 0, model: "m" };
        let events =
            ResponseEvents::new(&identity, stator_api::responses::RequestEcho::default(), || 0);
        Self::new(&ResponseKeeping::of_tests(space, &[]), events)
    }
}

/// Parts of a response that its request decides.
#[derive(Clone)]
pub(crate) struct ResponseKeeping {
    /// Owner of the response.
    pub space: PrefixSpace,
    /// The first response of its conversation.
    pub session: Arc<str>,
    /// Items of the responses before it.
    pub earlier: Vec<Arc<str>>,
    /// Items of the request.
    pub input: Vec<Arc<str>>,
    /// Whether it is generated while nobody waits.
    pub background: bool,
}

impl ResponseKeeping {
    /// The parts of a response in the background that was asked for with these items.
    #[cfg(test)]
    pub(crate) fn of_tests(space: PrefixSpace, input: &[&str]) -> Self {
        let input = input.iter().map(|item| (*item).into()).collect();
        Self { space, session: "first".into(), earlier: Vec::new(), input, background: true }
    }
}

/// The id of an item.
pub(super) fn item_id(item: &str) -> Option<String> {
    let item: serde_json::Value = serde_json::from_str(item).ok()?;
    Some(item.get("id")?.as_str()?.to_owned())
}

/// The events of `batch`, the first of which has the number `first`, from the number `from` on.
fn since(first: u64, batch: &Bytes, from: u64) -> Option<Bytes> {
    let mut start = 0;
    let mut number = first;
    while number < from {
        let end = memchr::memmem::find(&batch[start..], EVENT_END)?;
        start += end + 2;
        number += 1;
    }
    (start < batch.len()).then(|| batch.slice(start..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standalone::responses::tenant_space;
    use stator_api::Delta;
    use stator_api::delta::Usage;

    #[tokio::test]
    async fn events_are_replayed_from_any_number() {
        let record = ResponseRecord::of_tests(tenant_space(1));
        let mut news = record.follow();
        record.advance(|events, out| events.queue(out));
        record.advance(|events, out| events.begin(out));
        let delta = Delta { text: "hello", ..Delta::default() };
        record.advance(|events, out| events.delta(out, &delta));
        news.changed().await.expect("the record lives");
        let count = |from| {
            let (batches, next) = record.events(from);
            let text: Vec<u8> = batches.concat();
            (String::from_utf8_lossy(&text).matches("event: ").count() as u64, next)
        };
        let (all, next) = count(0);
        assert_eq!(all, next);
        for from in 0..=next {
            assert_eq!(count(from), (next - from, next));
        }
        record.advance(|events, out| events.end(out, Usage::default()));
        assert!(record.is_over());
        let (before, over) = count(0);
        record.cancel();
        assert_eq!(count(0), (before, over), "it was over");
        record.unwanted().await;
    }
}
