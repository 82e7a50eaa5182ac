//! A lane: the shards that one writer at a time changes.

use crate::cell::{SetRef, Value};
use crate::elements::Op;
use crate::layout::Layout;
use crate::sets::Sets;
use crate::table::{self, At, Located, Path, Table};
use crate::transitions::Transitions;
use crate::view::Published;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Changes whose cells are fetched from memory at once.
const AHEAD: usize = 16;
/// Blocks become older as often as this part of what the lane has room for is new.
const AGES: usize = 64;

/// What all lanes share.
pub(crate) struct Shared {
    pub(crate) layout: Layout,
    pub(crate) published: Published,
    pub(crate) sets: Sets,
    /// Bytes of all tables, and how many they may be.
    pub(crate) table_bytes: AtomicUsize,
    pub(crate) max_table_bytes: usize,
}

/// What happens to one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) hash: u64,
    pub(crate) op: Op,
}

struct Shard {
    table: Table,
    used: usize,
    /// Where the search for old blocks goes on.
    hand: usize,
    /// How often the table was replaced.
    growths: u32,
}

/// Shards with all that their writer knows. Behind a lock; readers see the tables only.
pub(crate) struct Lane {
    shards: Vec<Shard>,
    /// Number of the first shard among those of all lanes.
    first: usize,
    /// How many cells name each set.
    uses: Vec<u32>,
    /// Blocks that the worker in each slot holds, as reported.
    held: Vec<u32>,
    transitions: Transitions,
    /// Replaced tables that readers may still have.
    replaced: Vec<Table>,
    dropped: u64,
    age: u8,
    /// Blocks that became known in the present age.
    young: usize,
}

impl Lane {
    pub(crate) fn new(shared: &Shared, number: usize) -> Self {
        let first = number * shared.layout.shards_per_lane();
        let view = shared.published.view();
        let tables = &view.tables[first..first + shared.layout.shards_per_lane()];
        let shard = |table: &Table| Shard { table: table.clone(), used: 0, hand: 0, growths: 0 };
        Self {
            shards: tables.iter().map(shard).collect(),
            first,
            uses: Vec::new(),
            held: Vec::new(),
            transitions: Transitions::new(),
            replaced: Vec::new(),
            dropped: 0,
            age: 0,
            young: 0,
        }
    }

    /// Makes changes to blocks of this lane's shards, all by the worker in `slot`.
    pub(crate) fn write(&mut self, shared: &Shared, slot: u32, changes: &[Change]) {
        if self.held.len() <= slot as usize {
            self.held.resize(slot as usize + 1, 0);
        }
        for changes in changes.chunks(AHEAD) {
            let wanted = changes.iter().map(|change| {
                let (shard, place) = self.place(shared, change.hash);
                let table = &*self.shards[shard].table;
                (table, Path::new(place, table.len()), change.hash)
            });
            table::fetch(wanted, true);
            for change in changes {
                self.change(shared, slot, change);
            }
        }
    }

    /// Distinct blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.shards.iter().map(|shard| shard.used).sum()
    }

    /// Blocks that the worker in `slot` holds, as reported.
    pub(crate) fn held(&self, slot: u32) -> usize {
        self.held.get(slot as usize).map_or(0, |&held| held as usize)
    }

    /// Entries that were dropped for want of room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How many cells name the set of this number.
    pub(crate) fn uses(&self, set: u32) -> u32 {
        self.uses.get(set as usize).copied().unwrap_or(0)
    }

    /// Forgets which sets became which: they are being collected, or other slots are retired.
    pub(crate) fn forget_steps(&mut self) {
        self.transitions.clear();
    }

    /// Forgets how much a slot held. Nothing refers to it any more.
    pub(crate) fn forget_slot(&mut self, slot: u32) {
        if let Some(held) = self.held.get_mut(slot as usize) {
            *held = 0;
        }
    }

    /// Frees tables that no reader has any more.
    pub(crate) fn free_replaced(&mut self) {
        // Only we can make another of the last one.
        self.replaced.retain(|table| Arc::strong_count(table) > 1);
    }

    /// Which of the lane's shards a block is in, and its place there.
    #[inline]
    fn place(&self, shared: &Shared, hash: u64) -> (usize, u64) {
        let (shard, place) = shared.layout.place(hash);
        (shard - self.first, place)
    }

    #[inline]
    fn change(&mut self, shared: &Shared, slot: u32, change: &Change) {
        let (shard, place) = self.place(shared, change.hash);
        let table = &self.shards[shard].table;
        match table::locate(table, Path::new(place, table.len()), change.hash) {
            Located::Here(at, value) => {
                let step = self.transitions.step(&shared.sets, value.set(), slot, change.op);
                let Some(step) = step else { return self.drop_block(shared, shard, at, value) };
                self.count(slot, step.held);
                self.turn(shard, at, value, step.set, change.op.adds());
            }
            Located::Free(at) if change.op.adds() => self.create(shared, slot, change, Some(at)),
            Located::Nowhere if change.op.adds() => self.create(shared, slot, change, None),
            Located::Free(_) | Located::Nowhere => {}
        }
    }

    /// Gives a cell that has a block another set.
    #[inline]
    fn turn(&mut self, shard: usize, at: At, value: Value, set: SetRef, renews: bool) {
        if set == value.set() {
            return;
        }
        self.release(value.set());
        let shard = &mut self.shards[shard];
        if set == SetRef::EMPTY {
            table::free(&shard.table, at);
            shard.used -= 1;
        } else {
            let age = if renews { self.age } else { value.age() };
            table::put(&shard.table, at, value.with(set, age));
            self.retain(set);
        }
    }

    /// Gives a block that nobody held a cell: `at` unless the shard has to change first.
    fn create(&mut self, shared: &Shared, slot: u32, change: &Change, at: Option<At>) {
        let (shard, place) = self.place(shared, change.hash);
        let mut at = at;
        if self.is_full(shard) || at.is_none() {
            self.make_room(shared, shard);
            let table = &self.shards[shard].table;
            let path = Path::new(place, table.len());
            at = match table::locate(table, path, change.hash) {
                Located::Free(at) => Some(at),
                Located::Here(..) | Located::Nowhere => None,
            };
        }
        let step = self.transitions.step(&shared.sets, SetRef::EMPTY, slot, change.op);
        let (Some(at), Some(step)) = (at, step) else {
            self.dropped += 1;
            return;
        };
        self.count(slot, step.held);
        self.retain(step.set);
        let shard = &mut self.shards[shard];
        table::fill(&shard.table, at, change.hash, step.set, self.age);
        shard.used += 1;
        self.grow_older();
    }

    fn grow_older(&mut self) {
        self.young += 1;
        let room = table::capacity(self.shards[0].table.len()) * self.shards.len();
        if self.young > room / AGES {
            self.young = 0;
            self.age = self.age.wrapping_add(1);
        }
    }

    #[inline]
    fn count(&mut self, slot: u32, held: i32) {
        let count = &mut self.held[slot as usize];
        // Blocks that were dropped may be counted down again when they are reported gone.
        *count = count.saturating_add_signed(held);
    }

    #[inline]
    fn retain(&mut self, set: SetRef) {
        let number = set.number() as usize;
        if self.uses.len() <= number {
            self.uses.resize((number + 1).next_power_of_two(), 0);
        }
        self.uses[number] += 1;
    }

    #[inline]
    fn release(&mut self, set: SetRef) {
        self.uses[set.number() as usize] -= 1;
    }
}

pub(crate) use sweep::SweepPlace;

mod room;
mod sweep;
