//! Stop strings, wherever the borders of tokens fall.

/// Finds the first stop string in text that arrives in pieces, and holds back what could become
/// one.
///
/// The first stop string is the one that is complete first; of several that end at the same place
/// the longest counts. So the result does not depend on how the text is cut.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    needles: Vec<Needle>,
    /// The end of the text so far: the longest that begins a stop string.
    held: String,
    include: bool,
    /// Number of the stop string that is complete.
    matched: Option<usize>,
}

/// One stop string and how much of it the text ends with (Knuth, Morris, Pratt).
#[derive(Clone, Debug)]
struct Needle {
    bytes: Box<[u8]>,
    /// For each length of a match: the longest shorter match that it ends with.
    fallback: Box<[u32]>,
    length: usize,
}

impl StopMatcher {
    /// A matcher for `stops`, none of them empty; nothing if there are none. With `include` the
    /// stop string stays at the end of the text.
    pub fn new(stops: &[String], include: bool) -> Option<Self> {
        let needles: Vec<_> =
            stops.iter().filter(|stop| !stop.is_empty()).map(|stop| Needle::new(stop)).collect();
        (!needles.is_empty()).then(|| Self { needles, held: String::new(), include, matched: None })
    }

    /// Takes the next piece of text and appends to `out` what is safe to show. Returns whether a
    /// stop string is complete; from then on nothing more is taken.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.matched.is_some() {
            return true;
        }
        for (at, byte) in text.bytes().enumerate() {
            let (mut longest, mut number) = (0, None);
            for (at, needle) in self.needles.iter_mut().enumerate() {
                if needle.advance(byte) && needle.bytes.len() > longest {
                    (longest, number) = (needle.bytes.len(), Some(at));
                }
            }
            if longest > 0 {
                self.matched = number;
                self.held.push_str(&text[..=at]);
                let keep = self.held.len() - if self.include { 0 } else { longest };
                out.push_str(&self.held[..keep]);
                self.held = String::new();
                return true;
            }
        }
        // The longest beginning of a stop string at the end may still become one.
        let hold = self.needles.iter().map(|needle| needle.length).max().unwrap_or(0);
        if hold <= text.len() {
            let safe = text.len() - hold;
            out.push_str(&self.held);
            out.push_str(&text[..safe]);
            self.held.clear();
            self.held.push_str(&text[safe..]);
        } else {
            self.held.push_str(text);
            let safe = self.held.len() - hold;
            out.push_str(&self.held[..safe]);
            self.held.drain(..safe);
        }
        false
    }

    /// The stop string that is complete, if one is.
    pub fn stop_string(&self) -> Option<&str> {
        let needle = &self.needles[self.matched?];
        Some(std::str::from_utf8(&needle.bytes).expect("a stop string is text"))
    }

    /// Appends what was held back: the text has ended without the rest of a stop string.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

impl Needle {
    fn new(stop: &str) -> Self {
        let bytes: Box<[u8]> = stop.as_bytes().into();
        let mut fallback = vec![0u32; bytes.len() + 1];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length] as usize;
            }
            length += usize::from(bytes[at] == bytes[length]);
            fallback[at + 1] = length as u32;
        }
        Self { bytes, fallback: fallback.into_boxed_slice(), length: 0 }
    }

    /// Takes one byte; true when the text now ends with the whole needle.
    fn advance(&mut self, byte: u8) -> bool {
        while self.length > 0 && self.bytes[self.length] != byte {
            self.length = self.fallback[self.length] as usize;
        }
        self.length += usize::from(self.bytes[self.length] == byte);
        self.length == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The obvious search: the first place in the text that ends with a stop string.
    fn search(text: &str, stops: &[String], include: bool) -> (String, bool) {
        for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            let ending = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(longest) = ending.map(String::len).max() {
                return (text[..end - if include { 0 } else { longest }].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    fn run(pieces: &[&str], stops: &[String], include: bool) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops, include).expect("there are stop strings");
        let mut out = String::new();
        let matched = pieces.iter().any(|piece| matcher.push(piece, &mut out));
        if !matched {
            matcher.finish(&mut out);
        }
        (out, matched)
    }

    #[test]
    fn text_that_cannot_begin_a_stop_string_is_not_held_back() {
        let mut matcher = StopMatcher::new(&["END".into()], false).unwrap();
        let mut out = String::new();
        assert!(!matcher.push("the E", &mut out));
        assert_eq!(out, "the ");
        assert!(!matcher.push("N", &mut out));
        assert!(!matcher.push("E", &mut out));
        assert_eq!(out, "the EN");
        assert!(matcher.push("ND of it", &mut out));
        assert_eq!(out, "the EN");
        assert_eq!(matcher.stop_string(), Some("END"));
        assert!(matcher.push("more", &mut out));
        assert_eq!(out, "the EN");
    }

    #[test]
    fn no_stop_strings_need_no_matcher() {
        assert!(StopMatcher::new(&[], true).is_none());
        assert!(StopMatcher::new(&[String::new()], true).is_none());
    }

    proptest! {
        /// However the text is cut, the result is the search's on the whole text.
        #[test]
        fn agrees_with_a_search_of_the_whole_text(
            pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
            stops in proptest::collection::vec("[abé]{1,4}", 1..4),
            include in any::<bool>(),
        ) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&pieces, &stops, include), search(&pieces.concat(), &stops, include));
        }
    }
}
