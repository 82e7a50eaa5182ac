//! A lane: the shards that one writer at a time changes.

use crate::cell::{SetRef, Value};
use crate::elements::Op;
use crate::layout::Layout;
use crate::sets::Sets;
use crate::table::{self, At, Found, Located, Path, Table};
use crate::transitions::Transitions;
use crate::view::Published;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Changes whose cells are fetched from memory at once.
const AHEAD: usize = 32;
/// Steps of their paths up to which that is done; hardly any goes farther.
const AHEAD_STEPS: usize = 16;
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

/// Where a block is looked for.
struct Place {
    shard: usize,
    path: Path,
    /// Where it is, if it is there before the changes that are made with it.
    here: Option<At>,
    /// Where else it goes.
    room: Option<At>,
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
    scratch: (Vec<Place>, Vec<usize>),
    /// Whether a cell was freed since places were found.
    has_freed: bool,
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
        let tables = view.tables().skip(first).take(shared.layout.shards_per_lane());
        let shard = |table: &Table| Shard { table: table.clone(), used: 0, hand: 0, growths: 0 };
        Self {
            shards: tables.map(shard).collect(),
            first,
            uses: Vec::new(),
            held: Vec::new(),
            transitions: Transitions::new(),
            scratch: Default::default(),
            has_freed: false,
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
        let (mut places, mut pending) = std::mem::take(&mut self.scratch);
        for changes in changes.chunks(AHEAD) {
            self.fetch(shared, changes, &mut places, &mut pending);
            self.has_freed = false;
            for (change, place) in changes.iter().zip(&places) {
                self.change(shared, slot, change, place);
            }
        }
        self.scratch = (places, pending);
    }

    /// Finds the places of blocks, and brings their cells into the processor's cache: many at a
    /// time with loads that wait for nothing, where a search for each in turn would wait for
    /// memory at every step.
    fn fetch(
        &self,
        shared: &Shared,
        changes: &[Change],
        places: &mut Vec<Place>,
        pending: &mut Vec<usize>,
    ) {
        places.clear();
        pending.clear();
        let mut touched = 0;
        places.extend(changes.iter().map(|change| {
            let (shard, place) = self.place(shared, change.hash);
            let table = &self.shards[shard].table;
            let path = Path::new(place, table);
            touched ^= table::touch(table, path, 0);
            Place { shard, path, here: None, room: None }
        }));
        pending.extend(0..changes.len());
        for step in 0..AHEAD_STEPS {
            std::hint::black_box(std::mem::take(&mut touched));
            pending.retain(|&number| {
                let (place, key) = (&mut places[number], changes[number].hash);
                let table = &self.shards[place.shard].table;
                match table::look_or_room(table, place.path, key, step, &mut place.room) {
                    Found::Here(at) => place.here = Some(at),
                    Found::Absent => {}
                    Found::Further => {
                        touched ^= table::touch(table, place.path, step + 1);
                        return true;
                    }
                }
                false
            });
            if pending.is_empty() {
                return;
            }
        }
        // Not searched to the end: what was found on the way says nothing.
        pending.iter().for_each(|&number| places[number].room = None);
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
    fn change(&mut self, shared: &Shared, slot: u32, change: &Change, place: &Place) {
        let shard = place.shard;
        let table = &self.shards[shard].table;
        let fits = place.path.fits(table);
        let at_once = match (place.here.filter(|_| fits), place.room.filter(|_| fits)) {
            (Some(at), _) => table::value_at(table, at, change.hash).map(|v| Located::Here(at, v)),
            // Whatever took an earlier place for the same block would have taken this one, unless
            // it was free for a while only.
            (None, Some(at)) if !self.has_freed && table::is_free(table, at) => {
                Some(Located::Free(at))
            }
            _ => None,
        };
        let located = at_once.unwrap_or_else(|| {
            let path = Path::new(self.place(shared, change.hash).1, table);
            table::locate(table, path, change.hash)
        });
        match located {
            Located::Here(at, value) => self.change_at(shared, slot, change.op, shard, at, value),
            Located::Free(at) if change.op.adds() => self.create(shared, slot, change, Some(at)),
            Located::Nowhere if change.op.adds() => self.create(shared, slot, change, None),
            Located::Free(_) | Located::Nowhere => {}
        }
    }

    /// Changes who holds a block that has a cell.
    #[inline]
    fn change_at(
        &mut self,
        shared: &Shared,
        slot: u32,
        op: Op,
        shard: usize,
        at: At,
        value: Value,
    ) {
        match self.transitions.step(&shared.sets, value.set(), slot, op) {
            Some(step) => {
                self.count(slot, step.held);
                self.turn(shard, at, value, step.set, op.adds());
            }
            None => self.drop_block(shared, shard, at, value),
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
            self.has_freed = true;
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
            let path = Path::new(place, table);
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
