//! Least recently used first, without allocation per change.

const NONE: u32 = u32::MAX;

/// An order of small numbers by their last use; the links are a vector indexed by them.
#[derive(Debug)]
pub(crate) struct RecencyList {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl Default for RecencyList {
    fn default() -> Self {
        Self { links: Vec::new(), oldest: NONE, newest: NONE, len: 0 }
    }
}

impl RecencyList {
    /// Blocks in the cache.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Puts one in that is not, as the newest.
    pub(crate) fn push(&mut self, item: u32) {
        if self.links.len() <= item as usize {
            self.links.resize(item as usize + 1, Link { before: NONE, after: NONE });
        }
        self.links[item as usize] = Link { before: self.newest, after: NONE };
        match self.newest {
            NONE => self.oldest = item,
            newest => self.links[newest as usize].after = item,
        }
        self.newest = item;
        self.len += 1;
    }

    /// Takes one out that is in.
    pub(crate) fn remove(&mut self, item: u32) {
        let Link { before, after } = self.links[item as usize];
        match before {
            NONE => self.oldest = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.links[after as usize].before = before,
        }
        self.len -= 1;
    }

    /// Takes the oldest out.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let oldest = self.oldest;
        (oldest != NONE).then(|| self.remove(oldest))?;
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    proptest! {
        #[test]
        fn agrees_with_a_plain_list(changes in vec((0_u32..12, any::<bool>()), 0..200)) {
            let (mut lru, mut list) = (RecencyList::default(), Vec::new());
            for (item, pop) in changes {
                if pop {
                    let expected = (!list.is_empty()).then(|| list.remove(0));
                    prop_assert_eq!(lru.pop(), expected);
                } else if let Some(place) = list.iter().position(|other| *other == item) {
                    lru.remove(item);
                    list.remove(place);
                } else {
                    lru.push(item);
                    list.push(item);
                }
                prop_assert_eq!(lru.len() as usize, list.len());
            }
        }
    }
}
