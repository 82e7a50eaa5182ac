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
    home: u32,
    buckets: u32,
}

/// A cell's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    path: Path,
    /// Buckets of the path before this one.
    distance: u32,
    bucket: u32,
    cell: u32,
}

/// Where the writer finds a block, or room for it.
pub(crate) enum Located {
    Here(At, Value),
    Free(At),
    Nowhere,
}

/// What the writer finds in the first bucket of a path.
pub(crate) enum AtHome {
    Here(At, Value),
    Free(At),
    /// The block, or the room for it, may be in the next buckets.
    Further,
}

/// An empty table of an even number of buckets.
pub(crate) fn new(buckets: usize) -> Table {
    (0..buckets).map(|_| Bucket { cells: std::array::from_fn(|_| Cell::new()) }).collect()
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

    /// The buckets of the path, in order.
    #[inline]
    fn buckets(self) -> impl Iterator<Item = usize> {
        let (home, pairs) = (self.home as usize, self.buckets as usize / 2);
        let stride = 1 + (((self.place & 0xffff_ffff) * pairs as u64) >> 32) as usize;
        let mut pair = home / 2;
        (0..MAX_PROBES).map(move |step| {
            if step > 0 && step % 2 == 0 {
                pair += if step / 2 <= STRIDES { stride } else { 1 };
                pair -= if pair >= pairs { pairs } else { 0 };
            }
            pair * 2 + (home & 1 ^ step & 1)
        })
    }

    /// Which of a bucket's counts is this block's, below 8.
    #[inline]
    fn tag(self) -> u8 {
        (self.place >> 32) as u8 % 8
    }
}

/// The first bucket of a path.
#[inline]
pub(crate) fn home(table: &[Bucket], path: Path) -> &Bucket {
    &table[path.home as usize]
}

/// Starts to bring the first two buckets of a path, a pair, into the processor's cache: few
/// searches go farther.
#[inline]
pub(crate) fn touch_pair(table: &[Bucket], path: Path) -> u64 {
    let home = path.home as usize;
    table[home].touch() ^ table[home ^ 1].touch()
}

impl At {
    #[inline]
    fn home(path: Path, cell: usize) -> Self {
        Self { path, distance: 0, bucket: path.home, cell: cell as u32 }
    }

    #[inline]
    fn further(path: Path, (distance, bucket): (usize, usize), cell: usize) -> Self {
        Self { path, distance: distance as u32, bucket: bucket as u32, cell: cell as u32 }
    }
}

impl Bucket {
    /// A bit for each cell. All are asked without a branch between them: which one has a block is
    /// nothing that a processor could predict.
    #[inline]
    fn mask(&self, is: impl Fn(&Cell) -> bool) -> u32 {
        (0..CELLS).fold(0, |mask, number| mask | u32::from(is(&self.cells[number])) << number)
    }

    /// Starts to bring the bucket into the processor's cache.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        self.cells[0].touch()
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

    fn set_passed(&self, tag: u8, passed: u8) {
        self.cells[usize::from(tag / 2)].set_passed(tag % 2 == 1, passed);
    }
}

/// Who holds a block; the empty set if nobody.
#[inline]
pub(crate) fn find(table: &[Bucket], path: Path, key: u64) -> SetRef {
    let home = &table[path.home as usize];
    match home.read(key) {
        Some(set) => set,
        None if home.passed(path.tag()) == 0 => SetRef::EMPTY,
        None => find_further(table, path, key),
    }
}

/// The same beyond the first bucket.
fn find_further(table: &[Bucket], path: Path, key: u64) -> SetRef {
    for bucket in path.buckets().skip(1) {
        let bucket = &table[bucket];
        if let Some(set) = bucket.read(key) {
            return set;
        }
        if bucket.passed(path.tag()) == 0 {
            break;
        }
    }
    SetRef::EMPTY
}

