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
use crate::prefetch::prefetch;
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
const STRIDES: usize = 8;

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
    home: usize,
    buckets: usize,
}

/// A cell's place on the path of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    /// Buckets of the path before this one.
    distance: usize,
    bucket: usize,
    cell: usize,
}

/// Where the writer finds a block, or room for it.
pub(crate) enum Located {
    Here(At, Value),
    Free(At),
    Nowhere,
}

/// What the writer finds in the first pair of a path.
pub(crate) enum Near {
    Here(At, Value),
    Free(At),
    /// The block, if something like it `passed`, or the room for it may be in the next pairs.
    Further {
        passed: bool,
    },
}

/// An empty table of an even number of buckets.
pub(crate) fn new(buckets: usize) -> Table {
    (0..buckets).map(|_| Bucket::new()).collect()
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

    /// The buckets of the path, in order, each with its number on the path.
    #[inline]
    fn buckets(self) -> impl Iterator<Item = (usize, usize)> {
        let (pairs, side) = (self.buckets / 2, self.home & 1);
        let stride = 1 + (((self.place & 0xffff_ffff) * pairs as u64) >> 32) as usize;
        let mut pair = self.home / 2;
        (0..MAX_PROBES).map(move |distance| {
            if distance.is_multiple_of(2) && distance > 0 {
                pair += if distance / 2 <= STRIDES { stride } else { 1 };
                pair -= if pair < pairs { 0 } else { pairs };
            }
            (distance, pair * 2 + (side ^ distance & 1))
        })
    }

    /// Which of a bucket's counts is this block's, below 8.
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
    let home = home(place, table);
    prefetch(&table[home]);
    prefetch(&table[home ^ 1]);
}

/// Starts to bring the second pair of buckets of a path into the cache if the first, which is
/// there, is full: a new block goes on there.
#[inline]
pub(crate) fn fetch_beyond(table: &[Bucket], path: Path) {
    let is_full = |number: usize| table[number].room().is_none();
    if is_full(path.home) && is_full(path.home ^ 1) {
        let next = path.buckets().skip(2).take(2);
        next.for_each(|(_, number)| prefetch(&table[number]));
    }
}

impl At {
    #[inline(always)]
    fn new((distance, bucket): (usize, usize), cell: usize) -> Self {
        Self { distance, bucket, cell }
    }
}

impl Bucket {
    #[inline(always)]
    fn new() -> Self {
        Self { cells: [Cell::new(), Cell::new(), Cell::new(), Cell::new()] }
    }

    /// A bit for each cell. All are asked without a branch between them: which one has a block is
    /// nothing that a processor could predict.
    #[inline]
    fn mask(&self, is: impl Fn(&Cell) -> bool) -> u32 {
        (0..CELLS).fold(0, |mask, number| mask | u32::from(is(&self.cells[number])) << number)
    }

    /// Who holds a block, if it is here.
    #[inline]
    fn read(&self, key: u64) -> Option<SetRef> {
        ones(self.mask(|cell| cell.key() == key)).find_map(|cell| self.cells[cell].read(key))
    }

    /// The cell of a block and its value, for the writer.
    #[inline]
    fn find(&self, key: u64) -> Option<(usize, Value)> {
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

/// Finds a block's cell, or a free one that it can have, if the first pair of its path tells.
#[inline(always)]
pub(crate) fn locate_near(table: &[Bucket], path: Path, key: u64) -> Near {
    let places = [(0, path.home), (1, path.home ^ 1)];
    let [home, other] = places.map(|(_, number)| &table[number]);
    if let Some((cell, value)) = home.find(key) {
        return Near::Here(At::new(places[0], cell), value);
    }
    if home.passed(path.tag()) > 0 {
        if let Some((cell, value)) = other.find(key) {
            return Near::Here(At::new(places[1], cell), value);
        }
        if other.passed(path.tag()) > 0 {
            return Near::Further { passed: true };
        }
    }
    if let Some(cell) = home.room() {
        return Near::Free(At::new(places[0], cell));
    }
    match other.room() {
        Some(cell) => Near::Free(At::new(places[1], cell)),
        None => Near::Further { passed: false },
    }
}

/// Finds a block's cell, or the first free one that it can have, from the start of its path or,
/// where the first pair is known, beyond it.
#[inline(never)]
pub(crate) fn locate(table: &[Bucket], path: Path, key: u64) -> Located {
    let (mut free, mut passed) = (None, true);
    for place in path.buckets() {
        let bucket = &table[place.1];
        // Where nothing like it passed, it cannot be farther.
        if passed {
            if let Some((cell, value)) = bucket.find(key) {
                return Located::Here(At::new(place, cell), value);
            }
            passed = bucket.passed(path.tag()) > 0;
        }
        if free.is_none() {
            free = bucket.room().map(|cell| At::new(place, cell));
        }
        if let (false, Some(at)) = (passed, free) {
            return Located::Free(at);
        }
    }
    free.map_or(Located::Nowhere, Located::Free)
}

/// The first free cell for a block beyond the first pair of its path, which is full.
#[inline(never)]
pub(crate) fn room_beyond(table: &[Bucket], path: Path) -> Option<At> {
    let mut beyond = path.buckets().skip(2);
    beyond.find_map(|place| table[place.1].room().map(|cell| At::new(place, cell)))
}

/// Gives a free cell to a block.
#[inline(always)]
pub(crate) fn fill(table: &[Bucket], path: Path, at: At, (key, set, age): (u64, SetRef, u8)) {
    if at.distance > 0 {
        // Before the cell, so that whoever looks for the block passes on to it.
        count_passed(table, path, at.distance, true);
    }
    cell(table, at).fill(key, set, age);
}

/// Changes who holds the block in a cell.
#[inline(always)]
pub(crate) fn put(table: &[Bucket], at: At, value: Value) {
    cell(table, at).put(value);
}

/// Takes a cell from its block.
#[inline(always)]
pub(crate) fn free(table: &[Bucket], path: Path, at: At) {
    cell(table, at).free();
    if at.distance > 0 {
        count_passed(table, path, at.distance, false);
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
pub(crate) fn used(table: &[Bucket], bucket: usize, cell: usize) -> Option<Value> {
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
    let place = path.buckets().find(|&(_, number)| number == bucket)?;
    Some((path, At::new(place, cell)))
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
    let mut others = Vec::new();
    for bucket in table {
        for old in &bucket.cells {
            let (key, value) = (old.key(), old.value());
            if value.is_free() {
                continue;
            }
            let path = Path::new(layout.place(key).1, &larger);
            let (home, used) = (&larger[path.home], &mut used[path.home]);
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
            Some(place) => {
                let at = At::new(place, used[place.1].into());
                used[place.1] += 1;
                fill(&larger, path, at, (key, value.set(), value.age()));
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

pub(crate) use search::{Search, find};

mod search;
