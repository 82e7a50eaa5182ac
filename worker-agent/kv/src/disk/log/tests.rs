use super::*;
use crate::disk::format::PAGE_BYTES;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SLOTS: u32 = 9;
const GEOMETRY: Geometry = Geometry { block_bytes: PAGE_BYTES, segment_slots: SLOTS };
const CHECKSUM: Checksum = Checksum(5);

fn block(name: u128) -> Block {
    Block {
        name: BlockName(name),
        hash: None,
        parent: None,
        depth: (name % 3) as u32,
        tenant: crate::TenantKey::default(),
    }
}

/// A block of the model: its name and how often it was read.
type Kept = (u128, u8);

/// A log as lists that are searched from end to end: segments from the oldest to the newest.
#[derive(Default)]
struct Model {
    segments: Vec<Vec<Option<Kept>>>,
    /// Slots of the newest segment that were offered.
    offered: usize,
}

impl Model {
    fn find(&mut self, name: u128) -> Option<&mut Option<Kept>> {
        let mut slots = self.segments.iter_mut().flatten();
        slots.find(|slot| slot.is_some_and(|kept| kept.0 == name))
    }

    fn names(&self) -> BTreeSet<u128> {
        self.segments.iter().flatten().flatten().map(|kept| kept.0).collect()
    }

    /// Stores a block, and returns those that go for it.
    fn store(&mut self, name: u128, segments_max: usize) -> BTreeSet<u128> {
        let before = self.names();
        if before.contains(&name) {
            return BTreeSet::new();
        }
        let place = |model: &Self| {
            let newest = model.segments.last()?;
            (model.offered..newest.len()).find(|at| newest[*at].is_none())
        };
        if place(self).is_none() {
            let next = if self.segments.len() < segments_max
                && self.segments.first().is_none_or(|oldest| oldest.iter().any(Option::is_some))
            {
                vec![None; SLOTS as usize]
            } else {
                recycled(self.segments.remove(0))
            };
            self.segments.push(next);
            self.offered = 0;
        }
        let at = place(self).expect("three in four places of a new segment are free");
        self.offered = at + 1;
        self.segments.last_mut().unwrap()[at] = Some((name, 0));
        let after = self.names();
        before.into_iter().filter(|name| !after.contains(name)).collect()
    }
}

/// A segment with its two hottest blocks alone, as long as it has so many that were read.
fn recycled(old: Vec<Option<Kept>>) -> Vec<Option<Kept>> {
    let mut hot: Vec<_> = old.iter().flatten().filter(|kept| kept.1 > 0).copied().collect();
    let place = |name| old.iter().position(|slot| slot.is_some_and(|kept| kept.0 == name));
    hot.sort_by_key(|(name, reads)| (u8::MAX - reads, name % 3, place(*name)));
    hot.truncate(2);
    let stays = |kept: Kept| hot.contains(&kept).then_some((kept.0, 0));
    old.into_iter().map(|slot| slot.and_then(stays)).collect()
}

/// Stores a block at once, and returns those that go for it.
fn store(log: &mut Log, name: u128, segments_max: usize) -> BTreeSet<u128> {
    let mut gone = BTreeSet::new();
    loop {
        match log.claim(block(name), CHECKSUM) {
            Claim::Held => return gone,
            Claim::At(place) => {
                assert!(log.payload_written(place) && log.commit(place));
                return gone;
            }
            Claim::NoSegment
                if (log.segments() as usize) < segments_max && !log.oldest_is_empty() =>
            {
                log.add_segment();
            }
            Claim::NoSegment => {
                let Recycling::Begun { segment, gone: names } = log.recycle() else {
                    panic!("nothing is being written");
                };
                gone.extend(names.iter().map(|name| name.0));
                log.reopened(segment);
            }
            Claim::Coming | Claim::OverQuota => panic!("nothing is being written"),
            Claim::Instead(..) => panic!("there is no quota"),
        }
    }
}

fn names(log: &Log) -> BTreeSet<u128> {
    log.blocks().map(|block| block.name.0).collect()
}

/// The tables of a log, as they are on disk.
fn tables(log: &Log) -> Vec<Vec<(u32, Descriptor)>> {
    (0..log.segments()).map(|segment| log.page(segment, 0)).collect()
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Store(u128),
    Read(u128),
    Lose(u128),
    Restart,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        10 => (0..60_u128).prop_map(Op::Store),
        5 => (0..60_u128).prop_map(Op::Read),
        1 => (0..60_u128).prop_map(Op::Lose),
        1 => Just(Op::Restart),
    ];
    prop::collection::vec(op, 1..300)
}

