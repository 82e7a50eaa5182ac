//! Finding a block as readers do, in two steps: the first bucket, and all others.

use super::{Bucket, Path, home};
use crate::cell::SetRef;
use crate::prefetch::prefetch;

/// A reader's search for a block.
#[derive(Clone, Copy, Default)]
pub(crate) struct Search<'t> {
    table: &'t [Bucket],
    place: u64,
    home: usize,
    key: u64,
}

impl<'t> Search<'t> {
    /// A search for the block `key`, whose place within the shard of this table is `place`.
    #[inline]
    pub(crate) fn new(table: &'t [Bucket], place: u64, key: u64) -> Self {
        Self { table, place, home: home(place, table), key }
    }

    /// Starts to bring the first bucket into the processor's cache.
    #[inline]
    pub(crate) fn fetch(&self) {
        prefetch(&self.table[self.home]);
    }

    /// Holders of the block, the empty set if nobody; `None` if the first bucket cannot tell.
    #[inline]
    pub(crate) fn at_home(&self) -> Option<SetRef> {
        let home = &self.table[self.home];
        let is_nowhere = || home.passed(self.path().tag()) == 0;
        home.read(self.key).or_else(|| is_nowhere().then_some(SetRef::EMPTY))
    }

    /// Starts to bring the next buckets into the processor's cache: few searches go farther.
    #[inline]
    pub(crate) fn fetch_further(&self) {
        let next = self.path().buckets().skip(1).take(3);
        next.for_each(|(_, bucket)| prefetch(&self.table[bucket]));
    }

    /// Holders of the block beyond the first bucket; the empty set if nobody.
    pub(crate) fn further(&self) -> SetRef {
        let path = self.path();
        for (_, bucket) in path.buckets().skip(1) {
            let bucket = &self.table[bucket];
            if let Some(set) = bucket.read(self.key) {
                return set;
            }
            if bucket.passed(path.tag()) == 0 {
                break;
            }
        }
        SetRef::EMPTY
    }

    #[inline]
    fn path(&self) -> Path {
        Path { place: self.place, home: self.home, buckets: self.table.len() }
    }
}

/// Holders of a block; the empty set if nobody.
pub(crate) fn find(table: &[Bucket], place: u64, key: u64) -> SetRef {
    let search = Search::new(table, place, key);
    search.at_home().unwrap_or_else(|| search.further())
}
