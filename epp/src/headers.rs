//! The headers of a request or an answer, kept close together.

use std::ops::Range;

/// Headers in their order, names in lower case.
///
/// All names lie in one piece of memory and all values in another: a request has a dozen headers
/// or more, of which hardly one is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    names: String,
    values: Vec<u8>,
    /// Ends of the name and the value of each header.
    ends: Vec<(usize, usize)>,
}

impl Headers {
    /// Number of headers; a name counts as often as it comes.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds one. The name may be in any case.
    pub fn push(&mut self, name: &str, value: &[u8]) {
        let start = self.names.len();
        self.names.push_str(name);
        self.names[start..].make_ascii_lowercase();
        self.values.extend_from_slice(value);
        self.ends.push((self.names.len(), self.values.len()));
    }

    /// Makes room for `count` headers of usual size.
    pub fn reserve(&mut self, count: usize) {
        self.names.reserve(count * 16);
        self.values.reserve(count * 32);
        self.ends.reserve(count);
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        (0..self.ends.len()).map(|at| {
            let [name, value] = self.ranges(at);
            (&self.names[name], &self.values[value])
        })
    }

    /// The last value of a header, if it is text. `name` is in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.bytes(name)?).ok()
    }

    /// The last value of a header, text or not. `name` is in lower case.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        let names = self.names.as_bytes();
        let mut ranges = (0..self.ends.len()).rev().map(|at| self.ranges(at));
        let [_, value] = ranges.find(|[known, _]| names[known.clone()] == *name.as_bytes())?;
        Some(&self.values[value])
    }

    /// Positions of a header's name and value.
    fn ranges(&self, at: usize) -> [Range<usize>; 2] {
        let (name, value) = at.checked_sub(1).map_or((0, 0), |before| self.ends[before]);
        let (name_end, value_end) = self.ends[at];
        [name..name_end, value..value_end]
    }
}

impl<N: AsRef<str>, V: AsRef<[u8]>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(headers: I) -> Self {
        let mut all = Self::default();
        headers.into_iter().for_each(|(name, value)| all.push(name.as_ref(), value.as_ref()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// They are what the obvious list of pairs is.
        #[test]
        fn agrees_with_a_list(pairs in vec(("[a-cA-C]{0,2}", "[ -~]{0,4}"), 0..12)) {
            let headers: Headers = pairs.iter().map(|(name, value)| (name, value)).collect();
            let list: Vec<_> =
                pairs.iter().map(|(name, value)| (name.to_lowercase(), value.as_str())).collect();
            let found: Vec<_> = headers.iter().collect();
            let expected: Vec<_> =
                list.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
            prop_assert_eq!((found, headers.len()), (expected, pairs.len()));
            for name in ["", "a", "ab", "z"] {
                let last = list.iter().rev().find(|(known, _)| known == name);
                prop_assert_eq!(headers.get(name), last.map(|(_, value)| *value));
            }
        }
    }

    #[test]
    fn a_value_that_is_no_text_is_not_read() {
        let headers: Headers = [("a", &b"\xff"[..])].into_iter().collect();
        assert_eq!((headers.get("a"), headers.len()), (None, 1));
        assert_eq!(headers.bytes("a"), Some(&b"\xff"[..]));
    }
}