proptest! {
    #[test]
    fn holds_what_the_model_holds(ops in ops(), segments_max in 1..6_usize) {
        let mut log = Log::new(GEOMETRY, None);
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Store(name) => {
                    let gone = store(&mut log, name, segments_max);
                    prop_assert_eq!(gone, model.store(name, segments_max));
                }
                Op::Read(name) => {
                    let read = log.begin_read(BlockName(name));
                    prop_assert!(read.is_none_or(|(_, checksum)| checksum == CHECKSUM));
                    read.into_iter().for_each(|(place, _)| log.end_read(place));
                    let kept = model.find(name);
                    prop_assert_eq!(read.is_some(), kept.is_some());
                    kept.into_iter().flatten().for_each(|kept| kept.1 += 1);
                }
                Op::Lose(name) => {
                    if let Some((place, _)) = log.begin_read(BlockName(name)) {
                        log.end_read(place);
                        prop_assert_eq!(log.forget(place), Some(BlockName(name)));
                        prop_assert_eq!(log.forget(place), None);
                    }
                    model.find(name).into_iter().for_each(|slot| *slot = None);
                }
                Op::Restart => {
                    // An empty table does not say how old it is: the model has no word for that.
                    if tables(&log).iter().all(|table| !table.is_empty()) {
                        log = Log::restore(GEOMETRY, 1, None, &tables(&log));
                        model.segments.iter_mut().flatten().flatten().for_each(|kept| kept.1 = 0);
                        model.offered = 0;
                    }
                }
            }
            prop_assert_eq!(names(&log), model.names());
        }
    }
}

#[test]
fn latest_descriptor_of_a_name_counts_and_stale_ones_do_not() {
    let of = |name, epoch| {
        let length = PAGE_BYTES as u32;
        let seal = CipherTag::default();
        Descriptor { block: block(name), checksum: Checksum(epoch), epoch, length, seal }
    };
    // Block 1 is in two segments; block 2 is of an earlier use of its segment; block 4 was there
    // before the tier was cleared.
    let tables = [
        vec![(0, of(1, 7)), (1, of(2, 6))],
        vec![(3, of(1, 9)), (4, of(3, 9))],
        vec![(0, of(4, 4))],
    ];
    let mut log = Log::restore(GEOMETRY, 5, None, &tables);
    assert_eq!(names(&log), [1, 3].into());
    let (place, checksum) = log.begin_read(BlockName(1)).unwrap();
    assert_eq!((place, checksum), (Place { segment: 1, slot: 3 }, Checksum(9)));
    assert_eq!(log.next_epoch(), 10);
    // New blocks go to the newest segment, then to the one without blocks.
    assert_eq!(log.claim(block(5), CHECKSUM), Claim::At(Place { segment: 1, slot: 0 }));
    assert_eq!(
        Log::restore(GEOMETRY, 20, None, &tables).claim(block(5), CHECKSUM),
        Claim::NoSegment
    );
}

#[test]
fn slots_in_use_are_not_given_away() {
    let mut log = Log::new(Geometry { segment_slots: 2, ..GEOMETRY }, None);
    log.add_segment();
    let Claim::At(written) = log.claim(block(1), CHECKSUM) else { panic!("there is room") };
    assert_eq!(log.claim(block(1), CHECKSUM), Claim::Coming);
    assert_eq!(log.begin_read(BlockName(1)), None);
    store(&mut log, 2, 1);
    assert_eq!(log.claim(block(3), CHECKSUM), Claim::NoSegment);
    assert_eq!(log.recycle(), Recycling::NotYet);
    assert!(log.payload_written(written) && log.commit(written));
    let (read, _) = log.begin_read(BlockName(2)).unwrap();
    let gone = [1, 2].map(BlockName).to_vec();
    assert_eq!(log.recycle(), Recycling::Begun { segment: 0, gone });
    log.reopened(0);
    // Block 2 has gone, but somebody still reads its slot.
    assert_eq!(log.claim(block(3), CHECKSUM), Claim::At(written));
    assert_eq!(log.claim(block(4), CHECKSUM), Claim::NoSegment);
    log.end_read(read);
    assert_eq!(log.forget(read), None);
}

