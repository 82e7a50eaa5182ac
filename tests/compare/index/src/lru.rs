//! A worker's cache: a bounded set of blocks that forgets the one that was used longest ago.

use rustc_hash::FxHashMap;

const NONE: u32 = u32::MAX;

struct Node {
    hash: u64,
    newer: u32,
    older: u32,
}

/// Blocks in the order of their last use.
pub struct Lru {
    nodes: Vec<Node>,
    free: Vec<u32>,
    by_hash: FxHashMap<u64, u32>,
    newest: u32,
    oldest: u32,
}

impl Default for Lru {
    fn default() -> Self {
        Self::new()
    }
}

impl Lru {
    /// An empty cache.
    pub fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            by_hash: FxHashMap::default(),
            newest: NONE,
            oldest: NONE,
        }
    }

    /// Blocks that are there.
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Whether a block is there.
    pub fn contains(&self, hash: u64) -> bool {
        self.by_hash.contains_key(&hash)
    }

    /// Makes a block the one that was used last; it need not have been there.
    pub fn touch(&mut self, hash: u64) {
        let at = match self.by_hash.get(&hash) {
            Some(&at) => {
                self.unlink(at);
                at
            }
            None => self.allocate(hash),
        };
        self.link(at);
    }

    /// Forgets the block that was used longest ago.
    pub fn evict(&mut self) -> Option<u64> {
        let at = self.oldest;
        let hash = self.nodes.get(at as usize)?.hash;
        self.unlink(at);
        self.free.push(at);
        self.by_hash.remove(&hash);
        Some(hash)
    }

    fn allocate(&mut self, hash: u64) -> u32 {
        let node = Node { hash, newer: NONE, older: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.by_hash.insert(hash, at);
        at
    }

    fn link(&mut self, at: u32) {
        let older = std::mem::replace(&mut self.newest, at);
        (self.nodes[at as usize].newer, self.nodes[at as usize].older) = (NONE, older);
        match older {
            NONE => self.oldest = at,
            older => self.nodes[older as usize].newer = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let Node { newer, older, .. } = self.nodes[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::VecDeque;

    #[test]
    fn agrees_with_a_plain_queue() {
        let (mut lru, mut model) = (Lru::new(), VecDeque::new());
        let mut random = Random::new(7);
        for _ in 0..5_000 {
            if random.below(4) == 0 {
                assert_eq!(lru.evict(), model.pop_front());
            } else {
                let hash = random.below(50) as u64;
                lru.touch(hash);
                model.retain(|&held| held != hash);
                model.push_back(hash);
            }
            assert_eq!(lru.len(), model.len());
            assert!(model.iter().all(|&hash| lru.contains(hash)));
        }
    }
}
