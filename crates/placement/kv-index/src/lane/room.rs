//! Room for new blocks: by growth where memory allows it, else by dropping old blocks.

use super::{Lane, Shard, Shared, UsedCell, youth};
use crate::cell::CellValue;
use crate::elements;
use crate::layout::BUCKET_BYTES;
use crate::table::{self, At, Located, Table};
use std::sync::atomic::Ordering::Relaxed;

/// A shard that is fuller than this many 32nds grows, a large one to 5/4 of its size: it is 0.72 to
/// 0.91 full then, and a block takes 19.8 bytes on average. Growing less would copy blocks more
/// often.
const MAX_LOAD_32NDS: usize = 29;
/// Shards below this many buckets, 64 MiB all together, double: there is little to save, and blocks
/// are copied half as often. At this many, they spread over the sizes from it to 5/4 of it, so that
/// they do not all grow at once and the average holds at any time.
const SPREAD: usize = 4096;
/// A shard that is emptier than this many 32nds and gets no more blocks is given a table in which
/// it is this full, or up to a twelfth emptier, so that not all grow at once. It grows by an eighth
/// first: blocks that come and go must not have it fitted again and again.
const MIN_LOAD_32NDS: usize = 24;
const FITTED_LOAD_32NDS: usize = 28;
/// Buckets among which the oldest block goes when there is no room.
const WINDOW: usize = 8;

impl Shard {
    pub(super) fn new(table: Table, growths: u32) -> Self {
        let full = (table::capacity(table.len()) * MAX_LOAD_32NDS).div_ceil(32);
        Self { table, used: 0, full, hand: 0, growths, seen: 0, fitted: false }
    }

    /// Whether it takes no new block as it is.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.used >= self.full
    }
}

/// Blocks that a shard is about to get.
#[derive(Clone, Copy)]
pub(crate) struct ExpectedBlocks {
    pub(crate) sure: usize,
    /// Blocks that may never come.
    pub(crate) others: usize,
}

impl Lane {
    /// Lets a shard grow or, at the bound of memory, drops old blocks until it takes a new one;
    /// the cell that the block `hash` can have then, if there is one.
    #[cold]
    pub(super) fn make_room(&mut self, shared: &Shared, shard: usize, hash: u64) -> Option<At> {
        self.grow_or_drop(shared, shard);
        let (_, path) = self.path(&shared.layout, hash);
        match table::locate(&self.shards[shard].table, path, hash, true) {
            Located::Free(at) => Some(at),
            Located::Here(_) | Located::Nowhere => None,
        }
    }

    fn grow_or_drop(&mut self, shared: &Shared, shard: usize) {
        let Shard { table, fitted, .. } = &self.shards[shard];
        let buckets = table.len();
        let larger = larger(shared, buckets, *fitted, self.first + shard);
        let half_full = self.shards[shard].used * 2 >= table::capacity(buckets);
        // A shard that is not half full and yet has no room has hostile hashes in it; growth
        // would not help.
        if half_full && self.resize(shared, shard, larger) {
            return;
        }
        for _ in 0..buckets.div_ceil(WINDOW) {
            if !self.shards[shard].is_full() {
                break;
            }
            self.drop_oldest(shared, shard);
        }
    }

    /// Makes room in a shard for the blocks that surely come, if memory allows it, so that they are
    /// not copied again and again while they come. If it grows for them there will be room for the
    /// others too, but for no more than one and a half times as many as the sure ones.
    pub(crate) fn reserve(&mut self, shared: &Shared, shard: usize, expected: ExpectedBlocks) {
        let ExpectedBlocks { sure: more, others } = expected;
        let Shard { table, used, full, .. } = &self.shards[shard];
        // What comes is spread by chance: hardly a shard gets four deviations more than its share.
        let most = |blocks: usize| blocks + 4 * blocks.isqrt();
        let needed = used + most(more);
        if needed <= *full {
            return;
        }
        let others = others.min((used + more) * 3 / 2);
        let fitting = |blocks: usize| (blocks * 32).div_ceil(MAX_LOAD_32NDS * table::capacity(1));
        let (number, least) = (self.first + shard, fitting(used + more + others));
        // Spread over the sizes up to 5/4 of the least, as those are that grew by themselves.
        let spread = least + least * (number % 32) / 128;
        let larger = larger(shared, table.len(), false, number);
        let buckets = spread.max(fitting(needed + most(others))).max(larger).next_multiple_of(2);
        self.resize(shared, shard, buckets);
    }

