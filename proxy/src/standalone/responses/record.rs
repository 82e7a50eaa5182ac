//! One response that is kept: its items, and its events while it is worked on.

use crate::space::PrefixSpace;
use bytes::Bytes;
use parking_lot::Mutex;
use stator_api::responses::ResponseEvents;
use std::sync::Arc;
use tokio::sync::watch;

/// A response that is kept.
pub(crate) struct ResponseRecord {
    /// Owner of the response.
    pub space: PrefixSpace,
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
    events: ResponseEvents,
    /// The events so far of a response in the background, and the number of the first of each.
    log: Vec<(u64, Bytes)>,
}

impl ResponseRecord {
    /// A response as it is now.
    pub(crate) fn new(keeper: &ResponseKeeping, events: ResponseEvents) -> Self {
        Self {
            space: keeper.space,
            earlier: keeper.earlier.clone(),
            input: keeper.input.clone(),
            progress: Mutex::new(ResponseProgress { events, log: Vec::new() }),
            news: watch::Sender::new(0),
            cancelled: watch::Sender::new(false),
            background: keeper.background,
        }
    }

    /// The response's object.
    pub(crate) fn object(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.progress.lock().events.push_object(&mut out);
        out
    }

    /// All items that a response after it begins with.
    pub(crate) fn items(&self) -> Vec<Arc<str>> {
        let all = self.earlier.iter().chain(&self.input).cloned();
        all.chain(self.progress.lock().events.items()).collect()
    }

    /// Changes the response and logs the events of the change. One that is over stays as it is.
    pub(crate) fn advance(&self, write: impl FnOnce(&mut ResponseEvents, &mut Vec<u8>)) {
        let mut progress = self.progress.lock();
        if progress.events.is_over() {
            return;
        }
        let (first, mut out) = (progress.events.next_number(), Vec::new());
        write(&mut progress.events, &mut out);
        if !out.is_empty() {
            progress.log.push((first, out.into()));
        }
        let next = progress.events.next_number();
        drop(progress);
        self.news.send_modify(|number| *number = next.max(*number + 1));
    }

    /// Whether nothing more comes.
    pub(crate) fn is_over(&self) -> bool {
        self.progress.lock().events.is_over()
    }

    /// The logged events from number `from` on, and the number of the next.
    pub(crate) fn events(&self, from: u64) -> (Vec<Bytes>, u64) {
        let progress = self.progress.lock();
        let logged = progress.log.iter();
        let wanted = logged.flat_map(|(first, events)| since(*first, events, from));
        (wanted.collect(), progress.events.next_number())
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
        let events = ResponseEvents::new(&identity, b"".as_slice().into(), || 0);
        let keeping =
            ResponseKeeping { space, earlier: Vec::new(), input: Vec::new(), background: true };
        Self::new(&keeping, events)
    }
}

/// Parts of a response that its request decides.
#[derive(Clone)]
pub(crate) struct ResponseKeeping {
    /// Owner of the response.
    pub space: PrefixSpace,
    /// Items of the responses before it.
    pub earlier: Vec<Arc<str>>,
    /// Items of the request.
    pub input: Vec<Arc<str>>,
    /// Whether it is generated while nobody waits.
    pub background: bool,
}

/// The events of `batch`, the first of which has the number `first`, from the number `from` on.
fn since(first: u64, batch: &Bytes, from: u64) -> Option<Bytes> {
    let mut start = 0;
    let mut number = first;
    while number < from {
        let end = memchr::memmem::find(&batch[start..], b"\n\n")?;
        start += end + 2;
        number += 1;
    }
    (start < batch.len()).then(|| batch.slice(start..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_api::Delta;
    use stator_api::delta::Usage;

    #[tokio::test]
    async fn events_are_replayed_from_any_number() {
        let record = ResponseRecord::of_tests(PrefixSpace::of_tests(1));
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
