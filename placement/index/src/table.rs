//! Buckets of cells: an open hash table that one thread writes and any number read.
//!
//! A block stands in its home bucket or, where that is full, in the other one of the same pair
//! (which processors fetch together), else in other pairs at a stride that its hash gives. Going
//! to the next bucket instead would make runs of full buckets: at nine tenths full, a new block
//! would have to pass nine of them. A bucket counts what passed it, by three bits of
//! the hash, so that a search ends where nothing like it passed: mostly in the home bucket. Removal
//! counts down and leaves no trace. Homes keep the order of hashes: copying into a
//! larger table reads and writes both from front to back.

use crate::cell::{Cell, SetRef, Value};
use crate::layout::Layout;
use std::sync::Arc;

/// Cells of a bucket: a cache line.
const CELLS: usize = 4;
/// Bytes of a bucket.
pub(crate) const BUCKET_BYTES: usize = 64;
/// Buckets that a search visits at most. A block for which there is no room among them is not
/// taken: good hashes need a few, and hostile ones must not make searches long.
const MAX_PROBES: usize = 64;
/// A count that went so far is not counted down again.
const MAX_PASSED: u8 = 15;
/// Blocks whose cells are fetched side by side: what a core can have under way at once.
const FETCHED_AT_ONCE: usize = 16;
/// Steps of their paths up to which that is done; hardly any goes farther.
const FETCHED_STEPS: usize = 16;
/// Pairs that are tried at a stride, before those that follow the last of them one by one.
const STRIDES: usize = 8;

#[repr(align(64))]
pub(crate) struct Bucket {
    cells: [Cell; CELLS],
}

/// The cells of one shard.
pub(crate) type Table = Arc<[Bucket]>;

/// The buckets in which a block can be, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    home: usize,
    /// Which of a bucket's counts is this block's, below 8.
    tag: u8,
    stride: usize,
    pairs: usize,
}

/// A cell's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    bucket: usize,
    cell: usize,
    path: Path,
    /// Buckets of the path before `bucket`.
    distance: usize,
}

/// Where the writer finds a block, or room for it.
pub(crate) enum Located {
    Here(At, Value),
    Free(At),
    Nowhere,
}

/// An empty table of an even number of buckets.
pub(crate) fn new(buckets: usize) -> Table {
    let cells = || std::array::from_fn(|_| Cell::new());
    (0..buckets).map(|_| Bucket { cells: cells() }).collect()
}

/// Blocks that fit in as many buckets.
pub(crate) fn capacity(buckets: usize) -> usize {
    buckets * CELLS
}

impl Path {
    /// The path of a place within a shard whose table has so many buckets.
    #[inline]
    pub(crate) fn new(place: u64, buckets: usize) -> Self {
        let home = ((u128::from(place) * buckets as u128) >> 64) as usize;
        let pairs = buckets / 2;
        let stride = 1 + (((place & 0xffff_ffff) * pairs as u64) >> 32) as usize;
        let tag = (place >> 32) as u8 % 8;
        Self { home, tag, stride, pairs }
    }

    /// The bucket at one step of the path.
    #[inline]
    fn bucket(self, step: usize) -> usize {
        if step < 2 {
            return self.home ^ step;
        }
        let turn = step / 2;
        let strides = turn.min(STRIDES);
        let pair = (self.home / 2 + strides * self.stride + (turn - strides)) % self.pairs;
        pair * 2 + (self.home & 1 ^ step & 1)
    }
}

/// A block, and where it is looked for.
pub(crate) type Wanted<'t> = (&'t [Bucket], Path, u64);

/// Brings the cells of blocks into the processor's cache, and where `for_room` also cells that
/// they can have: many at a time with loads that wait for nothing, where a search for each in
/// turn would wait for memory at every step.
#[inline]
pub(crate) fn fetch<'t>(wanted: impl Iterator<Item = Wanted<'t>>, for_room: bool) {
    let mut wanted = wanted.peekable();
    while wanted.peek().is_some() {
        let mut pending = [None; FETCHED_AT_ONCE];
        let places = pending.iter_mut().zip(&mut wanted);
        places.for_each(|(place, wanted)| *place = Some(wanted));
        for step in 0..FETCHED_STEPS {
            let touch = |(table, path, _): &Wanted<'_>| table[path.bucket(step)].cells[0].touch();
            std::hint::black_box(pending.iter().flatten().fold(0, |sum, one| sum ^ touch(one)));
            for place in &mut pending {
                *place = place.filter(|wanted| goes_on(wanted, step, for_room));
            }
            if pending.iter().all(Option::is_none) {
                break;
            }
        }
    }
}

/// Whether a search goes on after the bucket at `step`.
#[inline]
fn goes_on(&(table, path, key): &Wanted<'_>, step: usize, for_room: bool) -> bool {
    let bucket = &table[path.bucket(step)];
    let is_here = bucket.cells.iter().any(|cell| cell.key() == key);
    let has_room = || bucket.cells.iter().any(|cell| cell.value().is_free());
    !is_here && (bucket.passed(path.tag) > 0 || for_room && !has_room())
}

