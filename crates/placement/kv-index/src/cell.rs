//! A cell: which set of workers holds one block. One thread writes, any number read meanwhile.
//!
//! A reader takes the value, then the key, then the value again. The version in the value changes
//! whenever the cell is freed, so that a value that belongs to another key than the one read is
//! recognised. Sixteen bits of version mean that a reader would have to be interrupted, between
//! two loads, for exactly 65,536 lives of one cell to be fooled.

use crate::sync::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Name of an interned set of holders, see [`crate::sets`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SetRef(pub(crate) u32);

impl SetRef {
    /// The set without elements; a cell that has it is free.
    pub(crate) const EMPTY: Self = Self(0);
}

/// A cell beside its key. From the top: 32 bits of set, 16 of version, 8 of age, and two 4-bit
/// counts of blocks that passed the cell's bucket. The counts have nothing to do with the cell's
/// own block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellValue(u64);

impl CellValue {
    pub(crate) fn set(self) -> SetRef {
        SetRef((self.0 >> 32) as u32)
    }

    pub(crate) fn is_free(self) -> bool {
        self.set() == SetRef::EMPTY
    }

    pub(crate) fn age(self) -> u8 {
        (self.0 >> 8) as u8
    }

    fn version(self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn passed(self) -> u8 {
        self.0 as u8
    }

    /// The value with another set and age.
    pub(crate) fn with(self, set: SetRef, age: u8) -> Self {
        Self(u64::from(set.0) << 32 | self.0 & 0xffff_00ff | u64::from(age) << 8)
    }

    fn freed(self) -> Self {
        let version = self.version().wrapping_add(1);
        Self(u64::from(version) << 16 | u64::from(self.passed()))
    }
}

/// One block and who holds it.
pub(crate) struct Cell {
    key: AtomicU64,
    value: AtomicU64,
}

impl Cell {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { key: AtomicU64::new(0), value: AtomicU64::new(0) }
    }

    /// Makes it like new.
    pub(crate) fn clear(&self) {
        self.key.store(0, Relaxed);
        self.value.store(0, Relaxed);
    }

    /// Holders of the block `key`, if the cell is that block's.
    #[inline]
    pub(crate) fn read(&self, key: u64) -> Option<SetRef> {
        let value = CellValue(self.value.load(Acquire));
        // Acquire, so that whoever sees a new key here sees below that the old one was freed.
        if value.is_free() || self.key.load(Acquire) != key {
            return None;
        }
        let after = CellValue(self.value.load(Relaxed));
        (value.version() == after.version()).then_some(value.set())
    }

    /// Key and set, whatever the key is; `None` if the cell is free or being changed.
    pub(crate) fn read_any(&self) -> Option<(u64, SetRef)> {
        let key = self.key.load(Acquire);
        self.read(key).map(|set| (key, set))
    }

    /// The key; of meaning to the writer only.
    #[inline]
    pub(crate) fn key(&self) -> u64 {
        self.key.load(Relaxed)
    }

    /// The value; of meaning to the writer only.
    #[inline]
    pub(crate) fn value(&self) -> CellValue {
        CellValue(self.value.load(Relaxed))
    }

    /// Gives a free cell to a block.
    #[inline]
    pub(crate) fn fill(&self, key: u64, set: SetRef, age: u8) {
        self.key.store(key, Release);
        self.put(self.value().with(set, age));
    }

    /// Gives a cell that no reader can see yet, and whose bucket nothing passed, to the block of
    /// another cell.
    #[inline]
    pub(crate) fn copy(&self, key: u64, value: CellValue) {
        self.key.store(key, Relaxed);
        self.value.store(value.0 & !0xff, Relaxed);
    }

    /// Changes who holds the cell's block.
    #[inline]
    pub(crate) fn put(&self, value: CellValue) {
        self.value.store(value.0, Release);
    }

    /// Takes the cell from its block. The key stays, and means nothing.
    #[inline]
    pub(crate) fn free(&self) {
        self.put(self.value().freed());
    }

    /// One of the two counts, 0 to 15.
    #[inline]
    pub(crate) fn passed(&self, is_second: bool) -> u8 {
        let both = CellValue(self.value.load(Acquire)).passed();
        if is_second { both >> 4 } else { both & 15 }
    }

    #[inline]
    pub(crate) fn set_passed(&self, is_second: bool, passed: u8) {
        let (shift, mask) = if is_second { (4, 0xf0) } else { (0, 0x0f) };
        self.put(CellValue(self.value().0 & !mask | u64::from(passed) << shift));
    }
}

#[cfg(all(test, not(stator_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_cell_answers_for_its_block_only() {
        let cell = Cell::new();
        assert_eq!((cell.read(0), cell.read_any()), (None, None), "a new cell is free");
        cell.fill(7, SetRef(9), 3);
        assert_eq!((cell.read(7), cell.read(8)), (Some(SetRef(9)), None));
        cell.free();
        assert_eq!(cell.read(7), None);
        cell.fill(0, SetRef(u32::MAX), 255);
        assert_eq!(cell.read_any(), Some((0, SetRef(u32::MAX))));
    }

    #[test]
    fn parts_of_a_value_leave_each_other_alone() {
        let cell = Cell::new();
        cell.set_passed(false, 15);
        cell.set_passed(true, 9);
        let passed = || (cell.passed(false), cell.passed(true));
        for life in 0..70_000 {
            cell.fill(life, SetRef(u32::MAX), 255);
            assert_eq!((passed(), cell.value().age()), ((15, 9), 255));
            cell.put(cell.value().with(SetRef(1), 2));
            assert_eq!((cell.read(life), cell.value().age()), (Some(SetRef(1)), 2));
            cell.free();
            assert_eq!((passed(), cell.value().version()), ((15, 9), (life + 1) as u16));
        }
    }
}

#[cfg(all(test, stator_loom))]
mod model {
    use super::*;
    use loom::sync::Arc;

    /// Block 1 has set 10 (then 11), block 2 has set 20: a reader never sees one's set for the
    /// other, whatever happens to the cell between its loads.
    #[test]
    fn a_reader_never_takes_the_set_of_another_block() {
        loom::model(|| {
            let cell = Arc::new(Cell::new());
            cell.fill(1, SetRef(10), 0);
            let writer = {
                let cell = cell.clone();
                loom::thread::spawn(move || {
                    cell.put(cell.value().with(SetRef(11), 1));
                    cell.free();
                    cell.fill(2, SetRef(20), 2);
                })
            };
            assert!(matches!(cell.read(1), None | Some(SetRef(10 | 11))));
            assert!(matches!(cell.read(2), None | Some(SetRef(20))));
            writer.join().expect("the writer does not panic");
            assert_eq!((cell.read(1), cell.read(2)), (None, Some(SetRef(20))));
        });
    }

    /// The first block comes back to the cell.
    #[test]
    fn a_block_that_comes_back_is_not_mistaken() {
        loom::model(|| {
            let cell = Arc::new(Cell::new());
            cell.fill(2, SetRef(20), 0);
            let writer = {
                let cell = cell.clone();
                loom::thread::spawn(move || {
                    cell.free();
                    cell.fill(1, SetRef(10), 0);
                    cell.free();
                    cell.fill(2, SetRef(21), 0);
                })
            };
            assert!(matches!(cell.read(2), None | Some(SetRef(20 | 21))));
            assert!(matches!(cell.read(1), None | Some(SetRef(10))));
            writer.join().expect("the writer does not panic");
        });
    }
}
