//! One life of a rank on the event plane: what its engine tells of its blocks, numbered as ours.

use crate::events::{Feeds, WorkerFeed};
use crate::worker::Snapshot;
use parking_lot::Mutex;
use stator_events::KvSink;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, MAX_BLOCKS, Medium, Removed, Stored};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};
use stator_signals::events::{Control, WorkerSink};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::sync::oneshot;

/// A life's place on the event plane; dropping it takes the life from there.
#[derive(Debug)]
pub(crate) struct LifeSink {
    worker: WorkerRank,
    block_size: u32,
    feeds: Arc<Feeds>,
    feed: Mutex<WorkerFeed>,
    /// Blocks on the device.
    blocks: AtomicU32,
    /// Whether blocks were told of, wherever they are, since all were forgotten.
    told: AtomicBool,
    /// The follower of the engine's events, if it publishes any.
    follower: OnceLock<Control>,
}

impl LifeSink {
    /// Opens the feed of a life.
    pub(crate) fn new(
        feeds: &Arc<Feeds>,
        worker: WorkerRank,
        generation: Generation,
        block_size: u32,
    ) -> Self {
        Self {
            worker,
            block_size,
            feeds: feeds.clone(),
            feed: Mutex::new(feeds.open(worker, generation)),
            blocks: AtomicU32::new(0),
            told: AtomicBool::new(false),
            follower: OnceLock::new(),
        }
    }

    /// Says who follows the engine. Has no effect the second time.
    pub(crate) fn followed_by(&self, follower: Control) {
        let _ = self.follower.set(follower);
    }

    /// The engine forgot all blocks, and may say so late.
    pub(crate) async fn cleared(&self) {
        if let Some(follower) = self.follower.get() {
            follower.cleared().await;
        }
    }

    /// Publishes a load report.
    pub(crate) fn load(&self, load: Load) {
        self.feed.lock().load(load);
    }

    /// Blocks on the device, as far as the engine tells.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Says which blocks there are, in order with the events. Does not wait for the answer.
    pub(crate) fn snapshot(self: &Arc<Self>, answer: oneshot::Sender<Snapshot>) {
        let Some(follower) = self.follower.get().cloned() else {
            // Who asked may be gone; then nobody needs it.
            let _ = answer.send(self.numbered(Vec::new()));
            return;
        };
        let sink = self.clone();
        tokio::spawn(async move {
            // In the follower's task, so that no event comes in between.
            let looked = follower.look(move |view| sink.numbered(view.blocks().collect()));
            if let Some(snapshot) = looked.await {
                let _ = answer.send(snapshot);
            }
        });
    }

    /// The blocks of a prompt behind those that are on the device or in host memory, as far as that is
    /// known.
    pub(crate) async fn behind_memory(&self, hashes: Vec<SequenceHash>) -> Vec<SequenceHash> {
        let Some(follower) = self.follower.get() else { return hashes };
        let behind = follower.look(move |view| {
            let is_near = |hash: &&SequenceHash| {
                view.medium(**hash).is_some_and(|medium| medium <= Medium::Host)
            };
            let near = hashes.iter().take_while(is_near).count();
            hashes[near..].to_vec()
        });
        behind.await.unwrap_or_default()
    }

    fn numbered(&self, blocks: Vec<(SequenceHash, Medium)>) -> Snapshot {
        let feed = self.feed.lock();
        Snapshot { generation: feed.generation(), next_sequence: feed.next_sequence(), blocks }
    }

    fn publish(&self, events: &[KvEvent]) {
        for event in events {
            self.count(event);
        }
        self.feed.lock().events(events);
    }

    /// Keeps `blocks` and `told`. One task publishes, so that nothing is lost between reading and
    /// writing.
    fn count(&self, event: &KvEvent) {
        match event {
            KvEvent::Stored(_) => self.told.store(true, Ordering::Relaxed),
            KvEvent::Cleared => self.told.store(false, Ordering::Relaxed),
            KvEvent::Removed(_) => {}
        }
        let blocks = self.blocks();
        let now = match event {
            KvEvent::Stored(Stored { hashes, medium: Medium::Device, .. }) => {
                blocks.saturating_add(hashes.len() as u32)
            }
            KvEvent::Removed(Removed { hashes, medium: Medium::Device }) => {
                blocks.saturating_sub(hashes.len() as u32)
            }
            KvEvent::Cleared => 0,
            KvEvent::Stored(_) | KvEvent::Removed(_) => blocks,
        };
        self.blocks.store(now, Ordering::Relaxed);
    }
}

impl Drop for LifeSink {
    fn drop(&mut self) {
        self.feeds.close(self.worker, self.feed.lock().generation());
    }
}