impl Bucket {
    /// Blocks with this tag that passed the bucket on their path; 15 means that many or more.
    #[inline]
    fn passed(&self, tag: u8) -> u8 {
        self.cells[usize::from(tag / 2)].passed(tag % 2 == 1)
    }

    fn set_passed(&self, tag: u8, passed: u8) {
        self.cells[usize::from(tag / 2)].set_passed(tag % 2 == 1, passed);
    }
}

/// Who holds a block; the empty set if nobody.
#[inline]
pub(crate) fn find(table: &[Bucket], path: Path, key: u64) -> SetRef {
    for step in 0..MAX_PROBES {
        let bucket = &table[path.bucket(step)];
        for cell in &bucket.cells {
            if let Some(set) = cell.read(key) {
                return set;
            }
        }
        if bucket.passed(path.tag) == 0 {
            break;
        }
    }
    SetRef::EMPTY
}

/// Finds a block's cell, or the first free one that it can have.
#[inline]
pub(crate) fn locate(table: &[Bucket], path: Path, key: u64) -> Located {
    let (mut free, mut passed) = (None, true);
    for distance in 0..MAX_PROBES {
        let bucket = path.bucket(distance);
        for (number, cell) in table[bucket].cells.iter().enumerate() {
            let value = cell.value();
            if value.is_free() {
                free = free.or(Some(At { bucket, cell: number, path, distance }));
            } else if passed && cell.key() == key {
                return Located::Here(At { bucket, cell: number, path, distance }, value);
            }
        }
        passed &= table[bucket].passed(path.tag) > 0;
        if let (false, Some(at)) = (passed, free) {
            return Located::Free(at);
        }
    }
    free.map_or(Located::Nowhere, Located::Free)
}

/// Gives a free cell to a block.
pub(crate) fn fill(table: &[Bucket], at: At, key: u64, set: SetRef, age: u8) {
    // Before the cell, so that whoever looks for the block passes on to it.
    shift(table, at, |passed| (passed + 1).min(MAX_PASSED));
    cell(table, at).fill(key, set, age);
}

/// Changes who holds the block in a cell.
pub(crate) fn put(table: &[Bucket], at: At, value: Value) {
    cell(table, at).put(value);
}

/// Takes a cell from its block.
pub(crate) fn free(table: &[Bucket], at: At) {
    cell(table, at).free();
    // A bucket that counted as far as it can does not know any more; growth counts anew.
    let down = |passed: u8| if passed == MAX_PASSED { passed } else { passed.saturating_sub(1) };
    shift(table, at, down);
}

/// The used cells of a bucket: place, key, value.
pub(crate) fn used<'t>(
    table: &'t [Bucket],
    layout: &'t Layout,
    bucket: usize,
) -> impl Iterator<Item = (At, u64, Value)> + 't {
    let cells = table[bucket].cells.iter().enumerate();
    cells.filter(|(_, cell)| !cell.value().is_free()).filter_map(move |(number, cell)| {
        let path = Path::new(layout.place(cell.key()).1, table.len());
        let distance = (0..MAX_PROBES).find(|&step| path.bucket(step) == bucket)?;
        Some((At { bucket, cell: number, path, distance }, cell.key(), cell.value()))
    })
}

/// All blocks, for readers: key and set of each.
pub(crate) fn blocks(table: &[Bucket]) -> impl Iterator<Item = (u64, SetRef)> {
    table.iter().flat_map(|bucket| &bucket.cells).filter_map(Cell::read_any)
}

/// A larger table with the same blocks; calls `lost` for each that has no room in it, which
/// happens to hostile hashes only.
pub(crate) fn grown(
    table: &[Bucket],
    layout: &Layout,
    buckets: usize,
    mut lost: impl FnMut(Value),
) -> Table {
    let larger = new(buckets);
    for cell in table.iter().flat_map(|bucket| &bucket.cells) {
        let (key, value) = (cell.key(), cell.value());
        if value.is_free() {
            continue;
        }
        match room(&larger, Path::new(layout.place(key).1, buckets)) {
            Some(at) => fill(&larger, at, key, value.set(), value.age()),
            None => lost(value),
        }
    }
    larger
}

/// The first free cell for a block that is known not to be there.
fn room(table: &[Bucket], path: Path) -> Option<At> {
    (0..MAX_PROBES).find_map(|distance| {
        let bucket = path.bucket(distance);
        let cell = table[bucket].cells.iter().position(|cell| cell.value().is_free())?;
        Some(At { bucket, cell, path, distance })
    })
}

fn cell(table: &[Bucket], at: At) -> &Cell {
    &table[at.bucket].cells[at.cell]
}

/// Changes the counts of the buckets that a block passed on the way to its cell.
fn shift(table: &[Bucket], at: At, change: impl Fn(u8) -> u8) {
    for step in 0..at.distance {
        let bucket = &table[at.path.bucket(step)];
        bucket.set_passed(at.path.tag, change(bucket.passed(at.path.tag)));
    }
}
