//! Order of last use, as a list threaded through an array: every operation is O(1).

/// Marks the end of the list.
const NONE: u32 = u32::MAX;

/// A list of distinct small numbers, oldest first.
#[derive(Debug)]
pub(super) struct Lru {
    /// Neighbours of each number that was ever listed; meaningless while it is not listed.
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

impl Default for Lru {
    fn default() -> Self {
        Self { links: Vec::new(), oldest: NONE, newest: NONE, len: 0 }
    }
}

impl Lru {
    /// Number of listed blocks.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Lists `id`, which is not listed, as the newest.
    pub(super) fn push(&mut self, id: u32) {
        let at = id as usize;
        if at >= self.links.len() {
            self.links.resize(at + 1, Link { older: NONE, newer: NONE });
        }
        self.links[at] = Link { older: self.newest, newer: NONE };
        match self.newest {
            NONE => self.oldest = id,
            newest => self.links[newest as usize].newer = id,
        }
        self.newest = id;
        self.len += 1;
    }

    /// Unlists `id`, which is listed.
    pub(super) fn remove(&mut self, id: u32) {
        let Link { older, newer } = self.links[id as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        self.len -= 1;
    }

    /// Unlists and returns the oldest.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let id = (self.oldest != NONE).then_some(self.oldest)?;
        self.remove(id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::Lru;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Whatever is listed and unlisted, the order is that of a plain queue.
        #[test]
        fn agrees_with_a_queue(steps in prop::collection::vec((0..3u8, 0..12u32), 0..200)) {
            let (mut lru, mut model) = (Lru::default(), VecDeque::new());
            for (what, id) in steps {
                match what {
                    0 => prop_assert_eq!(lru.pop(), model.pop_front()),
                    1 if !model.contains(&id) => {
                        lru.push(id);
                        model.push_back(id);
                    }
                    _ if model.contains(&id) => {
                        lru.remove(id);
                        model.retain(|&other| other != id);
                    }
                    _ => {}
                }
                prop_assert_eq!(lru.len(), model.len());
            }
        }
    }
}