    /// Moves a shard that has room for many more blocks, and got none since the last call, into a
    /// table that fits. Returns the cells of that table, 0 if there is nothing to do.
    pub(crate) fn fit(&mut self, shared: &Shared, shard: usize) -> usize {
        let Shard { table, used, seen, .. } = &mut self.shards[shard];
        let is_still = *used <= std::mem::replace(seen, *used);
        let least = (*used * 32).div_ceil(FITTED_LOAD_32NDS * table::capacity(1));
        let fitting = least + least * ((self.first + shard) % 32) / 352;
        let fitting = fitting.max(shared.layout.fitted_buckets()).next_multiple_of(2);
        let is_spare = *used * 32 < table::capacity(table.len()) * MIN_LOAD_32NDS;
        if !is_still || !is_spare || fitting >= table.len() || !self.resize(shared, shard, fitting)
        {
            return 0;
        }
        let shard = &mut self.shards[shard];
        (shard.seen, shard.fitted) = (shard.used, true);
        table::capacity(fitting)
    }

    /// Copies a shard into a table of `buckets`; false if there is no memory for that.
    fn resize(&mut self, shared: &Shared, shard: usize, buckets: usize) -> bool {
        let Shard { table, .. } = &self.shards[shard];
        let more = buckets.saturating_sub(table.len()) * BUCKET_BYTES;
        let less = table.len().saturating_sub(buckets) * BUCKET_BYTES;
        let bytes = shared.table_bytes.fetch_add(more, Relaxed) + more;
        if more > 0 && bytes > shared.max_table_bytes {
            shared.table_bytes.fetch_sub(more, Relaxed);
            return false;
        }
        self.moves += 1;
        let mut lost = Vec::new();
        let new = Table::new(&shared.arena, buckets);
        table::copy(table, &shared.layout, &new, |value| lost.push(value));
        let resized = Shard::new(new.clone(), self.shards[shard].growths + 1);
        let old = std::mem::replace(&mut self.shards[shard], resized);
        self.shards[shard].used = old.used - lost.len();
        lost.into_iter().for_each(|value| self.forget_block(shared, value));
        self.youth = youth(&self.shards);
        let number = self.first + shard;
        shared.published.update(|view| view.set_table(number, new));
        shared.table_bytes.fetch_sub(less, Relaxed);
        // Freed by us and not by the last of the readers, whom that would delay.
        self.replaced.push(old.table);
        self.free_replaced();
        true
    }

    /// Drops the oldest of the next few blocks: in time all are looked at, and the old ones go.
    fn drop_oldest(&mut self, shared: &Shared, shard: usize) {
        let Shard { table, hand, .. } = &mut self.shards[shard];
        let mut oldest: Option<(u8, usize, usize, CellValue)> = None;
        for _ in 0..WINDOW.min(table.len()) {
            for cell in 0..table::capacity(1) {
                let Some(value) = table::used(table, *hand, cell) else { continue };
                let years = self.age.wrapping_sub(value.age());
                if oldest.is_none_or(|(most, ..)| years > most) {
                    oldest = Some((years, *hand, cell, value));
                }
            }
            *hand = (*hand + 1) % table.len();
        }
        let Some((_, bucket, cell, value)) = oldest else { return };
        if let Some((path, at)) = table::place_of(table, &shared.layout, bucket, cell) {
            self.drop_block(shared, shard, UsedCell { path, at, value });
        }
    }

    /// Forgets a block, whoever holds it.
    #[cold]
    pub(super) fn drop_block(&mut self, shared: &Shared, shard: usize, cell: UsedCell) {
        let UsedCell { path, at, value } = cell;
        self.moves += 1;
        table::free(&self.shards[shard].table, path, at);
        self.shards[shard].used -= 1;
        self.forget_block(shared, value);
    }

