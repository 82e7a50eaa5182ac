//! A lane: the shards that one writer at a time changes.

use crate::arena::Arena;
use crate::cell::{CellValue, SetRef};
use crate::elements::Code;
use crate::layout::Layout;
use crate::sets::{Collection, Sets};
use crate::table::{self, At, Located, NewBlock, Path, Seek, Table};
use crate::transitions::Transitions;
use crate::view::Published;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Blocks become older as often as this part of what the lane has room for is new.
const AGES: usize = 64;

/// Changes ahead of the present one, for which the cells of the first look are fetched.
pub(crate) const AHEAD: usize = 16;

/// State that all lanes share.
pub(crate) struct Shared {
    pub(crate) layout: Layout,
    /// Memory of large tables.
    pub(crate) arena: Arena,
    pub(crate) published: Published,
    pub(crate) sets: Sets,
    /// Bytes of all tables, and how many they may be.
    pub(crate) table_bytes: AtomicUsize,
    pub(crate) max_table_bytes: usize,
    /// Whether blocks were ever dropped for want of room.
    pub(crate) has_dropped: AtomicBool,
}

/// Change of one worker's share in one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockChange {
    pub(crate) hash: u64,
    pub(crate) op: Code,
}

/// Changes of one kind, and all that come: they and those behind them, which are fetched ahead.
#[derive(Clone, Copy)]
struct Run<'a> {
    changes: &'a [BlockChange],
    ahead: &'a [BlockChange],
}

/// Location of a change's block, found before any change was made.
#[derive(Clone, Copy)]
struct Plan {
    shard: u32,
    located: Located,
}

/// A block's cell: its shard, its place there, and its value.
#[derive(Clone, Copy)]
struct FoundBlock {
    shard: usize,
    at: At,
    value: CellValue,
}

/// Room for a new block: its shard, and a free cell there if one was found.
#[derive(Clone, Copy)]
struct Vacancy {
    shard: usize,
    at: Option<At>,
}

/// Memory that [`Lane::write`] reuses.
#[derive(Default)]
struct Scratch {
    plans: Vec<Plan>,
    /// Changes, by number, whose blocks are searched farther.
    seeks: Vec<(u32, Seek)>,
}

/// A block's cell, on the path of its hash.
#[derive(Clone, Copy)]
struct UsedCell {
    path: Path,
    at: At,
    value: CellValue,
}

struct Shard {
    table: Table,
    used: usize,
    /// Used cells from which on it takes no new block as it is.
    full: usize,
    /// Position at which the search for old blocks goes on.
    hand: usize,
    /// Times that the table was replaced.
    growths: u32,
    /// Used cells when the background last looked.
    seen: usize,
    /// Whether it was given a table that fits: it did not grow fast.
    fitted: bool,
}

