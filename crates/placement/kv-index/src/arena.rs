//! Memory for the tables of large shards, side by side, so that huge pages can be under them.
//!
//! A lookup looks at dozens of buckets all over the tables, and with small pages the processor has
//! to find out first, for nearly every one, where its page is. A table alone is smaller than a huge
//! page, so tables share them. Memory is small pages when it is first written to, and is joined
//! into huge ones later ([`Arena::join`]): the system may need milliseconds to find one, for which
//! no writer should wait; and what nothing was written to takes no memory at all.
//!
//! The lowest free addresses are used first. Shards grow one after the other, so that what they
//! leave lies together and is room for the larger tables of others: about an eighth is unused.

use crate::layout::BUCKET_BYTES;
use crate::mapping::{HUGE_PAGE, MemoryMapping};
use crate::table::Bucket;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Tables of fewer buckets, of less than 8 MiB all together, stand elsewhere.
const LEAST: usize = 512;
/// Most bytes of addresses.
const MOST: usize = if cfg!(miri) { 16 << 20 } else { usize::MAX >> 24 };
/// Buckets in a huge page.
const PAGE: usize = HUGE_PAGE / BUCKET_BYTES;

/// Lends room for tables.
pub(crate) struct Arena {
    buckets: usize,
    /// Comes with the first large table; `None` where the system gives nothing.
    ground: OnceLock<Option<Arc<Ground>>>,
}

struct Ground {
    mapping: MemoryMapping,
    space: Mutex<Space>,
}

/// Buckets that are lent to one table, until this is dropped.
pub(crate) struct Lot {
    ground: Arc<Ground>,
    range: Range<usize>,
}

/// Allocation of the buckets of a mapping.
struct Space {
    /// Free ranges, no two of which touch: length by start.
    free: BTreeMap<usize, usize>,
    /// From here on nothing was lent yet.
    fresh: usize,
    /// Huge pages that were joined.
    joined: usize,
}

impl Arena {
    /// For tables of so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        // Addresses cost nothing, and a table is there twice while it grows.
        let bytes = bytes.saturating_mul(2).min(MOST);
        Self { buckets: bytes / BUCKET_BYTES, ground: OnceLock::new() }
    }

    /// Room for a table of `buckets`, all free; `None` if it has to stand elsewhere.
    pub(crate) fn lend(&self, buckets: usize) -> Option<Lot> {
        if buckets < LEAST {
            return None;
        }
        let ground = self.ground.get_or_init(|| Ground::new(self.buckets)).as_ref()?;
        let (range, used) = ground.space.lock().take(buckets)?;
        let lot = Lot { ground: ground.clone(), range };
        lot.buckets()[..used].iter().for_each(Bucket::clear);
        Some(lot)
    }

    /// Makes a huge page of the next that is in use from end to end; false if there is none.
    pub(crate) fn join(&self) -> bool {
        let Some(Some(ground)) = self.ground.get() else { return false };
        let next = ground.space.lock().next_page();
        next.map(|page| ground.mapping.join(page)).is_some()
    }
}

impl Ground {
    fn new(buckets: usize) -> Option<Arc<Self>> {
        let mapping = MemoryMapping::reserve(buckets)?;
        Some(Arc::new(Self { mapping, space: Mutex::new(Space::new(buckets)) }))
    }
}

impl Lot {
    pub(crate) fn buckets(&self) -> &[Bucket] {
        self.ground.mapping.buckets(self.range.clone())
    }
}

impl Drop for Lot {
    fn drop(&mut self) {
        self.ground.space.lock().give_back(self.range.clone());
    }
}

impl Space {
    fn new(buckets: usize) -> Self {
        Self { free: BTreeMap::from([(0, buckets)]), fresh: 0, joined: 0 }
    }

    /// The first free range of this length, and how many of its buckets were lent before.
    fn take(&mut self, buckets: usize) -> Option<(Range<usize>, usize)> {
        let (&start, &length) = self.free.iter().find(|&(_, &length)| length >= buckets)?;
        self.free.remove(&start);
        let range = start..start + buckets;
        if length > buckets {
            self.free.insert(range.end, length - buckets);
        }
        let used = self.fresh.clamp(range.start, range.end) - range.start;
        self.fresh = self.fresh.max(range.end);
        Some((range, used))
    }