/// Finds a block's cell, or a free one that it can have, if the first bucket of its path tells.
#[inline]
pub(crate) fn locate_at_home(table: &[Bucket], path: Path, key: u64) -> AtHome {
    let home = &table[path.home as usize];
    if let Some((cell, value)) = home.find(key) {
        return AtHome::Here(At::home(path, cell), value);
    }
    match home.room() {
        Some(cell) if home.passed(path.tag()) == 0 => AtHome::Free(At::home(path, cell)),
        _ => AtHome::Further,
    }
}

/// Finds a block's cell, or the first free one that it can have.
pub(crate) fn locate(table: &[Bucket], path: Path, key: u64) -> Located {
    let (mut free, mut passed) = (None, true);
    for (distance, number) in path.buckets().enumerate() {
        let bucket = &table[number];
        let at = |cell| At::further(path, (distance, number), cell);
        // Where nothing like it passed, it cannot be farther.
        if passed {
            if let Some((cell, value)) = bucket.find(key) {
                return Located::Here(at(cell), value);
            }
            passed = bucket.passed(path.tag()) > 0;
        }
        if free.is_none() {
            free = bucket.room().map(at);
        }
        if let (false, Some(at)) = (passed, free) {
            return Located::Free(at);
        }
    }
    free.map_or(Located::Nowhere, Located::Free)
}

/// Gives a free cell to a block.
#[inline(always)]
pub(crate) fn fill(table: &[Bucket], at: At, key: u64, set: SetRef, age: u8) {
    if at.distance > 0 {
        // Before the cell, so that whoever looks for the block passes on to it.
        shift(table, at, |passed| (passed + 1).min(MAX_PASSED));
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
pub(crate) fn free(table: &[Bucket], at: At) {
    cell(table, at).free();
    if at.distance > 0 {
        // A bucket that counted as far as it can does not know any more; growth counts anew.
        shift(
            table,
            at,
            |passed| if passed == MAX_PASSED { passed } else { passed.saturating_sub(1) },
        );
    }
}

/// The value of a cell, if it is used.
#[inline]
pub(crate) fn used(table: &[Bucket], bucket: usize, cell: usize) -> Option<Value> {
    Some(table[bucket].cells[cell].value()).filter(|value| !value.is_free())
}

/// The place of a used cell; `None` if its block cannot be there.
pub(crate) fn place_of(
    table: &[Bucket],
    layout: &Layout,
    bucket: usize,
    cell: usize,
) -> Option<At> {
    let path = Path::new(layout.place(table[bucket].cells[cell].key()).1, table);
    let place = path.buckets().enumerate().find(|&(_, number)| number == bucket)?;
    Some(At::further(path, place, cell))
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
    for old in table.iter().flat_map(|bucket| &bucket.cells) {
        let (key, value) = (old.key(), old.value());
        if value.is_free() {
            continue;
        }
        let path = Path::new(layout.place(key).1, &larger);
        let (home, used) = (&larger[path.home as usize], &mut used[path.home as usize]);
        match home.cells.get(usize::from(*used)) {
            Some(cell) => {
                cell.copy(key, value);
                *used += 1;
            }
            None => others.push((path, key, value)),
        }
    }
    for (path, key, value) in others {
        match room_further(&mut used, path) {
            Some(at) => fill(&larger, at, key, value.set(), value.age()),
            None => lost(value),
        }
    }
    larger
}

/// A cell beyond the first bucket of a path, where `used` tells how many of each bucket are taken.
fn room_further(used: &mut [u8], path: Path) -> Option<At> {
    let mut further = path.buckets().enumerate().skip(1);
    let place = further.find(|&(_, bucket)| usize::from(used[bucket]) < CELLS)?;
    let used = &mut used[place.1];
    *used += 1;
    Some(At::further(path, place, usize::from(*used) - 1))
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
    &table[at.bucket as usize].cells[at.cell as usize]
}

/// Changes the counts of the buckets that a block passed on the way to its cell.
#[inline(never)]
fn shift(table: &[Bucket], at: At, change: impl Fn(u8) -> u8) {
    for bucket in at.path.buckets().take(at.distance as usize) {
        let bucket = &table[bucket];
        bucket.set_passed(at.path.tag(), change(bucket.passed(at.path.tag())));
    }
}
