//! Buckets of cells: an open hash table that one thread writes and any number read.
//!
//! A block stands in its home bucket or, where that is full, in the other one of the same pair
//! (which processors fetch together), else in other pairs at a stride that its hash gives. Going
//! to the next bucket instead would make runs of full buckets: at nine tenths full, a new block
//! would have to pass nine of them. A bucket counts what passed it, by three bits of
//! the hash, so that a search ends where nothing like it passed: mostly in the home bucket. Removal
//! counts down and leaves no trace. Homes keep the order of hashes: copying into a
//! larger table reads and writes both from front to back.

use crate::cell::{Cell, CellValue, SetRef};
use crate::layout::Layout;
use crate::prefetch::prefetch;

/// Cells of a bucket: a cache line.
const CELLS: usize = 4;
/// Buckets that a search visits at most. A block for which there is no room among them is not
/// taken: good hashes need a few, and hostile ones must not make searches long.
pub(crate) const MAX_PROBES: usize = 64;
/// A count that went so far is not counted down again.
const MAX_PASSED: u8 = 15;
/// Pairs that are tried at a stride, before those that follow the last of them one by one.
const STRIDES: usize = 8;

#[repr(align(64))]
pub(crate) struct Bucket {
    cells: [Cell; CELLS],
}

/// The buckets in which a block can be, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    place: u64,
    home: usize,
    buckets: usize,
}

/// A cell's place on the path of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    bucket: u32,
    /// Buckets of the path before this one.
    distance: u8,
    cell: u8,
}

/// Blocks that fit in as many buckets.
pub(crate) fn capacity(buckets: usize) -> usize {
    buckets * CELLS
}

impl Path {
    /// The path of a place within a shard that has this table.
    #[inline]
    pub(crate) fn new(place: u64, table: &[Bucket]) -> Self {
        Self { place, home: home(place, table), buckets: table.len() }
    }

    /// Starts to bring the first pair of buckets into the processor's cache.
    #[inline]
    pub(crate) fn fetch(self, table: &[Bucket]) {
        fetch_pair(table, self.home);
    }

    /// The buckets of the path, in order, each with its number on the path.
    #[inline]
    fn buckets(self) -> impl Iterator<Item = (usize, usize)> {
        let (mut pair, side) = (self.home / 2, self.home & 1);
        (0..MAX_PROBES).map(move |distance| {
            if distance.is_multiple_of(2) && distance > 0 {
                pair = self.next_pair(pair, distance);
            }
            (distance, pair * 2 + (side ^ distance & 1))
        })
    }

    /// The pair of buckets after `pair` on the path, with `distance` buckets before it.
    #[inline]
    fn next_pair(self, pair: usize, distance: usize) -> usize {
        let pairs = self.buckets / 2;
        let stride = 1 + (((self.place & 0xffff_ffff) * pairs as u64) >> 32) as usize;
        let next = pair + if distance / 2 <= STRIDES { stride } else { 1 };
        next - if next < pairs { 0 } else { pairs }
    }

    /// The block's counter among those of a bucket, below 8.
    #[inline]
    fn tag(self) -> u8 {
        (self.place >> 32) as u8 % 8
    }
}

/// The first bucket on the path of a place.
#[inline]
fn home(place: u64, table: &[Bucket]) -> usize {
    ((u128::from(place) * table.len() as u128) >> 64) as usize
}

/// Starts to bring the first pair of buckets of a place into the processor's cache.
#[inline]
pub(crate) fn fetch(table: &[Bucket], place: u64) {
    fetch_pair(table, home(place, table));
}

/// Starts to bring a bucket and the other one of its pair into the processor's cache.
#[inline]
fn fetch_pair(table: &[Bucket], number: usize) {
    prefetch(&table[number]);
    prefetch(&table[number ^ 1]);
}

impl At {
    #[inline(always)]
    fn new(distance: usize, bucket: usize, cell: usize) -> Self {
        Self { bucket: bucket as u32, distance: distance as u8, cell: cell as u8 }
    }
}

impl Bucket {
    #[inline(always)]
    fn new() -> Self {
        Self { cells: [Cell::new(), Cell::new(), Cell::new(), Cell::new()] }
    }

    /// Forgets all there was in it. For buckets that nobody looks at.
    pub(crate) fn clear(&self) {
        self.cells.iter().for_each(Cell::clear);
    }

    #[cfg(all(test, not(stator_loom)))]
    pub(crate) fn fill_first(&self, key: u64) {
        self.cells[0].fill(key, SetRef(1), 0);
    }

    /// A bit for each cell. All are asked without a branch between them: which one has a block is
    /// nothing that a processor could predict.
    #[inline]
    fn mask(&self, is: impl Fn(&Cell) -> bool) -> u32 {
        (0..CELLS).fold(0, |mask, number| mask | u32::from(is(&self.cells[number])) << number)
    }

    /// Holders of a block, if it is here.
    #[inline]
    fn read(&self, key: u64) -> Option<SetRef> {
        ones(self.mask(|cell| cell.key() == key)).find_map(|cell| self.cells[cell].read(key))
    }

    /// The cell of a block and its value, for the writer.
    #[inline]
    fn find(&self, key: u64) -> Option<(usize, CellValue)> {
        let alike = ones(self.mask(|cell| cell.key() == key));
        alike.map(|cell| (cell, self.cells[cell].value())).find(|(_, value)| !value.is_free())
    }

    /// The first free cell, for the writer.
    #[inline]
    fn room(&self) -> Option<usize> {
        ones(self.mask(|cell| cell.value().is_free())).next()
    }

    /// Blocks with this tag that passed the bucket on their path; 15 means that many or more.
    #[inline]
    fn passed(&self, tag: u8) -> u8 {
        self.cells[usize::from(tag / 2)].passed(tag % 2 == 1)
    }

