//! Room for new blocks: by growth where memory allows it, else by dropping old blocks.

use super::{Lane, Shard, Shared};
use crate::cell::Value;
use crate::elements;
use crate::table::{self, At, BUCKET_BYTES};
use std::sync::atomic::Ordering::Relaxed;

/// A shard that is fuller than this many 32nds grows to 6/5 of its size: it is three quarters to
/// nine tenths full then, and a block takes 19 to 20 bytes on average.
const MAX_LOAD_32NDS: usize = 29;
/// Buckets among which the oldest block goes when there is no room.
const WINDOW: usize = 8;

impl Lane {
    /// Whether a shard takes no new block as it is.
    #[inline]
    pub(super) fn is_full(&self, shard: usize) -> bool {
        let shard = &self.shards[shard];
        shard.used * 32 >= table::capacity(shard.table.len()) * MAX_LOAD_32NDS
    }

    /// Lets a shard grow or, at the bound of memory, drops old blocks until it takes a new one.
    #[cold]
    pub(super) fn make_room(&mut self, shared: &Shared, shard: usize) {
        let buckets = self.shards[shard].table.len();
        let larger = (buckets * 6).div_ceil(5).next_multiple_of(2);
        let half_full = self.shards[shard].used * 2 >= table::capacity(buckets);
        // A shard that is not half full and yet has no room has hostile hashes in it; growth
        // would not help.
        if half_full && self.grow(shared, shard, larger) {
            return;
        }
        for _ in 0..buckets.div_ceil(WINDOW) {
            if !self.is_full(shard) {
                break;
            }
            self.drop_oldest(shared, shard);
        }
    }

    /// Copies a shard into a table of `buckets`; false if there is no memory for that.
    fn grow(&mut self, shared: &Shared, shard: usize, buckets: usize) -> bool {
        let Shard { table, .. } = &self.shards[shard];
        let more = (buckets - table.len()) * BUCKET_BYTES;
        let bytes = shared.table_bytes.fetch_add(more, Relaxed) + more;
        if bytes > shared.max_table_bytes {
            shared.table_bytes.fetch_sub(more, Relaxed);
            return false;
        }
        let mut lost = Vec::new();
        let old = table.clone();
        let larger = table::grown(&old, &shared.layout, buckets, |value| lost.push(value));
        for value in lost {
            self.shards[shard].used -= 1;
            self.forget_block(shared, value);
        }
        self.shards[shard].table = larger.clone();
        self.shards[shard].hand = 0;
        self.shards[shard].growths += 1;
        let number = self.first + shard;
        shared.published.update(|view| view.set_table(number, larger));
        // Freed by us and not by the last of the readers, whom that would delay.
        self.replaced.push(old);
        self.free_replaced();
        true
    }

    /// Drops the oldest of the next few blocks: in time all are looked at, and the old ones go.
    fn drop_oldest(&mut self, shared: &Shared, shard: usize) {
        let Shard { table, hand, .. } = &mut self.shards[shard];
        let table = table.clone();
        let age = self.age;
        let mut oldest: Option<(u8, At, Value)> = None;
        for _ in 0..WINDOW.min(table.len()) {
            for (at, _, value) in table::used(&table, &shared.layout, *hand) {
                let years = age.wrapping_sub(value.age());
                if oldest.is_none_or(|(most, ..)| years > most) {
                    oldest = Some((years, at, value));
                }
            }
            *hand = (*hand + 1) % table.len();
        }
        if let Some((_, at, value)) = oldest {
            self.drop_block(shared, shard, at, value);
        }
    }

    /// Forgets a block, whoever holds it.
    #[cold]
    pub(super) fn drop_block(&mut self, shared: &Shared, shard: usize, at: At, value: Value) {
        self.has_freed = true;
        table::free(&self.shards[shard].table, at);
        self.shards[shard].used -= 1;
        self.forget_block(shared, value);
    }

    /// Counts a block as dropped that is in no cell any more.
    fn forget_block(&mut self, shared: &Shared, value: Value) {
        for &element in self.transitions.elements(&shared.sets, value.set()) {
            let slot = elements::slot(element) as usize;
            if let (true, Some(held)) = (elements::is_reported(element), self.held.get_mut(slot)) {
                *held = held.saturating_sub(1);
            }
            self.dropped += 1;
        }
        self.release(value.set());
    }
}