    /// Counts a block as dropped that is in no cell any more.
    fn forget_block(&mut self, shared: &Shared, value: CellValue) {
        for &element in self.transitions.elements(&shared.sets, value.set()) {
            let slot = elements::slot(element) as usize;
            if let (true, Some(held)) = (elements::is_reported(element), self.held.get_mut(slot)) {
                *held = held.saturating_sub(1);
            }
            self.dropped += 1;
        }
        shared.has_dropped.store(true, Relaxed);
        self.release(value.set());
    }
}

/// Buckets that a shard of `buckets`, which was `fitted` or not, grows to.
fn larger(shared: &Shared, buckets: usize, fitted: bool, shard: usize) -> usize {
    // Where memory is short, larger steps would leave more of it unused.
    let is_short = shared.table_bytes.load(Relaxed) > shared.max_table_bytes / 4;
    let by_quarter = is_short || buckets >= SPREAD;
    let larger = match (fitted, by_quarter) {
        (true, _) => (buckets * 9).div_ceil(8),
        (false, true) => (buckets * 5).div_ceil(4),
        (false, false) => buckets * 2,
    };
    let larger = larger.next_multiple_of(2);
    let spreads = buckets < SPREAD && larger >= SPREAD;
    if spreads { SPREAD + shard * 2 % (SPREAD / 4) } else { larger }
}

#[cfg(all(test, not(stator_loom)))]
mod tests {
    use crate::testkit::{stored, worker};
    use crate::{EventEffect, Index, IndexSettings, IndexStats};
    use stator_protos::Generation;
    use stator_protos::hash::SequenceHash;
    use stator_protos::kv_event::{KvEvent, Medium};
    use std::ops::Range;

    const LIFE: Generation = Generation(1);

    fn index(max_bytes: usize, workers: u64) -> Index {
        let index = Index::new(IndexSettings { max_bytes, ..IndexSettings::default() });
        (0..workers).for_each(|number| _ = index.insert(worker(number), LIFE));
        index
    }

    /// One that waits for the snapshots of all workers.
    fn waiting(max_bytes: usize, workers: u64) -> Index {
        let index = index(max_bytes, workers);
        (0..workers).for_each(|number| index.unknown(worker(number)));
        index
    }

    fn replace(index: &Index, of: u64, numbers: Range<u64>) {
        let block = |number: u64| SequenceHash(number.wrapping_mul(0xd134_2543_de82_ef95));
        let blocks = numbers.map(|number| (block(number), Medium::Device));
        assert_eq!(index.replace(worker(of), LIFE, blocks), EventEffect::Yes);
    }

    fn growths(index: &Index) -> Vec<u32> {
        let of = |lane: &super::Lane| lane.shards.iter().map(|s| s.growths).collect::<Vec<_>>();
        index.lanes.iter().flat_map(|lane| of(&lane.lock())).collect()
    }

    fn used(index: &Index) -> Vec<usize> {
        let of = |lane: &super::Lane| lane.shards.iter().map(|s| s.used).collect::<Vec<_>>();
        index.lanes.iter().flat_map(|lane| of(&lane.lock())).collect()
    }

    #[test]
    fn small_shards_double_unless_memory_is_short() {
        let roomy = index(1 << 30, 1);
        store(&roomy, 1..300_001);
        assert!(growths(&roomy).iter().all(|growths| (4..=6).contains(growths)));
        let short = index(4 << 20, 1);
        store(&short, 1..400_001);
        let (least, most) = (used(&short).into_iter().min(), used(&short).into_iter().max());
        assert!(
            least.zip(most).is_some_and(|(least, most)| least * 2 > most),
            "{least:?}, {most:?}"
        );
    }

    fn store(index: &Index, numbers: Range<u64>) {
        let blocks: Vec<_> = numbers.map(|n| n.wrapping_mul(0xd134_2543_de82_ef95)).collect();
        for part in blocks.chunks(64) {
            index.apply(worker(0), LIFE, &stored(part, None, Medium::Device));
        }
    }

    /// Looks at all tables, so often.
    fn maintain(index: &Index, times: usize) {
        (0..times).for_each(|_| while index.maintain(1000) {});
    }

