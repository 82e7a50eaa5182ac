//! The prompts that run now, on all workers, and which blocks they share where.

use rustc_hash::FxHashMap;
use stator_kv_index::common_prefix;
use stator_protos::hash::SequenceHash;
use std::sync::Arc;

/// The parent of first nodes; no node has this number.
const ROOT: u32 = u32::MAX;

/// A tree of the sequences in flight in which each edge is as long as nothing branches off it.
///
/// Every node counts which workers have how many requests whose prompts go through it, so that one
/// walk finds what each worker has in common with a sequence, and a request costs as many steps as
/// its prompt has branches, not blocks.
///
/// A request leaves the way that it came, by the parents of its last node. So nothing stays behind
/// even where sequences are no chains (their hashes collide), although their overlaps are wrong.
#[derive(Default)]
pub(crate) struct RunningPrefixes {
    nodes: Vec<Node>,
    free: Vec<u32>,
    children: FxHashMap<(u32, SequenceHash), u32>,
}

/// Blocks that whoever has the first of them has all of.
#[derive(Clone)]
struct Node {
    /// The sequence of one of its requests: this node's part is `start..end` of it.
    hashes: Arc<[SequenceHash]>,
    start: u32,
    end: u32,
    parent: u32,
    /// By which hash the parent knows it: that of its first block, unless hashes collide.
    first: SequenceHash,
    children: u32,
    /// The exclusive or of the children's numbers: the only child's, where there is one.
    children_mixed: u32,
    /// Requests that go through the node or end at it.
    requests: u32,
    /// Requests by worker, as slot and number, in order of slots.
    users: Vec<(u32, u32)>,
}

impl Node {
    fn blocks(&self) -> u32 {
        self.end - self.start
    }

    fn part(&self) -> &[SequenceHash] {
        &self.hashes[self.start as usize..self.end as usize]
    }

    /// Adds a request of the worker in `slot`; whether it is the worker's first here.
    fn enter(&mut self, slot: u32) -> bool {
        self.requests += 1;
        match self.users.binary_search_by_key(&slot, |user| user.0) {
            Ok(place) => {
                self.users[place].1 += 1;
                false
            }
            Err(place) => {
                self.users.insert(place, (slot, 1));
                true
            }
        }
    }

    /// Takes a request out again; whether it was the worker's last here.
    fn leave(&mut self, slot: u32) -> bool {
        self.requests -= 1;
        let place = self.users.binary_search_by_key(&slot, |user| user.0);
        let place = place.expect("who leaves a node has entered it");
        self.users[place].1 -= 1;
        let last = self.users[place].1 == 0;
        if last {
            self.users.remove(place);
        }
        last
    }
}

impl RunningPrefixes {
    /// Adds a sequence of the worker in `slot`: the node that it ends at, which
    /// [`RunningPrefixes::remove`] wants, and how many of its blocks nothing else on the worker has.
    /// An empty one leaves no trace.
    pub(crate) fn insert(&mut self, slot: u32, hashes: &Arc<[SequenceHash]>) -> Option<(u32, u64)> {
        let (mut parent, mut at, mut new) = (ROOT, 0, 0);
        while let Some(&first) = hashes.get(at) {
            let id = match self.children.get(&(parent, first)) {
                None => self.add(Node {
                    hashes: hashes.clone(),
                    start: at as u32,
                    end: hashes.len() as u32,
                    parent,
                    first,
                    children: 0,
                    children_mixed: 0,
                    requests: 0,
                    users: Vec::new(),
                }),
                Some(&id) => {
                    // The first is the same, whatever its copy in the node says.
                    let common =
                        common_prefix(self.nodes[id as usize].part(), &hashes[at..]).max(1);
                    self.split(id, common as u32)
                }
            };
            let node = &mut self.nodes[id as usize];
            if node.enter(slot) {
                new += u64::from(node.blocks());
            }
            at += node.blocks() as usize;
            parent = id;
        }
        (parent != ROOT).then_some((parent, new))
    }

    /// Takes a sequence out that ends at node `last`: how many blocks the worker has no more.
    pub(crate) fn remove(&mut self, slot: u32, last: u32) -> u64 {
        let (mut id, mut gone) = (last, 0);
        while id != ROOT {
            let node = &mut self.nodes[id as usize];
            if node.leave(slot) {
                gone += u64::from(node.blocks());
            }
            let parent = node.parent;
            if node.requests == 0 {
                self.forget(id);
            } else {
                self.join(id);
            }
            id = parent;
        }
        gone
    }