#[test]
fn cleared_block_is_not_held_when_its_writing_ends() {
    let mut log = Log::new(GEOMETRY, None);
    log.add_segment();
    let claims = [1, 2].map(|name| log.claim(block(name), CHECKSUM));
    let [Claim::At(one), Claim::At(two)] = claims else { panic!("there is room") };
    assert!(log.payload_written(two));
    log.clear();
    assert!(!log.payload_written(one));
    assert!(!log.commit(two));
    assert_eq!(names(&log), BTreeSet::new());
    assert!(log.oldest_is_empty());
}

#[test]
fn the_oldest_segment_goes_with_its_blocks_and_may_come_back() {
    let mut log = Log::new(GEOMETRY, None);
    assert_eq!(log.retire(), Retirement::NoSegment);
    (0..20).for_each(|name| drop(store(&mut log, name, 3)));
    let (read, _) = log.begin_read(BlockName(1)).unwrap();
    assert_eq!(log.retire(), Retirement::NotYet);
    log.end_read(read);
    let gone = (0..9).map(BlockName).collect();
    assert_eq!(log.retire(), Retirement::Done { segment: 0, gone });
    assert_eq!((log.in_use(), log.segments(), log.next_segment()), (2, 3, 0));
    assert_eq!(names(&log), (9..20).collect());
    let epoch = log.next_epoch();
    log.add_segment();
    assert_eq!((log.in_use(), log.segments(), log.epoch(0)), (3, 3, epoch));
    assert_eq!(log.claim(block(50), CHECKSUM), Claim::At(Place { segment: 0, slot: 0 }));
}

#[test]
fn a_name_is_forgotten_at_every_stage_of_its_writing() {
    let mut log = Log::new(GEOMETRY, None);
    log.add_segment();
    let Claim::At(place) = log.claim(block(1), CHECKSUM) else { panic!("there is room") };
    assert_eq!(log.forget_name(BlockName(1)), Some(place));
    assert_eq!(log.forget_name(BlockName(1)), None);
    assert!(!log.payload_written(place));
    store(&mut log, 2, 1);
    assert!(log.forget_name(BlockName(2)).is_some());
    assert_eq!(names(&log), BTreeSet::new());
}

proptest! {
    /// A tenant has no more blocks than its quota, and at the quota it gives up its own alone.
    #[test]
    fn a_tenants_flood_costs_nobody_else(
        writes in prop::collection::vec((0..3_u64, 0..40_u128), 1..200),
        quota in 1..12_usize,
        restarts in any::<bool>(),
    ) {
        let quota_of = Some(quota);
        let mut log = Log::new(GEOMETRY, quota_of);
        let count = |log: &Log, tenant| log.blocks().filter(|of| of.tenant == tenant).count();
        for (tenant, number) in writes {
            let tenant = crate::TenantKey(tenant);
            let written =
                Block { tenant, ..block(number + 1000 * u128::from(tenant.0)) };
            let before = names(&log);
            let was_full = count(&log, tenant) >= quota;
            let place = loop {
                match log.claim(written, CHECKSUM) {
                    Claim::Held => break None,
                    Claim::At(place) => {
                        prop_assert!(!was_full);
                        break Some(place);
                    }
                    Claim::Instead(place, gone) => {
                        prop_assert!(was_full);
                        let is_own = |name: &BlockName| name.0 / 1000 == u128::from(tenant.0);
                        prop_assert!(gone.iter().all(is_own));
                        prop_assert_eq!(names(&log).len(), before.len() - gone.len());
                        break Some(place);
                    }
                    // There is room for all quotas.
                    Claim::NoSegment => log.add_segment(),
                    Claim::Coming | Claim::OverQuota => panic!("nothing is under way"),
                }
            };
            if let Some(place) = place {
                prop_assert!(log.payload_written(place) && log.commit(place));
            }
            prop_assert!(names(&log).contains(&written.name.0));
            for tenant in (0..3).map(crate::TenantKey) {
                prop_assert!(count(&log, tenant) <= quota);
            }
            if restarts {
                let kept = names(&log);
                log = Log::restore(GEOMETRY, 1, quota_of, &tables(&log));
                prop_assert_eq!(names(&log), kept);
            }
        }
    }
}
