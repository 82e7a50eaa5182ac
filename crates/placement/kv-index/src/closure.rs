//! Makes any worker's events closed: no gaps in sequences, one medium for each block.

use rustc_hash::FxHashMap;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};

/// Stands for the start of all sequences, which everyone holds.
const ROOT: u32 = 0;
/// In the place of a node: there is none, or it is not known.
const NONE: u32 = u32::MAX;

/// Blocks that one worker holds, as its engine reports them, and the changes to report to the
/// index.
///
/// Engines report blocks in any order, evict from the middle of sequences, and have copies on
/// several media; a block that is stored twice is there until it is removed twice. Here a block
/// counts once all before it are held too, and on the farthest of the nearest media up to it. The
/// event that changes this for later blocks reports them too.
///
/// Blocks beyond the bound, and blocks after them, are not reported. If one block is reported with
/// two different parents, which chained hashes rule out, the first counts.
pub struct Closure {
    nodes: Vec<Node>,
    free: Vec<u32>,
    by_hash: FxHashMap<u64, u32>,
    max_blocks: usize,
    block_size: u32,
    changes: Changes,
    stack: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Node {
    hash: u64,
    parent: u32,
    first_child: u32,
    /// Neighbours among the children of one parent.
    next: u32,
    before: u32,
    copies: [u16; Medium::ALL.len()],
    /// Medium that the index was told, if any.
    told: Option<Medium>,
}

/// Changes to report for one event.
#[derive(Default)]
struct Changes {
    /// Block, the one before it, where it is now; blocks before those after them.
    stored: Vec<(u64, Option<u64>, Medium)>,
    removed: Vec<(u64, Medium)>,
}

impl Closure {
    /// Of a worker that holds nothing; of at most `max_blocks` blocks, those included that are
    /// known only as the parents of others.
    pub fn new(max_blocks: usize) -> Self {
        let nodes = vec![Node { told: Some(Medium::Device), ..Node::new(0) }];
        let max_blocks = max_blocks.min(NONE as usize - 1);
        let (free, by_hash, changes, stack) = Default::default();
        Self { nodes, free, by_hash, max_blocks, block_size: 0, changes, stack }
    }

    /// Follows an event of the engine, and adds to `out` what the index is to be told, if
    /// anything: first what is stored (parents first, no tokens), then what is removed.
    pub fn apply(&mut self, event: &KvEvent, out: &mut Vec<KvEvent>) {
        match event {
            KvEvent::Stored(stored) => self.store(stored),
            KvEvent::Removed(removed) => self.discard(removed),
            KvEvent::Cleared => {
                self.clear();
                out.push(KvEvent::Cleared);
            }
        }
        self.changes.tell(self.block_size, out);
    }

    /// Blocks that the index was told of, each before those after it.
    pub fn blocks(&self) -> impl Iterator<Item = (SequenceHash, Medium)> {
        let mut stack = vec![ROOT];
        std::iter::from_fn(move || {
            let number = stack.pop()?;
            let told = |&child: &u32| self.nodes[child as usize].told.is_some();
            stack.extend(self.children(number).filter(told));
            let node = &self.nodes[number as usize];
            Some((SequenceHash(node.hash), node.told?))
        })
        .skip(1)
    }

    /// The medium that holds a block, if the index was told of the block.
    pub fn medium(&self, hash: SequenceHash) -> Option<Medium> {
        self.nodes[*self.by_hash.get(&hash.0)? as usize].told
    }

    /// Forgets all blocks.
    pub fn clear(&mut self) {
        self.nodes.truncate(1);
        self.nodes[ROOT as usize].first_child = NONE;
        self.free.clear();
        self.by_hash.clear();
    }

    fn store(&mut self, stored: &Stored) {
        self.block_size = stored.block_size;
        let parent = stored.parent.map_or(Some(ROOT), |hash| self.node_or_new(hash));
        let Some(mut parent) = parent else { return };
        for &hash in &stored.hashes {
            let Some(number) = self.node_or_new(hash) else { break };
            if self.nodes[number as usize].parent == NONE && number != parent {
                self.link(number, parent);
            }
            let copies = &mut self.nodes[number as usize].copies[stored.medium as usize];
            *copies = copies.saturating_add(1);
            self.settle(number);
            parent = number;
        }
        // There may have been no room for anything after it.
        self.prune(parent);
    }

    fn discard(&mut self, removed: &Removed) {
        for hash in &removed.hashes {
            let Some(&number) = self.by_hash.get(hash) else { continue };
            let copies = &mut self.nodes[number as usize].copies[removed.medium as usize];
            *copies = copies.saturating_sub(1);
            self.settle(number);
            self.prune(number);
        }
    }

