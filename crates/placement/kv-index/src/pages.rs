//! A growing array that never moves, so that it can be read while it grows.

use std::sync::OnceLock;

/// Pages, each twice as large as the one before it: enough for 2^32 items.
const PAGES: usize = 27;
const FIRST_BITS: u32 = 6;

/// Items by number. Pages come when first written to.
pub(crate) struct Pages<T> {
    pages: [OnceLock<Box<[T]>>; PAGES],
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self { pages: [const { OnceLock::new() }; PAGES] }
    }
}

impl<T> Pages<T> {
    /// Items that are in one page, from `first` on; `None` if it was never written to.
    pub(crate) fn from(&self, first: u32) -> Option<&[T]> {
        let (page, place) = split(first);
        self.pages[page].get()?.get(place..)
    }

    /// One item; `None` if its page was never written to.
    pub(crate) fn at(&self, number: u32) -> Option<&T> {
        self.from(number)?.first()
    }

    /// Items that are in one page, from `first` on, made if they are not there.
    pub(crate) fn make(&self, first: u32, new: impl Fn() -> T) -> &[T] {
        let (page, place) = split(first);
        let make = || (0..1usize << (page as u32 + FIRST_BITS)).map(|_| new()).collect();
        &self.pages[page].get_or_init(make)[place..]
    }

    /// Items in the page of item `number`, from it to the page's end.
    pub(crate) fn left(number: u32) -> usize {
        let (page, place) = split(number);
        (1 << (page as u32 + FIRST_BITS)) - place
    }

    /// Items in all pages that were written to.
    pub(crate) fn len(&self) -> usize {
        self.pages.iter().filter_map(OnceLock::get).map(|page| page.len()).sum()
    }
}

fn split(number: u32) -> (usize, usize) {
    let shifted = u64::from(number) + (1 << FIRST_BITS);
    let page = shifted.ilog2() - FIRST_BITS;
    (page as usize, (shifted - (1 << (page + FIRST_BITS))) as usize)
}

#[cfg(all(test, not(stator_loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_fill_pages_without_a_gap() {
        let mut expected = (0, 0);
        for number in 0..100_000 {
            assert_eq!(split(number), expected);
            assert_eq!(Pages::<u8>::left(number), (64 << expected.0) - expected.1);
            expected.1 += 1;
            if expected.1 == 64 << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(split(u32::MAX).0, PAGES - 1);
    }

    #[test]
    fn what_was_not_made_is_not_there() {
        let pages = Pages::default();
        assert_eq!((pages.at(0), pages.len()), (None, 0));
        pages.make(70, || 1u8);
        assert_eq!((pages.at(63), pages.at(64), pages.len()), (None, Some(&1), 128));
    }
}
