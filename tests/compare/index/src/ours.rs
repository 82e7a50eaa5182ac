//! Our index, written by one thread that takes events from a queue, as Dynamo's lane does.
//!
//! A queue is not needed: [`stator_kv_index::Index::apply`] may be called from any thread, and an
//! event is visible when it returns. It stands here so that both hand their events over alike.

use crate::corpus::{Chain, Change, Corpus};
use crate::subject::{Depth, Lane, Restore, Subject};
use stator_kv_index::{EventEffect, Index, Overlaps, IndexSettings};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};
use stator_protos::{Generation, WorkerId, WorkerRank};
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

/// The life that all workers live.
pub const GENERATION: Generation = Generation(1);

/// The name that a worker has in the index.
pub fn worker_rank(worker: u32) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker.into()), rank: 0 }
}

/// Our index.
pub struct Ours(pub Arc<Index>);

impl Subject for Ours {
    const NAME: &'static str = "stator";
    type Event = (WorkerRank, KvEvent);
    type Query = Vec<SequenceHash>;
    type Buffers = Overlaps;
    type Found = ();
    type Lane<'a> = OurLane;

    fn new(corpus: &Corpus) -> Self {
        let index = Index::new(IndexSettings::default());
        for worker in 0..corpus.workers {
            assert!(index.insert(worker_rank(worker), GENERATION), "worker {worker} is new");
        }
        Self(Arc::new(index))
    }

    fn event(change: &Change<'_>) -> (WorkerRank, KvEvent) {
        let event = match *change {
            Change::Stored { chain, start, .. } => KvEvent::Stored(Stored {
                hashes: chain.sequence[start..].to_vec(),
                parent: start.checked_sub(1).map(|i| chain.sequence[i]),
                tokens: Vec::new(),
                block_size: 0,
                medium: Medium::Device,
                lora_name: None,
            }),
            Change::Removed { sequence, .. } => {
                KvEvent::Removed(Removed { hashes: sequence.to_vec(), medium: Medium::Device })
            }
        };
        (worker_rank(change.worker()), event)
    }

    fn query(chain: Chain<'_>) -> Vec<SequenceHash> {
        chain.sequence.iter().copied().map(SequenceHash).collect()
    }

    fn lookup(&self, query: &Vec<SequenceHash>, buffers: &mut Overlaps) {
        self.0.overlap(query, buffers);
    }

    fn depths((): &(), buffers: &Overlaps) -> Vec<Depth> {
        let depths = buffers.iter().map(|(at, overlap)| (at.worker.0 as u32, overlap.blocks()));
        let mut depths: Vec<Depth> = depths.filter(|&(_, blocks)| blocks > 0).collect();
        depths.sort_unstable();
        depths
    }

    fn own_bytes(&self) -> usize {
        self.0.stats().bytes
    }

    fn maintain(&self) {
        // What got no more blocks between two looks is given tables that fit.
        (0..2).for_each(|_| while self.0.maintain(1 << 16) {});
        while self.0.join_page() {}
    }

    fn lane(&self, epoch: Instant, events: &[usize]) -> OurLane {
        let index = Arc::clone(&self.0);
        let (sender, receiver) = mpsc::channel::<(WorkerRank, KvEvent)>();
        let mut finished_ns = Vec::with_capacity(events.iter().sum());
        let thread = std::thread::spawn(move || {
            for (worker, event) in receiver {
                let applied = index.apply(worker, GENERATION, &event);
                finished_ns.push(epoch.elapsed().as_nanos() as u64);
                assert_eq!(applied, EventEffect::Yes);
            }
            finished_ns
        });
        OurLane { sender, thread }
    }
}

impl Restore for Ours {
    type State = Vec<(SequenceHash, Medium)>;

    fn state(_: u32, chains: &[Chain<'_>]) -> Self::State {
        let blocks = chains.iter().flat_map(|chain| chain.sequence);
        blocks.map(|&hash| (SequenceHash(hash), Medium::Device)).collect()
    }

    fn expect(&self, workers: Range<u32>) {
        workers.for_each(|worker| self.0.unknown(worker_rank(worker)));
    }

    fn restore(&self, worker: u32, state: Self::State) {
        let applied = self.0.replace(worker_rank(worker), GENERATION, state);
        assert_eq!(applied, EventEffect::Yes);
    }
}

/// A thread that applies what it is sent.
pub struct OurLane {
    sender: mpsc::Sender<(WorkerRank, KvEvent)>,
    thread: JoinHandle<Vec<u64>>,
}

impl Lane for OurLane {
    type Event = (WorkerRank, KvEvent);

    fn send(&mut self, event: Self::Event) {
        self.sender.send(event).expect("the thread takes events until it is told to stop");
    }

    fn finish(self) -> Vec<u64> {
        drop(self.sender);
        self.thread.join().expect("the thread applies what it is sent")
    }
}