    /// Finds out anew where a block and those after it are, as far as that changes.
    fn settle(&mut self, number: u32) {
        self.stack.push(number);
        while let Some(number) = self.stack.pop() {
            let node = self.nodes[number as usize];
            let parent = self.nodes.get(node.parent as usize);
            let now = parent.and_then(|parent| Some(node.nearest()?.max(parent.told?)));
            if now == node.told {
                continue;
            }
            if let Some(medium) = now {
                let before = parent.filter(|_| node.parent != ROOT).map(|parent| parent.hash);
                self.changes.stored.push((node.hash, before, medium));
            }
            if let Some(medium) = node.told {
                self.changes.removed.push((node.hash, medium));
            }
            self.nodes[number as usize].told = now;
            let mut child = node.first_child;
            while child != NONE {
                self.stack.push(child);
                child = self.nodes[child as usize].next;
            }
        }
    }

    /// Forgets a block of which there is no copy and nothing after, then those before it alike.
    fn prune(&mut self, number: u32) {
        let mut number = number;
        while number != ROOT && number != NONE {
            let node = self.nodes[number as usize];
            if node.first_child != NONE || node.nearest().is_some() {
                return;
            }
            self.unlink(number);
            self.by_hash.remove(&node.hash);
            self.free.push(number);
            number = node.parent;
        }
    }

    /// The node of a block; `None` if it is new and there is no room for it.
    fn node_or_new(&mut self, hash: u64) -> Option<u32> {
        if let Some(&number) = self.by_hash.get(&hash) {
            return Some(number);
        }
        if self.by_hash.len() >= self.max_blocks {
            return None;
        }
        let number = self.free.pop().unwrap_or(self.nodes.len() as u32);
        match self.nodes.get_mut(number as usize) {
            Some(node) => *node = Node::new(hash),
            None => self.nodes.push(Node::new(hash)),
        }
        self.by_hash.insert(hash, number);
        Some(number)
    }

    fn children(&self, number: u32) -> impl Iterator<Item = u32> {
        let some = |number: u32| (number != NONE).then_some(number);
        let first = some(self.nodes[number as usize].first_child);
        std::iter::successors(first, move |&child| some(self.nodes[child as usize].next))
    }

    fn link(&mut self, number: u32, parent: u32) {
        let next = std::mem::replace(&mut self.nodes[parent as usize].first_child, number);
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.before = number;
        }
        let node = &mut self.nodes[number as usize];
        (node.parent, node.next, node.before) = (parent, next, NONE);
    }

    fn unlink(&mut self, number: u32) {
        let Node { parent, next, before, .. } = self.nodes[number as usize];
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.before = before;
        }
        if let Some(before) = self.nodes.get_mut(before as usize) {
            before.next = next;
        } else if let Some(parent) = self.nodes.get_mut(parent as usize) {
            parent.first_child = next;
        }
    }
}

impl Node {
    fn new(hash: u64) -> Self {
        let (parent, first_child, next, before) = (NONE, NONE, NONE, NONE);
        Self { hash, parent, first_child, next, before, copies: [0; 4], told: None }
    }

    fn nearest(&self) -> Option<Medium> {
        Medium::ALL.into_iter().find(|&medium| self.copies[medium as usize] > 0)
    }
}

impl Changes {
    /// Reports stored blocks in runs of one sequence and medium, then removed blocks by medium.
    ///
    /// During one event of the engine a block only comes nearer or only goes farther, so that its
    /// last place is right although all stored blocks are reported first.
    fn tell(&mut self, block_size: u32, out: &mut Vec<KvEvent>) {
        let follows = |one: &(u64, _, Medium), next: &(u64, Option<u64>, Medium)| {
            next.1 == Some(one.0) && next.2 == one.2
        };
        for run in self.stored.chunk_by(follows) {
            let (_, parent, medium) = run[0];
            let hashes = run.iter().map(|stored| stored.0).collect();
            let (tokens, lora_name) = Default::default();
            let stored = Stored { hashes, parent, tokens, block_size, medium, lora_name };
            out.push(KvEvent::Stored(stored));
        }
        for medium in Medium::ALL {
            let on = self.removed.iter().filter(|removed| removed.1 == medium);
            let hashes: Vec<u64> = on.map(|removed| removed.0).collect();
            if !hashes.is_empty() {
                out.push(KvEvent::Removed(Removed { hashes, medium }));
            }
        }
        self.stored.clear();
        self.removed.clear();
    }
}

#[cfg(all(test, not(stator_loom)))]
mod tests;
