//! Direct reads: arenas of this process stand in for those of others.

use super::secret;
use super::testkit::{Reading, Shelf, form, kv, settings};
use crate::SlotId;
use crate::arena::Arena;
use crate::peer::{DirectReads, PeerSettings};
use crate::tier::{TierError, TierReport, Urgency};
use crate::transfer::FleetKey;
use crate::transfer::direct::{DirectArena, DirectError, DirectWay};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const BLOCKS: u128 = 20;
const BLOCK_BYTES: usize = 50_000;
/// Rounds of reads within which the direct path is found.
const ROUNDS_MAX: usize = 500;

/// Fate of a direct read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DirectFate {
    Right,
    Refused,
    Wrong,
}

/// A way to read one arena of this process.
struct FakeWay {
    arena: Arc<Arena>,
    fate: DirectFate,
    /// Rung when a read begins, which goes on when it is told to.
    gate: Option<Gate>,
}

#[derive(Clone)]
struct Gate {
    begun: Sender<()>,
    go_on: Arc<Mutex<Receiver<()>>>,
}

impl DirectWay for FakeWay {
    fn description(&self) -> &[u8] {
        b"arena"
    }

    fn open(&self, description: &[u8]) -> Result<Box<dyn DirectArena>, DirectError> {
        assert_eq!(description, b"arena");
        let (arena, fate, gate) = (self.arena.clone(), self.fate.clone(), self.gate.clone());
        Ok(Box::new(FakeArena { arena, fate, gate }))
    }
}

struct FakeArena {
    arena: Arc<Arena>,
    fate: DirectFate,
    gate: Option<Gate>,
}

impl DirectArena for FakeArena {
    fn read(
        &mut self,
        parts: &[Range<u64>],
        _: Duration,
        show: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), DirectError> {
        if self.fate == DirectFate::Refused {
            return Err(DirectError("as ordered".into()));
        }
        if let Some(gate) = &self.gate {
            gate.begun.send(()).unwrap();
            gate.go_on.lock().recv().unwrap();
        }
        for (at, part) in parts.iter().enumerate() {
            let stride = self.arena.stride() as u64;
            let (slot, start) = ((part.start / stride) as u32, (part.start % stride) as usize);
            let mut bytes = vec![0; (part.end - part.start) as usize];
            self.arena.read_part(SlotId(slot), start, &mut bytes);
            if self.fate == DirectFate::Wrong {
                bytes[7] ^= 1;
            }
            show(at, &bytes);
        }
        if let Some(gate) = &self.gate {
            gate.begun.send(()).unwrap();
        }
        Ok(())
    }
}

fn pair(fate: DirectFate, gate: Option<Gate>, deadline: Duration) -> (Arc<Shelf>, Reading) {
    pair_of(secret(), fate, gate, deadline)
}

