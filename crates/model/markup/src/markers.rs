//! Finding markers in text that comes in pieces.

use memchr::{memchr, memchr2, memchr3};

/// Texts that mean something where they stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct MarkerSet {
    markers: Vec<&'static str>,
    /// First bytes of the markers, each once.
    firsts: Vec<u8>,
}

/// The outcome of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkerSearch {
    /// The marker of this number stands in `start..end`.
    Found {
        /// Its number in the set.
        number: usize,
        /// Its first byte.
        start: usize,
        /// The byte behind it.
        end: usize,
    },
    /// No marker; what stands before this byte cannot become one. The rest may, with more text.
    Nothing(usize),
}

impl MarkerSet {
    /// The set of these markers, none of them empty.
    pub(crate) fn new(markers: impl IntoIterator<Item = &'static str>) -> Self {
        let markers: Vec<_> = markers.into_iter().collect();
        let mut firsts: Vec<_> = markers.iter().map(|marker| marker.as_bytes()[0]).collect();
        firsts.sort_unstable();
        firsts.dedup();
        Self { markers, firsts }
    }

    /// The marker of a number.
    pub(crate) fn marker(&self, number: usize) -> &'static str {
        self.markers[number]
    }

    /// The first marker of a text, and of several that begin there the longest. `last` says that
    /// no more text comes.
    pub(crate) fn find(&self, text: &str, last: bool) -> MarkerSearch {
        let mut from = 0;
        while let Some(start) = self.candidate(text.as_bytes(), from) {
            match self.at(text, start, last) {
                MarkerSearch::Nothing(end) if end > start => from = end,
                other => return other,
            }
        }
        MarkerSearch::Nothing(text.len())
    }

    /// The marker that begins at `start`. [`MarkerSearch::Nothing`] of `start` says that one may
    /// come there, and of what is behind it that none does.
    pub(crate) fn at(&self, text: &str, start: usize, last: bool) -> MarkerSearch {
        let rest = &text.as_bytes()[start..];
        let mut longest: Option<usize> = None;
        let mut possible = 0;
        for (number, marker) in self.markers.iter().enumerate() {
            if rest.starts_with(marker.as_bytes()) {
                if longest.is_none_or(|it| self.markers[it].len() < marker.len()) {
                    longest = Some(number);
                }
            } else if !last && marker.as_bytes().starts_with(rest) {
                possible = possible.max(marker.len());
            }
        }
        match longest {
            // A longer one may still come, and then it counts.
            Some(number) if self.markers[number].len() >= possible => {
                MarkerSearch::Found { number, start, end: start + self.markers[number].len() }
            }
            None if possible == 0 => MarkerSearch::Nothing(start + 1),
            _ => MarkerSearch::Nothing(start),
        }
    }

    /// The next byte from `from` on that begins a marker.
    fn candidate(&self, text: &[u8], from: usize) -> Option<usize> {
        let rest = text.get(from..)?;
        let found = match *self.firsts {
            [] => None,
            [a] => memchr(a, rest),
            [a, b] => memchr2(a, b, rest),
            [a, b, c] => memchr3(a, b, c, rest),
            ref firsts => rest.iter().position(|byte| firsts.contains(byte)),
        };
        found.map(|at| from + at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, last: bool, expected: MarkerSearch) {
        let set = MarkerSet::new(["<a>", "<a>b", "[x"]);
        assert_eq!(set.find(text, last), expected, "{text:?}");
    }

    #[test]
    fn the_first_marker_counts_and_the_longest_of_those_there() {
        let found = |number, start, end| MarkerSearch::Found { number, start, end };
        check("z <a>c [x", false, found(0, 2, 5));
        check("z <a>bc", false, found(1, 2, 6));
        check("z [x<a>", false, found(2, 2, 4));
        check("z <a>", false, MarkerSearch::Nothing(2));
        check("z <a>", true, found(0, 2, 5));
    }

    #[test]
    fn only_what_may_become_a_marker_is_held() {
        check("z <", false, MarkerSearch::Nothing(2));
        check("z <<", false, MarkerSearch::Nothing(3));
        check("z <b", false, MarkerSearch::Nothing(4));
        check("z <", true, MarkerSearch::Nothing(3));
        check("", false, MarkerSearch::Nothing(0));
    }
}