    /// One more passes, or one that passed is gone.
    #[inline]
    fn count_passed(&self, tag: u8, is_more: bool) {
        let passed = self.passed(tag);
        let changed = match (is_more, passed) {
            // A bucket that counted as far as it can does not know any more; growth counts anew.
            (_, MAX_PASSED) | (false, 0) => return,
            (true, _) => passed + 1,
            (false, _) => passed - 1,
        };
        self.cells[usize::from(tag / 2)].set_passed(tag % 2 == 1, changed);
    }
}

/// The value of a cell if it is the block's still.
#[inline(always)]
pub(crate) fn value_of(table: &[Bucket], at: At, key: u64) -> Option<CellValue> {
    let cell = cell(table, at);
    Some(cell.value()).filter(|value| cell.key() == key && !value.is_free())
}

/// Whether a cell has no block.
#[inline(always)]
pub(crate) fn is_free(table: &[Bucket], at: At) -> bool {
    cell(table, at).value().is_free()
}

/// A block that gets a cell, its holders, and the age in which they took it.
#[derive(Clone, Copy)]
pub(crate) struct NewBlock {
    pub(crate) key: u64,
    pub(crate) set: SetRef,
    pub(crate) age: u8,
}

/// Gives a free cell to a block.
#[inline(always)]
pub(crate) fn fill(table: &[Bucket], path: Path, at: At, block: NewBlock) {
    if at.distance > 0 {
        // Before the cell, so that whoever looks for the block passes on to it.
        count_passed(table, path, at.distance.into(), true);
    }
    cell(table, at).fill(block.key, block.set, block.age);
}

/// Changes who holds the block in a cell.
#[inline(always)]
pub(crate) fn put(table: &[Bucket], at: At, value: CellValue) {
    cell(table, at).put(value);
}

/// Takes a cell from its block.
#[inline(always)]
pub(crate) fn free(table: &[Bucket], path: Path, at: At) {
    cell(table, at).free();
    if at.distance > 0 {
        count_passed(table, path, at.distance.into(), false);
    }
}

/// The first `distance` buckets of a path, one or more, were passed once more or once less.
#[inline(always)]
fn count_passed(table: &[Bucket], path: Path, distance: usize, is_more: bool) {
    table[path.home].count_passed(path.tag(), is_more);
    if distance > 1 {
        count_passed_further(table, path, distance, is_more);
    }
}

#[inline(never)]
fn count_passed_further(table: &[Bucket], path: Path, distance: usize, is_more: bool) {
    let passed = path.buckets().take(distance).skip(1);
    passed.for_each(|(_, bucket)| table[bucket].count_passed(path.tag(), is_more));
}

/// The value of a cell, if it is used.
#[inline]
pub(crate) fn used(table: &[Bucket], bucket: usize, cell: usize) -> Option<CellValue> {
    Some(table[bucket].cells[cell].value()).filter(|value| !value.is_free())
}

/// The path of the block in a used cell and its place there; `None` if it cannot be there.
pub(crate) fn place_of(
    table: &[Bucket],
    layout: &Layout,
    bucket: usize,
    cell: usize,
) -> Option<(Path, At)> {
    let path = Path::new(layout.place(table[bucket].cells[cell].key()).1, table);
    let (distance, bucket) = path.buckets().find(|&(_, number)| number == bucket)?;
    Some((path, At::new(distance, bucket, cell)))
}

/// All blocks, for readers: key and set of each.
pub(crate) fn blocks(table: &[Bucket]) -> impl Iterator<Item = (u64, SetRef)> {
    table.iter().flat_map(|bucket| &bucket.cells).filter_map(Cell::read_any)
}

/// Copies all blocks into another table that is empty and has room for them; calls `lost` for each
/// that finds none, which happens to hostile hashes only.
pub(crate) fn copy(
    table: &[Bucket],
    layout: &Layout,
    other: &[Bucket],
    mut lost: impl FnMut(CellValue),
) {
    // Used cells of each bucket: a bucket is filled from the first cell on.
    let mut used = vec![0u8; other.len()];
    let mut others = Vec::new();
    for bucket in table {
        for old in &bucket.cells {
            let (key, value) = (old.key(), old.value());
            if value.is_free() {
                continue;
            }
            let path = Path::new(layout.place(key).1, other);
            let (home, used) = (&other[path.home], &mut used[path.home]);
            match home.cells.get(usize::from(*used)) {
                Some(cell) => {
                    cell.copy(key, value);
                    *used += 1;
                }
                None => others.push((path, key, value)),
            }
        }
    }
    for (path, key, value) in others {
        let has_room = |&(_, bucket): &(usize, usize)| usize::from(used[bucket]) < CELLS;
        match path.buckets().skip(1).find(has_room) {
            Some((distance, bucket)) => {
                let at = At::new(distance, bucket, used[bucket].into());
                used[bucket] += 1;
                let block = NewBlock { key, set: value.set(), age: value.age() };
                fill(other, path, at, block);
            }
            None => lost(value),
        }
    }
}

/// The numbers of the bits that are set.
#[inline]
pub(crate) fn ones(mask: u32) -> impl Iterator<Item = usize> {
    let mut mask = mask;
    std::iter::from_fn(move || {
        let number = (mask != 0).then(|| mask.trailing_zeros() as usize);
        mask &= mask.wrapping_sub(1);
        number
    })
}

#[inline]
fn cell(table: &[Bucket], at: At) -> &Cell {
    &table[at.bucket as usize].cells[usize::from(at.cell)]
}

pub(crate) use memory::Table;
pub(crate) use search::{Search, find};
pub(crate) use seek::{Located, Seek, locate};

mod memory;
mod search;
mod seek;