fn pair_of(
    key: FleetKey,
    fate: DirectFate,
    gate: Option<Gate>,
    deadline: Duration,
) -> (Arc<Shelf>, Reading) {
    let shelf = Shelf::new(BLOCKS as u32, BLOCK_BYTES);
    let way = Arc::new(FakeWay { arena: shelf.arena.clone(), fate, gate });
    assert!(shelf.direct.set(way.clone()).is_ok());
    let settings = PeerSettings { read_deadline: deadline, silence: deadline, ..settings() };
    let reading = Reading::new(form(BLOCK_BYTES), key, settings);
    reading.tier.read_directly(DirectReads { way, bytes: Counter::default() });
    (shelf, reading)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_read_straight_from_the_peers_arena() {
    let (shelf, mut reading) = pair(DirectFate::Right, None, settings().read_deadline);
    let served = shelf.serve(secret()).await;
    reading.hint(served.address, 0..BLOCKS);
    let mut rounds = 0;
    while reading.tier.counts().direct == 0 {
        assert!(reading.read(0..BLOCKS).await.iter().all(Result::is_ok));
        rounds += 1;
        assert!(rounds < ROUNDS_MAX, "nothing was read directly");
    }
    assert!(reading.read(3..9).await.iter().all(Result::is_ok));
    shelf.unpinned().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_read_that_fails_is_done_over_connections() {
    let (shelf, mut reading) = pair(DirectFate::Refused, None, settings().read_deadline);
    let served = shelf.serve(secret()).await;
    reading.hint(served.address, 0..BLOCKS);
    for _ in 0..20 {
        assert!(reading.read(0..BLOCKS).await.iter().all(Result::is_ok));
    }
    assert_eq!(reading.tier.counts().direct, 0);
    shelf.unpinned().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_secret_wrong_bytes_of_a_direct_read_are_no_block() {
    let known = FleetKey::default();
    let deadline = settings().read_deadline;
    let (shelf, mut reading) = pair_of(known.clone(), DirectFate::Wrong, None, deadline);
    let served = shelf.serve(known).await;
    for _ in 0..ROUNDS_MAX {
        reading.hint(served.address, 0..BLOCKS);
        // Whatever is reported as read has the right bytes: the kit compares them.
        let results = reading.read(0..BLOCKS).await;
        let is_expected = |result: &Result<_, _>| matches!(result, Ok(_) | Err(TierError::Corrupt));
        assert!(results.iter().all(is_expected), "{results:?}");
        if reading.tier.counts().direct > 0 {
            assert!(results.contains(&Err(TierError::Corrupt)), "{results:?}");
            return;
        }
    }
    panic!("nothing was read directly");
}

/// Whoever is on the way of a direct read can make bytes with the right checksum, but no tag.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_secret_forged_bytes_of_a_direct_read_are_read_again_over_connections() {
    let (shelf, mut reading) = pair(DirectFate::Wrong, None, settings().read_deadline);
    let served = shelf.serve(secret()).await;
    reading.hint(served.address, 0..BLOCKS);
    let mut rounds = 0;
    while reading.tier.counts().forged == 0 {
        assert!(reading.read(0..BLOCKS).await.iter().all(Result::is_ok));
        rounds += 1;
        assert!(rounds < ROUNDS_MAX, "nothing was read directly");
    }
    let counts = reading.tier.counts();
    assert_eq!((counts.direct, counts.corrupt), (0, 0), "it is found before its checksum is");
    assert!(reading.read(0..BLOCKS).await.iter().all(Result::is_ok), "the peer is not shunned");
    shelf.unpinned().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_offers_no_arena_is_asked_over_connections() {
    let (shelf, mut reading) = pair(DirectFate::Right, None, settings().read_deadline);
    let plain = Shelf::new(BLOCKS as u32, BLOCK_BYTES);
    let served = plain.serve(secret()).await;
    reading.hint(served.address, 0..BLOCKS);
    for _ in 0..20 {
        assert!(reading.read(0..BLOCKS).await.iter().all(Result::is_ok));
    }
    assert_eq!(reading.tier.counts().direct, 0);
    plain.unpinned().await;
    drop(shelf);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_read_that_is_late_touches_no_slot() {
    let (begun, begins) = channel();
    let (tell, told) = channel();
    let gate = Gate { begun, go_on: Arc::new(Mutex::new(told)) };
    let (shelf, mut reading) = pair(DirectFate::Right, Some(gate), Duration::from_millis(400));
    let served = shelf.serve(secret()).await;
    reading.hint(served.address, 0..BLOCKS);
    // Over connections, until a batch is read directly. That one does not come in time.
    let mut rounds = 0;
    while begins.try_recv().is_err() {
        reading.ask(0, Urgency::Demand);
        let report = reading.report().await;
        let TierReport::Read { result, .. } = report else { panic!("{report:?}") };
        rounds += 1;
        assert!(rounds < ROUNDS_MAX, "nothing was read directly");
        if result.is_err() {
            begins.recv().unwrap();
            break;
        }
    }
    // The slot is another block's by now.
    reading.arena.write(SlotId(0), &kv(99, BLOCK_BYTES));
    tell.send(()).unwrap();
    // The read has shown its bytes.
    tokio::task::spawn_blocking(move || begins.recv()).await.unwrap().unwrap();
    let mut there = vec![0; BLOCK_BYTES];
    reading.arena.read(SlotId(0), &mut there);
    assert!(there == kv(99, BLOCK_BYTES), "a late read changed the slot");
}