    #[test]
    fn what_got_no_more_blocks_is_given_tables_that_fit() {
        let index = index(1 << 30, 1);
        store(&index, 1..300_000);
        let (before, grown) = (index.stats(), growths(&index));
        assert!(before.bytes > before.blocks * 22, "{before:?}");
        maintain(&index, 1);
        assert_eq!(index.stats(), before, "more may come");
        maintain(&index, 2);
        let fitted = index.stats();
        assert!(fitted.bytes < fitted.blocks * 20, "{fitted:?}");
        assert_eq!(fitted, IndexStats { bytes: fitted.bytes, ..before });
        // No table more than once.
        let spare = growths(&index).iter().zip(&grown).filter(|(now, then)| now > then).count();
        let sum = |all: &[u32]| all.iter().sum::<u32>() as usize;
        assert_eq!(sum(&growths(&index)), sum(&grown) + spare);
        store(&index, 300_000..345_000);
        let more = index.stats();
        assert!(more.bytes < more.blocks * 25, "{more:?}");
        maintain(&index, 3);
        assert!(index.stats().bytes < more.blocks * 22);
    }

    #[test]
    fn the_room_of_blocks_that_are_gone_is_given_back_unless_more_are_expected() {
        for expected in [false, true] {
            let index = index(1 << 30, 2);
            store(&index, 1..300_000);
            if expected {
                index.unknown(worker(1));
            }
            index.apply(worker(0), LIFE, &KvEvent::Cleared);
            store(&index, 1..50_000);
            let before = index.stats();
            maintain(&index, 3);
            let after = index.stats();
            assert_eq!((after.blocks, after.held, after.dropped), (49_999, 49_999, 0));
            assert_eq!(after.bytes < before.bytes / 4, !expected, "{before:?}, {after:?}");
        }
    }

    #[test]
    fn a_snapshot_is_given_room_at_once_and_known_blocks_none() {
        let index = index(1 << 30, 2);
        replace(&index, 0, 0..300_000);
        assert_eq!(growths(&index), vec![1; 256]);
        let stats = index.stats();
        assert!(stats.bytes < stats.blocks * 22, "{stats:?}");
        replace(&index, 0, 0..300_000);
        replace(&index, 1, 0..300_000);
        assert_eq!(growths(&index), vec![1; 256]);
    }

    #[test]
    fn snapshots_that_come_next_are_given_room_ahead() {
        let index = waiting(1 << 30, 8);
        (0..8).for_each(|of| replace(&index, of, of * 90_000..(of + 1) * 90_000));
        // For one snapshot, for three, and for all, which is short by chance in few shards.
        let growths = growths(&index);
        assert!(growths.iter().sum::<u32>() < 256 * 13 / 4, "{growths:?}");
        let stats = index.stats();
        assert!(stats.bytes < stats.blocks * 22, "{stats:?}");
    }

    #[test]
    fn few_snapshots_are_expected_before_any_came() {
        let filled = |max_bytes| {
            let index = waiting(max_bytes, 64);
            replace(&index, 0, 0..150_000);
            let stats = index.stats();
            assert!(stats.bytes < stats.blocks * 22, "nothing says that any come: {stats:?}");
            replace(&index, 1, 150_000..300_000);
            index.stats()
        };
        let stats = filled(1 << 30);
        assert!(stats.bytes > stats.blocks * 26 && stats.bytes < stats.blocks * 33, "{stats:?}");
        let stats = filled(12 << 20);
        assert!(stats.bytes < stats.blocks * 22, "memory is short: {stats:?}");
    }

    #[test]
    fn workers_that_are_known_to_hold_nothing_are_given_no_room() {
        let index = waiting(1 << 30, 64);
        (2..64).for_each(|of| replace(&index, of, 0..0));
        replace(&index, 0, 0..150_000);
        replace(&index, 1, 150_000..300_000);
        let stats = index.stats();
        assert!(stats.bytes < stats.blocks * 22, "{stats:?}");
    }

    #[test]
    fn a_snapshot_beyond_the_bound_fills_all_shards_alike() {
        let index = index(4 << 20, 2);
        replace(&index, 0, 0..400_000);
        let stats = index.stats();
        assert!(stats.bytes <= 4 << 20, "{stats:?}");
        assert_eq!(stats.blocks as u64 + stats.dropped, 400_000);
        let used = used(&index);
        let (least, most) = (used.iter().min(), used.iter().max());
        assert!(least.zip(most).is_some_and(|(least, most)| least * 2 > *most), "{used:?}");
    }
}
