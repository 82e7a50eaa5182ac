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
pub(crate) const MAX_PROBES: usize = 64;
/// A count that went so far is not counted down again.
const MAX_PASSED: u8 = 15;
/// Pairs that are tried at a stride, before those that follow the last of them one by one.
const STRIDES: u64 = 8;

#[repr(align(64))]
pub(crate) struct Bucket {
    cells: [Cell; CELLS],
}

/// The cells of one shard.
pub(crate) type Table = Arc<[Bucket]>;

/// The buckets in which a block can be, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    place: u64,
    home: u32,
    buckets: u32,
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
    /// The path of a place within a shard that has this table.
    #[inline]
    pub(crate) fn new(place: u64, table: &[Bucket]) -> Self {
        let home = ((u128::from(place) * table.len() as u128) >> 64) as u32;
        Self { place, home, buckets: table.len() as u32 }
    }

    /// Whether the path is one through this table, and not one through a smaller one.
    #[inline]
    pub(crate) fn fits(self, table: &[Bucket]) -> bool {
        self.buckets as usize == table.len()
    }

    /// The bucket at one step of the path.
    #[inline]
    fn bucket(self, step: usize) -> usize {
        if step < 2 { self.home as usize ^ step } else { self.far_bucket(step) }
    }

    fn far_bucket(self, step: usize) -> usize {
        let pairs = u64::from(self.buckets / 2);
        let stride = 1 + (((self.place & 0xffff_ffff) * pairs) >> 32);
        let turn = step as u64 / 2;
        let strides = turn.min(STRIDES);
        let pair = (u64::from(self.home / 2) + strides * stride + (turn - strides)) % pairs;
        pair as usize * 2 + (self.home as usize & 1 ^ step & 1)
    }

    /// Which of a bucket's counts is this block's, below 8.
    #[inline]
    fn tag(self) -> u8 {
        (self.place >> 32) as u8 % 8
    }
}

/// What a search finds in one bucket.
pub(crate) enum Look {
    Here(SetRef),
    Absent,
    /// It may be in the next bucket of its path.
    Further,
}

/// Starts to bring the bucket at a step into the processor's cache.
#[inline]
pub(crate) fn touch(table: &[Bucket], path: Path, step: usize) -> u64 {
    table[path.bucket(step)].cells[0].touch()
}

/// Looks for a block in the bucket at one step of its path, the earlier ones having been passed.
#[inline]
pub(crate) fn look(table: &[Bucket], path: Path, key: u64, step: usize) -> Look {
    let bucket = &table[path.bucket(step)];
    let alike = bucket.mask(|cell| cell.key() == key);
    let here = ones(alike).find_map(|cell| bucket.cells[cell].read(key));
    match here {
        Some(set) => Look::Here(set),
        None if bucket.passed(path.tag()) == 0 || step + 1 == MAX_PROBES => Look::Absent,
        None => Look::Further,
    }
}

/// What the writer finds in one bucket.
pub(crate) enum Found {
    Here(At),
    /// It is not there.
    Absent,
    Further,
}

/// Looks for a block, and for room for it unless some was found, in the bucket at one step of its
/// path.
#[inline]
pub(crate) fn look_or_room(
    table: &[Bucket],
    path: Path,
    key: u64,
    step: usize,
    room: &mut Option<At>,
) -> Found {
    let bucket = path.bucket(step);
    let at = |cell| At { bucket, cell, path, distance: step };
    let free = table[bucket].mask(|cell| cell.value().is_free());
    let alike = table[bucket].mask(|cell| cell.key() == key) & !free;
    if let Some(cell) = ones(alike).next() {
        return Found::Here(at(cell));
    }
    *room = room.or_else(|| ones(free).next().map(at));
    let goes_on = table[bucket].passed(path.tag()) > 0 || room.is_none();
    if goes_on { Found::Further } else { Found::Absent }
}

/// Whether a cell has no block.
#[inline]
pub(crate) fn is_free(table: &[Bucket], at: At) -> bool {
    cell(table, at).value().is_free()
}

/// The value of a cell, if it is this block's.
#[inline]
pub(crate) fn value_at(table: &[Bucket], at: At, key: u64) -> Option<Value> {
    let cell = cell(table, at);
    Some(cell.value()).filter(|value| cell.key() == key && !value.is_free())
}

impl Bucket {
    /// A bit for each cell. All are asked without a branch between them: which one has a block is
    /// nothing that a processor could predict.
    #[inline]
    fn mask(&self, is: impl Fn(&Cell) -> bool) -> u32 {
        (0..CELLS).fold(0, |mask, number| mask | u32::from(is(&self.cells[number])) << number)
    }

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
pub(crate) fn find(table: &[Bucket], path: Path, key: u64) -> SetRef {
    for step in 0..MAX_PROBES {
        match look(table, path, key, step) {
            Look::Here(set) => return set,
            Look::Absent => break,
            Look::Further => {}
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
        passed &= table[bucket].passed(path.tag()) > 0;
        if let (false, Some(at)) = (passed, free) {
            return Located::Free(at);
        }
    }
    free.map_or(Located::Nowhere, Located::Free)
}

/// Gives a free cell to a block.
#[inline]
pub(crate) fn fill(table: &[Bucket], at: At, key: u64, set: SetRef, age: u8) {
    // Before the cell, so that whoever looks for the block passes on to it.
    shift(table, at, up);
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
        let path = Path::new(layout.place(cell.key()).1, table);
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
    // Used cells of each bucket: a bucket is filled from the first cell on.
    let mut used = vec![0u8; buckets];
    for old in table.iter().flat_map(|bucket| &bucket.cells) {
        let (key, value) = (old.key(), old.value());
        if value.is_free() {
            continue;
        }
        let path = Path::new(layout.place(key).1, &larger);
        let home = path.home as usize;
        if usize::from(used[home]) < CELLS {
            larger[home].cells[usize::from(used[home])].fill(key, value.set(), value.age());
            used[home] += 1;
            continue;
        }
        match (1..MAX_PROBES).find(|&step| usize::from(used[path.bucket(step)]) < CELLS) {
            Some(distance) => {
                let bucket = path.bucket(distance);
                let at = At { bucket, cell: usize::from(used[bucket]), path, distance };
                used[bucket] += 1;
                shift(&larger, at, up);
                cell(&larger, at).fill(key, value.set(), value.age());
            }
            None => lost(value),
        }
    }
    larger
}

/// The numbers of the bits that are set.
#[inline]
fn ones(mask: u32) -> impl Iterator<Item = usize> {
    let mut mask = mask;
    std::iter::from_fn(move || {
        let number = (mask != 0).then(|| mask.trailing_zeros() as usize);
        mask &= mask.wrapping_sub(1);
        number
    })
}

#[inline]
fn cell(table: &[Bucket], at: At) -> &Cell {
    &table[at.bucket].cells[at.cell]
}

fn up(passed: u8) -> u8 {
    (passed + 1).min(MAX_PASSED)
}

/// Changes the counts of the buckets that a block passed on the way to its cell.
#[inline]
fn shift(table: &[Bucket], at: At, change: impl Fn(u8) -> u8) {
    for step in 0..at.distance {
        let bucket = &table[at.path.bucket(step)];
        bucket.set_passed(at.path.tag(), change(bucket.passed(at.path.tag())));
    }
}
