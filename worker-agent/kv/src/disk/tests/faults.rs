//! Faults of the disk, and crashes of the agent. Everything runs in this thread.

use super::*;
use crate::disk::faulty::{FAULTS, Fault, FaultPlan, FaultyDevice};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Turns in which any work ends.
const TURNS_MAX: usize = 10_000;

/// A tier without a thread of its own, on a faulty disk.
struct Bench {
    dir: TempDir,
    segments: u64,
    arena: Arc<Arena>,
    plan: Arc<Mutex<FaultPlan>>,
    /// The slots under way, with their blocks.
    under_way: BTreeMap<SlotId, BlockName>,
    /// Blocks that the tier said it has.
    held: BTreeSet<u128>,
    /// Ends of requests, in order.
    ended: Vec<(u128, Option<TierError>)>,
    running: Option<Running>,
}

struct Running {
    worker: Worker,
    inbox: Arc<DiskInbox>,
    counters: Arc<Counters>,
    reports: Receiver<TierReport>,
}

impl Bench {
    fn new(segments: u64, seed: u64) -> Self {
        let mut bench = Self {
            dir: TempDir::new().unwrap(),
            segments,
            arena: Arc::new(Arena::new(SLOTS, BLOCK_BYTES).unwrap()),
            plan: Arc::new(Mutex::new(FaultPlan::none(seed))),
            under_way: BTreeMap::new(),
            held: BTreeSet::new(),
            ended: Vec::new(),
            running: None,
        };
        bench.start();
        bench
    }

    fn start(&mut self) {
        let geometry = Geometry { block_bytes: BLOCK_BYTES, segment_slots: 4 };
        let bytes = self.segments * geometry.segment_bytes();
        let (arena, form) = (self.arena.clone(), FORM);
        let folder =
            Folder::open(self.dir.path(), form, FolderWish { geometry, bytes, key: None }).unwrap();
        let inbox = Arc::new(DiskInbox::new(6));
        let (send, reports) = channel();
        let sink: ReportSink = Arc::new(move |report| drop(send.send(report)));
        let counters = Arc::new(Counters::default());
        let outlet = Outlet { sink, counters: counters.clone() };
        let plan = self.plan.clone();
        let (of_device, pending) = (arena.clone(), Vec::new());
        let device = Box::new(FaultyDevice { arena: of_device, plan, pending, bell: None });
        let inbox_of_worker = inbox.clone();
        let parts = WorkerParts {
            device,
            folder,
            form,
            arena,
            inbox: inbox_of_worker,
            outlet,
            depth: 4,
            tenant_share: None,
        };
        let worker = Worker::start(parts);
        self.running = Some(Running { worker, inbox, counters, reports });
        let held = std::mem::take(&mut self.held);
        self.take_reports();
        if self.plan.lock().rate == 0 {
            assert!(held.is_subset(&self.held), "{held:?} were there, found {:?}", self.held);
        }
    }

    fn running(&mut self) -> &mut Running {
        self.running.as_mut().unwrap()
    }

    /// Ends the tier in the middle of its work.
    fn kill(&mut self) {
        self.running = None;
        self.under_way.clear();
    }

    /// Ends the tier in order.
    fn close(&mut self) {
        self.running().inbox.close(Instant::now() + DEADLINE);
        let turns = (0..TURNS_MAX).take_while(|_| self.running().worker.turn()).count();
        assert!(turns < TURNS_MAX, "the tier does not end");
        self.take_reports();
        assert_eq!(self.under_way, BTreeMap::new());
        self.running = None;
    }

    fn free_slot(&self) -> Option<SlotId> {
        (0..SLOTS).map(SlotId).find(|slot| !self.under_way.contains_key(slot))
    }

    fn write(&mut self, name: u128) {
        let Some(slot) = self.free_slot() else { return };
        let kv = kv(name, BLOCK_BYTES);
        self.arena.write(slot, &kv);
        self.under_way.insert(slot, BlockName(name));
        let checksum = checksum(BlockName(name), &kv);
        let write = TierWrite { block: block(name), slot, checksum };
        self.running().inbox.push(DiskRequest::Write(write));
    }

    /// Writes blocks, one after the other.
    fn write_each(&mut self, names: std::ops::Range<u128>) {
        for name in names {
            self.write(name);
            self.finish();
        }
    }

    fn read(&mut self, name: u128, urgency: Urgency) {
        let Some(slot) = self.free_slot() else { return };
        self.arena.write(slot, &[0; BLOCK_BYTES]);
        self.under_way.insert(slot, BlockName(name));
        let read = TierRead { name: BlockName(name), slot, urgency };
        self.running().inbox.push(DiskRequest::Read(read));
    }

    fn turn(&mut self) {
        assert!(self.running().worker.turn());
        self.take_reports();
    }