    fn give_back(&mut self, Range { mut start, mut end }: Range<usize>) {
        let before = self.free.range(..start).next_back();
        if let Some((&before, _)) = before.filter(|&(before, length)| before + length == start) {
            start = before;
        }
        if let Some(after) = self.free.remove(&end) {
            end += after;
        }
        self.free.insert(start, end - start);
    }

    /// The next huge page in all of which something was written.
    fn next_page(&mut self) -> Option<Range<usize>> {
        let page = self.joined * PAGE..(self.joined + 1) * PAGE;
        let is_used = page.end <= self.fresh;
        self.joined += usize::from(is_used);
        is_used.then_some(page)
    }
}

#[cfg(all(test, not(stator_loom)))]
mod tests {
    use super::*;
    use crate::table;
    use proptest::prelude::*;

    proptest! {
        /// Against a map of who has each bucket.
        #[test]
        fn no_bucket_is_lent_twice_and_the_first_free_ones_are_taken(
            steps in proptest::collection::vec((any::<bool>(), 1usize..40), 1..200),
        ) {
            const ALL: usize = 200;
            let (mut space, mut lent, mut fresh) = (Space::new(ALL), Vec::new(), 0);
            let mut taken = [false; ALL];
            for (takes, number) in steps {
                if takes {
                    let fits = |start: &usize| !taken[*start..*start + number].contains(&true);
                    let first = (0..=ALL - number).find(fits);
                    let range = space.take(number);
                    let used = |start: usize| fresh.clamp(start, start + number) - start;
                    prop_assert_eq!(&range, &first.map(|at| (at..at + number, used(at))));
                    if let Some((range, _)) = range {
                        taken[range.clone()].fill(true);
                        fresh = fresh.max(range.end);
                        lent.push(range);
                    }
                } else if !lent.is_empty() {
                    let range: Range<usize> = lent.swap_remove(number % lent.len());
                    taken[range.clone()].fill(false);
                    space.give_back(range);
                }
            }
            lent.into_iter().for_each(|range| space.give_back(range));
            prop_assert_eq!(space.free, BTreeMap::from([(0, ALL)]));
        }
    }

    #[test]
    fn pages_are_joined_once_all_of_them_is_used() {
        let mut space = Space::new(10 * PAGE);
        let mut pages = |buckets| {
            let taken = space.take(buckets).map(|(range, _)| range.end);
            (taken, std::iter::from_fn(|| space.next_page()).collect::<Vec<_>>())
        };
        assert_eq!(pages(PAGE - 1), (Some(PAGE - 1), vec![]));
        let two = vec![0..PAGE, PAGE..2 * PAGE];
        assert_eq!(pages(PAGE + 1), (Some(2 * PAGE), two));
        assert_eq!(pages(8 * PAGE + 1), (None, vec![]));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_lot_is_free_again_when_it_is_dropped() {
        let arena = Arena::new(1 << 20);
        let address = |lot: &Lot| lot.buckets().as_ptr();
        let (first, second) = (arena.lend(600), arena.lend(512));
        let (first, second) = first.zip(second).expect("the system has a few MiB");
        first.buckets().iter().for_each(|bucket| bucket.fill_first(7));
        let at = address(&first);
        drop(first);
        // One that was used only in part is cleared only there.
        let third = arena.lend(600).expect("what was given back");
        assert_eq!((address(&third), table::blocks(third.buckets()).count()), (at, 0));
        assert!(at.wrapping_add(600) == address(&second));
        assert!(arena.lend(LEAST - 1).is_none(), "small tables stand elsewhere");
        assert!(arena.lend(1 << 20).is_none(), "so do those for which there is no room");
    }

    #[test]
    fn where_the_system_gives_no_addresses_nothing_is_lent() {
        let arena = Arena { buckets: usize::MAX, ground: OnceLock::new() };
        assert!(arena.lend(LEAST).is_none() && !arena.join());
    }
}