/// Shards with all that their writer knows. Behind a lock; readers see the tables only.
pub(crate) struct Lane {
    shards: Vec<Shard>,
    /// Number of the first shard among those of all lanes.
    first: usize,
    /// Cells that name each set.
    uses: Vec<u32>,
    /// Blocks that the worker in each slot holds, as reported.
    held: Vec<u32>,
    transitions: Transitions,
    scratch: Scratch,
    /// Times that cells were freed or moved otherwise than by a change to their block.
    moves: u64,
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
            scratch: Scratch::default(),
            moves: 0,
            replaced: Vec::new(),
            dropped: 0,
            age: 0,
            young: 0,
        }
    }

    /// Makes changes to blocks of this lane's shards, all by the worker in `slot`.
    pub(crate) fn write(&mut self, shared: &Shared, slot: u32, changes: &[BlockChange]) {
        if self.held.len() <= slot as usize {
            self.held.resize(slot as usize + 1, 0);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut rest = changes;
        while let Some(run) = rest.chunk_by(|one, next| one.op == next.op).next() {
            self.write_run(shared, slot, Run { changes: run, ahead: rest }, &mut scratch);
            rest = &rest[run.len()..];
        }
        self.scratch = scratch;
    }

    /// Makes changes of one kind. All their blocks are located together before
    /// any change is made, since each search would wait for memory.
    fn write_run(&mut self, shared: &Shared, slot: u32, run: Run<'_>, scratch: &mut Scratch) {
        self.plan(shared, run, scratch);
        let moves = self.moves;
        for (&change, &Plan { shard, located }) in run.changes.iter().zip(&scratch.plans) {
            let shard = shard as usize;
            let table = &self.shards[shard].table;
            match located {
                Located::Here(at) if self.moves == moves => {
                    if let Some(value) = table::value_of(table, at, change.hash) {
                        self.change_at(shared, slot, change, FoundBlock { shard, at, value });
                        continue;
                    }
                }
                // Blocks are only added or only taken away in one run: a block that was nowhere
                // can have come only by a change that found this cell free too, and took it or
                // found it taken.
                Located::Free(at) if self.moves == moves && table::is_free(table, at) => {
                    self.create(shared, slot, change, Vacancy { shard, at: Some(at) });
                    continue;
                }
                Located::Nowhere if !change.op.adds() => continue,
                _ => {}
            }
            self.change(shared, slot, change);
        }
    }

    /// Finds where changes find their blocks.
    fn plan(&self, shared: &Shared, run: Run<'_>, scratch: &mut Scratch) {
        let Scratch { plans, seeks } = scratch;
        plans.clear();
        for (number, change) in run.changes.iter().enumerate() {
            if let Some(ahead) = run.ahead.get(number + AHEAD) {
                let (shard, path) = self.path(&shared.layout, ahead.hash);
                path.fetch(&self.shards[shard].table);
            }
            let (shard, path) = self.path(&shared.layout, change.hash);
            let table = &self.shards[shard].table;
            let mut seek = Seek::new(path, change.hash);
            let located = seek.look(table, change.op.adds()).unwrap_or_else(|| {
                seek.fetch(table);
                seeks.push((number as u32, seek));
                Located::Nowhere
            });
            plans.push(Plan { shard: shard as u32, located });
        }
        // One step of each search in turn: while one waits for memory, the others go on.
        while !seeks.is_empty() {
            seeks.retain_mut(|(number, seek)| {
                let number = *number as usize;
                let Plan { shard, located } = &mut plans[number];
                let table = &self.shards[*shard as usize].table;
                let found = seek.look(table, run.changes[number].op.adds());
                match found {
                    Some(found) => *located = found,
                    None => seek.fetch(table),
                }
                found.is_none()
            });
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
        self.replaced.retain(Table::is_shared);
    }

    /// The lane's shard that a block is in, and the block's path there.
    #[inline]
    fn path(&self, layout: &Layout, hash: u64) -> (usize, Path) {
        let (shard, place) = layout.place(hash);
        let shard = shard - self.first;
        (shard, Path::new(place, &self.shards[shard].table))
    }

    /// Finds a block and changes it.
    #[cold]
    fn change(&mut self, shared: &Shared, slot: u32, change: BlockChange) {
        let (shard, path) = self.path(&shared.layout, change.hash);
        let table = &self.shards[shard].table;
        match table::locate(table, path, change.hash, change.op.adds()) {
            Located::Here(at) => {
                if let Some(value) = table::value_of(table, at, change.hash) {
                    self.change_at(shared, slot, change, FoundBlock { shard, at, value });
                }
            }
            Located::Free(at) => self.create(shared, slot, change, Vacancy { shard, at: Some(at) }),
            Located::Nowhere if change.op.adds() => {
                self.create(shared, slot, change, Vacancy { shard, at: None });
            }
            Located::Nowhere => {}
        }
    }

    /// Changes who holds a block that has a cell.
    #[inline(always)]
    fn change_at(
        &mut self,
        shared: &Shared,
        slot: u32,
        BlockChange { hash, op }: BlockChange,
        block: FoundBlock,
    ) {
        let FoundBlock { shard, at, value } = block;
        match self.transitions.step(&shared.sets, value.set(), slot, op) {
            // The same holders as before: nothing to count either.
            Some(step) if step.set == value.set() => {}
            Some(step) => {
                self.count(slot, step.held);
                let path = self.path(&shared.layout, hash).1;
                self.turn(shard, UsedCell { path, at, value }, step.set, op.adds());
            }
            None => {
                let path = self.path(&shared.layout, hash).1;
                self.drop_block(shared, shard, UsedCell { path, at, value });
            }
        }
    }

    /// Gives a cell that has a block another set.
    #[inline(always)]
    fn turn(&mut self, shard: usize, cell: UsedCell, set: SetRef, renews: bool) {
        let UsedCell { path, at, value } = cell;
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

    /// Gives a block that nobody held a cell: the vacant one unless the shard has to change first.
    #[inline(always)]
    fn create(&mut self, shared: &Shared, slot: u32, change: BlockChange, vacancy: Vacancy) {
        let shard = vacancy.shard;
        let at = match vacancy.at {
            Some(at) if !self.shards[shard].is_full() => Some(at),
            _ => self.make_room(shared, shard, change.hash),
        };
        let step = self.transitions.step(&shared.sets, SetRef::EMPTY, slot, change.op);
        let (Some(at), Some(step)) = (at, step) else {
            self.dropped += 1;
            return shared.has_dropped.store(true, Relaxed);
        };
        self.count(slot, step.held);
        self.retain(step.set);
        let path = self.path(&shared.layout, change.hash).1;
        let shard = &mut self.shards[shard];
        let block = NewBlock { key: change.hash, set: step.set, age: self.age };
        table::fill(&shard.table, path, at, block);
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

pub(crate) use room::ExpectedBlocks;
pub(crate) use sweep::SweepPlace;

mod room;
mod sweep;