    /// Turns until all requests have ended.
    fn finish(&mut self) {
        let turns = (0..TURNS_MAX).take_while(|_| {
            self.turn();
            !self.under_way.is_empty()
        });
        assert!(turns.count() < TURNS_MAX, "{:?} do not end", self.under_way);
    }

    /// Checks all reports: each request ends once, and what was read is right.
    fn take_reports(&mut self) {
        let reports: Vec<_> = self.running().reports.try_iter().collect();
        for report in reports {
            match report {
                TierReport::Found(blocks) => self.held.extend(names(&blocks)),
                TierReport::Gone(names) => {
                    self.held.retain(|held| !names.contains(&BlockName(*held)));
                }
                TierReport::Written { name, slot, result } => {
                    assert_eq!(self.under_way.remove(&slot), Some(name));
                    self.ended.push((name.0, result.err()));
                    if result.is_ok() {
                        self.held.insert(name.0);
                    }
                }
                TierReport::Read { name, slot, result } => {
                    assert_eq!(self.under_way.remove(&slot), Some(name));
                    self.ended.push((name.0, result.err()));
                    if result.is_ok() {
                        let mut read = vec![0; BLOCK_BYTES];
                        self.arena.read(slot, &mut read);
                        assert!(read == kv(name.0, BLOCK_BYTES), "wrong bytes for {name:?}");
                    }
                }
                TierReport::Located { .. } => panic!("a disk has one source: {report:?}"),
            }
        }
    }
}

#[test]
fn full_disk_degrades() {
    let mut bench = Bench::new(8, 1);
    bench.write_each(0..8);
    // Two segments are on disk, more there will not be: the tier makes do with them.
    bench.plan.lock().has_room = false;
    bench.write_each(8..16);
    assert!(bench.ended.iter().all(|(_, error)| error.is_none()), "{:?}", bench.ended);
    assert_eq!(bench.held, (8..16).collect());
    bench.plan.lock().has_room = true;
    bench.write_each(16..20);
    assert_eq!(bench.held, (8..20).collect());
}

#[test]
fn disk_that_was_full_from_the_start_says_so() {
    let mut bench = Bench::new(8, 1);
    bench.plan.lock().has_room = false;
    bench.write(1);
    bench.finish();
    bench.read(1, Urgency::Demand);
    bench.finish();
    assert_eq!(bench.ended, [(1, Some(TierError::Full)), (1, Some(TierError::Missing))]);
    assert_eq!(bench.running().counters.counts().full, 1);
    bench.plan.lock().has_room = true;
    bench.write(1);
    bench.finish();
    assert_eq!(bench.held, [1].into());
}

#[test]
fn slow_disk_refuses_what_is_too_much_and_answers_demand_first() {
    let mut bench = Bench::new(8, 1);
    bench.write(100);
    bench.finish();
    bench.ended.clear();
    bench.plan.lock().is_stuck = true;
    // Three writes fill the part of the disk's depth that is theirs, six wait.
    for name in 0..9 {
        bench.write(name);
        bench.turn();
    }
    assert_eq!(bench.ended, []);
    bench.write(9);
    bench.turn();
    assert_eq!(bench.ended, [(9, Some(TierError::Busy))]);
    bench.read(100, Urgency::Demand);
    bench.turn();
    bench.ended.clear();
    bench.plan.lock().is_stuck = false;
    bench.finish();
    let place = bench.ended.iter().position(|(name, _)| *name == 100).unwrap();
    assert!(place <= 4, "behind no write that had not begun: {:?}", bench.ended);
    assert!(bench.ended.iter().all(|(_, error)| error.is_none()), "{:?}", bench.ended);
}

#[test]
fn failed_read_is_never_loaded() {
    for kind in [Fault::Failed, Fault::Ended, Fault::Flip, Fault::Misplaced] {
        let mut bench = Bench::new(8, 1);
        bench.write_each(0..4);
        bench.ended.clear();
        (bench.plan.lock().rate, bench.plan.lock().kinds) = (1000, vec![kind]);
        bench.read(2, Urgency::Demand);
        bench.finish();
        let error = if kind == Fault::Failed { TierError::Failed } else { TierError::Corrupt };
        assert_eq!(bench.ended, [(2, Some(error))], "{kind:?}");
        assert_eq!(bench.held, [0, 1, 3].into());
    }
}

#[test]
fn short_reads_and_writes_go_on() {
    let mut bench = Bench::new(8, 1);
    (bench.plan.lock().rate, bench.plan.lock().kinds) = (1000, vec![Fault::Short]);
    bench.write(2);
    bench.finish();
    bench.read(2, Urgency::Prefetch);
    bench.finish();
    assert_eq!(bench.ended, [(2, None), (2, None)]);
}