impl KvSink for LifeSink {
    fn apply(&self, _: WorkerRank, _: Generation, events: &[KvEvent]) {
        self.publish(events);
    }

    fn replace(&self, _: WorkerRank, _: Generation, blocks: Vec<(SequenceHash, Medium)>) {
        let mut events = vec![KvEvent::Cleared];
        for medium in Medium::ALL {
            let hashes = blocks.iter().filter(|(_, on)| *on == medium).map(|(hash, _)| hash.0);
            let hashes: Vec<u64> = hashes.collect();
            // Where each of them continues is not told: a block names all that is before it.
            events.extend(hashes.chunks(MAX_BLOCKS as usize).map(|hashes| {
                KvEvent::Stored(Stored {
                    hashes: hashes.to_vec(),
                    parent: None,
                    tokens: Vec::new(),
                    block_size: self.block_size,
                    medium,
                    lora_name: None,
                })
            }));
        }
        self.publish(&events);
    }

    fn unknown(&self, _: WorkerRank) {
        if self.told.load(Ordering::Relaxed) {
            self.publish(&[KvEvent::Cleared]);
        }
    }
}

impl WorkerSink for LifeSink {
    // The agent's lives are the engine's processes; a feed that starts over goes on in this one,
    // and says so by what it replaces.
    fn life(&self, _: WorkerRank, _: Generation) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::queue::Queue;
    use crate::metrics::AgentMetrics;
    use stator_protos::{WorkerId, kv_event};

    const WORKER: WorkerRank = WorkerRank { worker: WorkerId(1), rank: 0 };
    const LIFE: Generation = Generation(7);

    struct Bed {
        queue: Arc<Queue>,
        feeds: Arc<Feeds>,
        sink: LifeSink,
    }

    fn bed() -> Bed {
        let queue = Arc::new(Queue::default());
        let feeds = Arc::new(Feeds::new(1 << 20, queue.clone(), AgentMetrics::default()));
        let sink = LifeSink::new(&feeds, WORKER, LIFE, 16);
        Bed { queue, feeds, sink }
    }

    fn stored(hashes: &[u64], medium: Medium) -> KvEvent {
        KvEvent::Stored(Stored {
            hashes: hashes.to_vec(),
            parent: None,
            tokens: vec![],
            block_size: 16,
            medium,
            lora_name: None,
        })
    }

    async fn published(bed: &Bed) -> Vec<KvEvent> {
        let messages = bed.queue.take().await;
        let decode = |payload: &[u8]| kv_event::decode(payload).unwrap().batch.events;
        messages.iter().flat_map(|message| decode(&message.payload)).collect()
    }

    #[tokio::test]
    async fn what_is_replaced_is_cleared_first_and_named_by_medium() {
        let bed = bed();
        let blocks = [(1, Medium::Device), (2, Medium::Host), (3, Medium::Device)];
        let blocks = blocks.map(|(hash, medium)| (SequenceHash(hash), medium)).to_vec();
        bed.sink.replace(WORKER, LIFE, blocks);
        let expected =
            [KvEvent::Cleared, stored(&[1, 3], Medium::Device), stored(&[2], Medium::Host)];
        assert_eq!(published(&bed).await, expected);
        assert_eq!(bed.sink.blocks(), 2);
    }

    #[tokio::test]
    async fn blocks_on_the_device_are_counted() {
        let bed = bed();
        bed.sink.apply(WORKER, LIFE, &[stored(&[1, 2, 3], Medium::Device)]);
        let removed = Removed { hashes: vec![3], medium: Medium::Device };
        bed.sink.apply(WORKER, LIFE, &[KvEvent::Removed(removed), stored(&[9], Medium::Host)]);
        assert_eq!(bed.sink.blocks(), 2);
        bed.sink.unknown(WORKER);
        assert_eq!(bed.sink.blocks(), 0);
        assert_eq!(published(&bed).await.len(), 4);
    }

    #[tokio::test]
    async fn what_is_unknown_is_cleared_where_it_was_told_of_on_whichever_medium() {
        let bed = bed();
        bed.sink.apply(WORKER, LIFE, &[stored(&[1], Medium::Host)]);
        bed.sink.unknown(WORKER);
        bed.sink.unknown(WORKER);
        let expected = [stored(&[1], Medium::Host), KvEvent::Cleared];
        assert_eq!(published(&bed).await, expected);
    }

    #[test]
    fn an_ended_life_leaves_the_feeds_but_not_a_later_ones() {
        let Bed { feeds, sink, .. } = bed();
        let later = LifeSink::new(&feeds, WORKER, Generation(8), 16);
        drop(sink);
        assert_eq!(feeds.count(), 1);
        drop(later);
        assert_eq!(feeds.count(), 0);
    }
}
