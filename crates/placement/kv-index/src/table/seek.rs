//! Finding a block, or room for it, as the writer does: a pair of buckets at a time, so that what
//! is needed next can be brought near before it is looked at.

use super::{At, Bucket, MAX_PROBES, Path, fetch_pair};

/// Result of the writer's search for a block, or for room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    Here(At),
    /// Nowhere, and could have this cell.
    Free(At),
    /// Nowhere, and no room is left or was asked for.
    Nowhere,
}

/// A search, as far as it has come.
#[derive(Clone, Copy)]
pub(crate) struct Seek {
    path: Path,
    key: u64,
    /// The pair that is looked at next, and how many buckets of the path are before it.
    pair: usize,
    distance: usize,
    /// Whether something like the block passed all buckets so far.
    passed: bool,
    free: Option<At>,
}

impl Seek {
    #[inline(always)]
    pub(crate) fn new(path: Path, key: u64) -> Self {
        Self { path, key, pair: path.home / 2, distance: 0, passed: true, free: None }
    }

    /// Looks at the next pair; `None` if there is more to look at, for room too if the block
    /// `wants_room`.
    #[inline(always)]
    pub(crate) fn look(&mut self, table: &[Bucket], wants_room: bool) -> Option<Located> {
        let first = self.pair * 2 + (self.path.home & 1);
        let home = self.look_at(table, self.distance, first, wants_room);
        let located =
            home.or_else(|| self.look_at(table, self.distance + 1, first ^ 1, wants_room));
        if located.is_some() {
            return located;
        }
        self.distance += 2;
        if self.distance >= MAX_PROBES {
            return Some(self.free.map_or(Located::Nowhere, Located::Free));
        }
        self.pair = self.path.next_pair(self.pair, self.distance);
        None
    }

    /// Looks at one bucket: its number on the path, and the one in the table.
    #[inline(always)]
    fn look_at(
        &mut self,
        table: &[Bucket],
        distance: usize,
        number: usize,
        wants_room: bool,
    ) -> Option<Located> {
        let bucket = &table[number];
        // Where nothing like it passed, it cannot be farther.
        if self.passed {
            if let Some((cell, _)) = bucket.find(self.key) {
                return Some(Located::Here(At::new(distance, number, cell)));
            }
            self.passed = bucket.passed(self.path.tag()) > 0;
        }
        if wants_room && self.free.is_none() {
            self.free = bucket.room().map(|cell| At::new(distance, number, cell));
        }
        let has_ended = !self.passed && (!wants_room || self.free.is_some());
        has_ended.then(|| self.free.map_or(Located::Nowhere, Located::Free))
    }

    /// Starts to bring the pair that is looked at next into the processor's cache.
    #[inline]
    pub(crate) fn fetch(&self, table: &[Bucket]) {
        fetch_pair(table, self.pair * 2);
    }
}

/// Finds a block's cell, or the first free one that it can have if it `wants_room`.
#[inline(never)]
pub(crate) fn locate(table: &[Bucket], path: Path, key: u64, wants_room: bool) -> Located {
    let mut seek = Seek::new(path, key);
    loop {
        if let Some(located) = seek.look(table, wants_room) {
            return located;
        }
    }
}