#[test]
fn hot_blocks_stay_when_their_segment_is_recycled() {
    let mut bench = Bench::new(2, 1);
    bench.write_each(0..8);
    bench.read(1, Urgency::Demand);
    bench.read(2, Urgency::Demand);
    bench.read(2, Urgency::Demand);
    bench.finish();
    bench.write(8);
    bench.finish();
    // One of the four places may stay, and block 2 was read more often.
    assert_eq!(bench.held, [2, 4, 5, 6, 7, 8].into());
    bench.close();
    bench.start();
    assert_eq!(bench.held, [2, 4, 5, 6, 7, 8].into());
    for name in bench.held.clone() {
        bench.read(name, Urgency::Demand);
        bench.finish();
    }
    assert!(bench.ended.iter().all(|(_, error)| error.is_none()), "{:?}", bench.ended);
}

#[test]
fn blocks_written_after_a_clear_and_a_restart_are_found() {
    let mut bench = Bench::new(1, 1);
    bench.write_each(0..1);
    bench.running().inbox.clear();
    bench.turn();
    bench.close();
    bench.held.clear();
    bench.start();
    bench.write_each(1..2);
    bench.close();
    bench.start();
    assert_eq!(bench.held, [1].into());
}

#[test]
fn a_full_segment_is_recycled_once_its_blocks_are_written() {
    let mut bench = Bench::new(1, 1);
    // One segment of four places: the fifth block waits for the four before it.
    for name in 0..5 {
        bench.write(name);
        bench.turn();
    }
    bench.finish();
    assert!(bench.ended.iter().all(|(_, error)| error.is_none()), "{:?}", bench.ended);
    assert_eq!(bench.held, [4].into());
}

#[test]
fn killed_writer_leaves_nothing_wrong() {
    for turns in 0..40 {
        let mut bench = Bench::new(3, turns);
        bench.write_each(0..10);
        (10..20).for_each(|name| bench.write(name));
        (0..turns).for_each(|_| bench.turn());
        bench.kill();
        // What was said to be there is found, which `start` checks, and is right.
        bench.start();
        for name in bench.held.clone() {
            bench.read(name, Urgency::Demand);
            bench.finish();
        }
        let wrong = bench.ended.iter().filter(|(_, error)| *error == Some(TierError::Corrupt));
        // A block that was being written may be announced without being whole: its payload was on
        // disk before its descriptor, which no power cut of a test reorders.
        assert_eq!(wrong.count(), 0);
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Write(u128),
    Read(u128, bool),
    Turns(u8),
    Clear,
    Restart,
    Kill,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (0..40_u128).prop_map(Op::Write),
        8 => (0..40_u128, any::<bool>()).prop_map(|(name, wait)| Op::Read(name, wait)),
        6 => (1..8_u8).prop_map(Op::Turns),
        1 => Just(Op::Clear),
        1 => Just(Op::Restart),
        1 => Just(Op::Kill),
    ];
    prop::collection::vec(op, 1..150)
}

/// Does the operations, and then lets everything end.
fn run(bench: &mut Bench, ops: &[Op]) {
    for op in ops {
        match *op {
            Op::Write(name) => bench.write(name),
            Op::Read(name, true) => bench.read(name, Urgency::Demand),
            Op::Read(name, false) => bench.read(name, Urgency::Prefetch),
            Op::Turns(turns) => (0..turns).for_each(|_| bench.turn()),
            Op::Clear => {
                bench.running().inbox.clear();
                bench.turn();
                bench.held.clear();
            }
            Op::Restart => {
                bench.close();
                bench.start();
            }
            Op::Kill => {
                bench.kill();
                bench.start();
            }
        }
    }
    bench.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_fault_makes_wrong_bytes(
        ops in ops(), segments in 1..6_u64, seed: u64, rate in 1..400_u32,
        kinds in prop::sample::subsequence(FAULTS.to_vec(), 1..=FAULTS.len()),
    ) {
        let mut bench = Bench::new(segments, seed);
        (bench.plan.lock().rate, bench.plan.lock().kinds) = (rate, kinds);
        run(&mut bench, &ops);
    }

    #[test]
    fn without_faults_blocks_stay_until_they_are_evicted(
        ops in ops(), segments in 1..6_u64, seed: u64,
    ) {
        let mut bench = Bench::new(segments, seed);
        run(&mut bench, &ops);
        bench.ended.clear();
        let held = bench.held.clone();
        for name in 0..40 {
            bench.read(name, Urgency::Demand);
            bench.finish();
        }
        let read = bench.ended.iter().filter(|(_, error)| error.is_none()).map(|(name, _)| *name);
        prop_assert_eq!(read.collect::<BTreeSet<_>>(), held);
        let counts = bench.running().counters.counts();
        prop_assert_eq!((counts.corrupt, counts.torn, counts.failed), (0, 0, 0));
        bench.close();
    }
}
