//! A lane: the shards that one writer at a time changes.

use crate::cell::{SetRef, Value};
use crate::elements::Code;
use crate::layout::Layout;
use crate::sets::{Collection, Sets};
use crate::table::{self, At, Located, Near, Path, Table};
use crate::transitions::Transitions;
use crate::view::Published;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

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
    pub(crate) op: Code,
}

/// A cell with a block, its place on the block's path, and its value.
type Used = (Path, At, Value);

struct Shard {
    table: Table,
    used: usize,
    /// Used cells from which on it takes no new block as it is.
    full: usize,
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
    /// Blocks that became known in the present age, and how many end it.
    young: usize,
    youth: usize,
}

impl Lane {
    pub(crate) fn new(shared: &Shared, number: usize) -> Self {
        let first = number * shared.layout.shards_per_lane();
        let view = shared.published.view();
        let tables = view.tables().skip(first).take(shared.layout.shards_per_lane());
        let shards: Vec<Shard> = tables.map(|table| Shard::new(table.clone(), 0)).collect();
        Self {
            youth: youth(&shards),
            shards,
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
        // Before any of them is made, since each would wait for memory.
        for change in changes.iter().filter(|change| change.op.adds()) {
            let (shard, path) = self.path(&shared.layout, change.hash);
            table::fetch_beyond(&self.shards[shard].table, path);
        }
        for &change in changes {
            self.change(shared, slot, change);
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

    /// Tells which sets cells of the lane name, and forgets which sets became which.
    pub(crate) fn name_sets(&mut self, collection: &mut Collection) {
        self.transitions.clear();
        let named = self.uses.iter().enumerate().filter(|(_, uses)| **uses > 0);
        named.for_each(|(number, _)| collection.name(number as u32));
    }

    /// Forgets which sets became which: other slots are retired.
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

    /// Which of the lane's shards a block is in, and its path there.
    #[inline]
    fn path(&self, layout: &Layout, hash: u64) -> (usize, Path) {
        let (shard, place) = layout.place(hash);
        let shard = shard - self.first;
        (shard, Path::new(place, &self.shards[shard].table))
    }

    #[inline]
    fn change(&mut self, shared: &Shared, slot: u32, change: Change) {
        let (shard, path) = self.path(&shared.layout, change.hash);
        match table::locate_near(&self.shards[shard].table, path, change.hash) {
            Near::Here(at, value) => {
                self.change_at(shared, slot, change.op, (shard, path, at, value));
            }
            Near::Free(at) if change.op.adds() => {
                self.create(shared, slot, change, (shard, path, Some(at)));
            }
            Near::Free(_) => {}
            Near::Further { passed } => {
                self.change_further(shared, slot, change, (shard, path, passed));
            }
        }
    }

    /// The same where the first pair of buckets does not tell.
    #[inline(never)]
    fn change_further(
        &mut self,
        shared: &Shared,
        slot: u32,
        change: Change,
        (shard, path, passed): (usize, Path, bool),
    ) {
        let table = &self.shards[shard].table;
        let located = match passed {
            true => table::locate(table, path, change.hash),
            false if !change.op.adds() => return,
            false => table::room_beyond(table, path).map_or(Located::Nowhere, Located::Free),
        };
        let at = match located {
            Located::Here(at, value) => {
                return self.change_at(shared, slot, change.op, (shard, path, at, value));
            }
            Located::Free(at) => Some(at),
            Located::Nowhere => None,
        };
        if change.op.adds() {
            self.create(shared, slot, change, (shard, path, at));
        }
    }

    /// Changes who holds a block that has a cell.
    #[inline(always)]
    fn change_at(
        &mut self,
        shared: &Shared,
        slot: u32,
        op: Code,
        (shard, path, at, value): (usize, Path, At, Value),
    ) {
        match self.transitions.step(&shared.sets, value.set(), slot, op) {
            // The same holders as before: nothing to count either.
            Some(step) if step.set == value.set() => {}
            Some(step) => {
                self.count(slot, step.held);
                self.turn(shard, (path, at, value), step.set, op.adds());
            }
            None => self.drop_block(shared, shard, (path, at, value)),
        }
    }

    /// Gives a cell that has a block another set.
    #[inline(always)]
    fn turn(&mut self, shard: usize, (path, at, value): Used, set: SetRef, renews: bool) {
        self.release(value.set());
        let shard = &mut self.shards[shard];
        if set == SetRef::EMPTY {
            table::free(&shard.table, path, at);
            shard.used -= 1;
        } else {
            let age = if renews { self.age } else { value.age() };
            table::put(&shard.table, at, value.with(set, age));
            self.retain(set);
        }
    }

    /// Gives a block that nobody held a cell: `at` unless the shard has to change first.
    #[inline(always)]
    fn create(
        &mut self,
        shared: &Shared,
        slot: u32,
        change: Change,
        (shard, path, at): (usize, Path, Option<At>),
    ) {
        let at = match at {
            Some(at) if !self.shards[shard].is_full() => Some((path, at)),
            _ => self.make_room(shared, shard, change.hash),
        };
        let step = self.transitions.step(&shared.sets, SetRef::EMPTY, slot, change.op);
        let (Some((path, at)), Some(step)) = (at, step) else {
            self.dropped += 1;
            return;
        };
        self.count(slot, step.held);
        self.retain(step.set);
        let shard = &mut self.shards[shard];
        table::fill(&shard.table, path, at, (change.hash, step.set, self.age));
        shard.used += 1;
        self.young += 1;
        if self.young > self.youth {
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
        match self.uses.get_mut(number) {
            Some(uses) => *uses += 1,
            None => self.retain_first(number),
        }
    }

    #[cold]
    fn retain_first(&mut self, number: usize) {
        self.uses.resize((number + 1).next_power_of_two(), 0);
        self.uses[number] += 1;
    }

    #[inline]
    fn release(&mut self, set: SetRef) {
        self.uses[set.number() as usize] -= 1;
    }
}

/// New blocks after which those of these shards count as older.
fn youth(shards: &[Shard]) -> usize {
    table::capacity(shards[0].table.len()) * shards.len() / AGES
}

pub(crate) use sweep::SweepPlace;

mod room;
mod sweep;
