//! A bounded set that forgets what was used least recently.

use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Marks the end of the list.
const NONE: u32 = u32::MAX;

/// Keys in the order of their last use, at most `capacity`. All operations take constant time.
#[derive(Clone, Debug)]
pub(crate) struct LruKeys<K> {
    positions: FxHashMap<K, u32>,
    nodes: Vec<Node<K>>,
    oldest: u32,
    newest: u32,
    capacity: usize,
}

#[derive(Clone, Debug)]
struct Node<K> {
    key: K,
    older: u32,
    newer: u32,
}

impl<K: Copy + Eq + Hash> LruKeys<K> {
    /// An empty set of at least one key.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, NONE as usize);
        Self {
            positions: FxHashMap::default(),
            nodes: Vec::new(),
            oldest: NONE,
            newest: NONE,
            capacity,
        }
    }

    /// Makes room for more or fewer keys; gives back one that has no room any more. Call it until
    /// it gives none.
    pub(crate) fn resize(&mut self, capacity: usize) -> Option<K> {
        self.capacity = capacity.clamp(1, NONE as usize);
        if self.nodes.len() <= self.capacity { None } else { self.pop_oldest() }
    }

    /// Whether a key is there.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.positions.contains_key(key)
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Largest number of keys.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes a key the one used last. Gives the key that had to go for it.
    pub(crate) fn touch(&mut self, key: K) -> Option<K> {
        if let Some(&position) = self.positions.get(&key) {
            self.unlink(position);
            self.link_newest(position);
            return None;
        }
        if self.nodes.len() < self.capacity {
            let position = self.nodes.len() as u32;
            self.nodes.push(Node { key, older: NONE, newer: NONE });
            self.positions.insert(key, position);
            self.link_newest(position);
            return None;
        }
        let position = self.oldest;
        self.unlink(position);
        let evicted = std::mem::replace(&mut self.nodes[position as usize].key, key);
        self.positions.remove(&evicted);
        self.positions.insert(key, position);
        self.link_newest(position);
        Some(evicted)
    }

    /// Forgets a key.
    pub(crate) fn remove(&mut self, key: &K) {
        let Some(position) = self.positions.remove(key) else { return };
        self.unlink(position);
        let last = self.nodes.len() as u32 - 1;
        self.nodes.swap_remove(position as usize);
        if position != last {
            self.moved(position);
        }
    }

    /// The keys, the one not used for longest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = K> + '_ {
        let node = |position: u32| self.nodes.get(position as usize);
        let mut next = self.oldest;
        std::iter::from_fn(move || {
            let node = node(next)?;
            next = node.newer;
            Some(node.key)
        })
    }

    /// At most `most` of the keys, in no order that means anything, from position `from` on; `None`
    /// at the end.
    pub(crate) fn part(&self, from: usize, most: usize) -> Option<impl Iterator<Item = K> + '_> {
        let rest = self.nodes.get(from..).filter(|rest| !rest.is_empty())?;
        Some(rest.iter().take(most).map(|node| node.key))
    }

    /// The key not used for longest.
    pub(crate) fn oldest(&self) -> Option<K> {
        self.nodes.get(self.oldest as usize).map(|node| node.key)
    }

    fn pop_oldest(&mut self) -> Option<K> {
        let key = self.oldest()?;
        self.remove(&key);
        Some(key)
    }

    fn unlink(&mut self, position: u32) {
        let Node { older, newer, .. } = self.nodes[position as usize];
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
    }

    fn link_newest(&mut self, position: u32) {
        let newest = self.newest;
        let node = &mut self.nodes[position as usize];
        (node.older, node.newer) = (newest, NONE);
        match self.nodes.get_mut(newest as usize) {
            Some(node) => node.newer = position,
            None => self.oldest = position,
        }
        self.newest = position;
    }

    /// Points everything at a node that now lies at `position`.
    fn moved(&mut self, position: u32) {
        let Node { key, older, newer } = self.nodes[position as usize];
        self.positions.insert(key, position);
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = position,
            None => self.oldest = position,
        }
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = position,
            None => self.newest = position,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Touch(u8),
        Remove(u8),
        Resize(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..20u8).prop_map(Step::Touch),
            2 => (0..20u8).prop_map(Step::Remove),
            1 => (1..10usize).prop_map(Step::Resize),
        ]
    }

    proptest! {
        /// Whatever is done to it, it agrees with a plain list.
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec(any_step(), 0..100)) {
            let (mut lru, mut list, mut capacity) = (LruKeys::new(4), Vec::new(), 4);
            for step in steps {
                match step {
                    Step::Touch(key) => {
                        list.retain(|other| *other != key);
                        list.push(key);
                        let evicted = (list.len() > capacity).then(|| list.remove(0));
                        prop_assert_eq!(lru.touch(key), evicted);
                    }
                    Step::Remove(key) => {
                        list.retain(|other| *other != key);
                        lru.remove(&key);
                    }
                    Step::Resize(to) => {
                        capacity = to;
                        let gone = list.len().saturating_sub(capacity);
                        let evicted: Vec<_> = list.drain(..gone).collect();
                        let ours: Vec<_> = std::iter::from_fn(|| lru.resize(to)).collect();
                        prop_assert_eq!(ours, evicted);
                    }
                }
                prop_assert_eq!(lru.iter().collect::<Vec<_>>(), list.clone());
                prop_assert!(list.iter().all(|key| lru.contains(key)));
            }
        }
    }
}