    /// Calls `each` with the slot of every worker that has leading blocks of `sequence`, and how
    /// many; where a worker comes more than once, the last is right.
    pub(crate) fn overlaps(&self, sequence: &[SequenceHash], mut each: impl FnMut(u32, u32)) {
        self.walk(sequence, |node, depth| {
            node.users.iter().for_each(|&(slot, _)| each(slot, depth));
        });
    }

    /// Leading blocks of `sequence` that the worker in `slot` has.
    #[cfg(test)]
    pub(crate) fn overlap(&self, slot: u32, sequence: &[SequenceHash]) -> u32 {
        let mut found = 0;
        self.overlaps(sequence, |user, depth| {
            if user == slot {
                found = depth;
            }
        });
        found
    }

    /// Calls `each` with the nodes along `sequence` and how many blocks are the same up to there.
    fn walk(&self, sequence: &[SequenceHash], mut each: impl FnMut(&Node, u32)) {
        let (mut parent, mut at) = (ROOT, 0);
        while let Some(first) = sequence.get(at) {
            let Some(&id) = self.children.get(&(parent, *first)) else { return };
            let node = &self.nodes[id as usize];
            let common = common_prefix(node.part(), &sequence[at..]).max(1);
            at += common;
            each(node, at as u32);
            if common < node.blocks() as usize {
                return;
            }
            parent = id;
        }
    }

    /// Makes a node of the first `blocks` of node `id`, and returns it; `id` itself if that is
    /// all of it. What ended at the node, or goes on from it, keeps its number.
    fn split(&mut self, id: u32, blocks: u32) -> u32 {
        let node = &self.nodes[id as usize];
        if blocks >= node.blocks() {
            return id;
        }
        let (key, middle) = ((node.parent, node.first), node.start + blocks);
        let mut upper = node.clone();
        (upper.end, upper.children, upper.children_mixed) = (middle, 1, id);
        let upper = self.place(upper);
        let lower = &mut self.nodes[id as usize];
        (lower.start, lower.parent, lower.first) = (middle, upper, lower.hashes[middle as usize]);
        let first = lower.first;
        self.children.insert(key, upper);
        self.children.insert((upper, first), id);
        self.replace_child(key.0, id, upper);
        upper
    }

    /// Makes one node of `id` and its only child, if all requests go on to that one.
    fn join(&mut self, id: u32) {
        let node = &self.nodes[id as usize];
        let (key, start, child) = ((node.parent, node.first), node.start, node.children_mixed);
        if node.children != 1 || self.nodes[child as usize].requests != node.requests {
            return;
        }
        let lower = &mut self.nodes[child as usize];
        let old = (id, lower.first);
        (lower.start, lower.parent, lower.first) = (start, key.0, key.1);
        self.children.remove(&old);
        self.children.insert(key, child);
        self.replace_child(key.0, id, child);
        self.vacate(id);
    }

    fn add(&mut self, node: Node) -> u32 {
        let key = (node.parent, node.first);
        let id = self.place(node);
        self.children.insert(key, id);
        if let Some(parent) = self.nodes.get_mut(key.0 as usize) {
            parent.children += 1;
            parent.children_mixed ^= id;
        }
        id
    }

    fn forget(&mut self, id: u32) {
        let key = (self.nodes[id as usize].parent, self.nodes[id as usize].first);
        self.children.remove(&key);
        if let Some(parent) = self.nodes.get_mut(key.0 as usize) {
            parent.children -= 1;
            parent.children_mixed ^= id;
        }
        self.vacate(id);
    }

    fn replace_child(&mut self, parent: u32, old: u32, new: u32) {
        if let Some(parent) = self.nodes.get_mut(parent as usize) {
            parent.children_mixed ^= old ^ new;
        }
    }

    fn place(&mut self, node: Node) -> u32 {
        match self.free.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 requests run")
            }
        }
    }

    fn vacate(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        (node.hashes, node.users) = (Arc::default(), Vec::new());
        self.free.push(id);
    }
}

#[cfg(test)]
mod tests;
