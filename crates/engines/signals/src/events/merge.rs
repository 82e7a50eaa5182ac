//! Merges an engine's small blocks into ours.

use rustc_hash::FxHashMap;
use stator_protos::hash::{HashSeed, SequenceHash, block_hash, next_sequence_hash};
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};

/// Tracks the small blocks of one life of one engine, and our blocks that they add up to.
///
/// One of our blocks is present, on a medium, while all of its parts are. A part that leaves takes
/// its continuations along: without it the engine cannot find them, and if it comes back they may
/// be gone.
#[derive(Debug)]
pub(super) struct Merger {
    block_size: u32,
    parts_max: usize,
    parts: FxHashMap<u64, Part>,
}

/// A block of the engine.
#[derive(Debug)]
struct Part {
    /// The part before it, which stays known as long as this one.
    parent: Option<u64>,
    /// The parts right after it.
    children: Vec<u64>,
    tokens: Box<[u32]>,
    seed: HashSeed,
    /// Tokens of our block up to this part's end; the whole block for the part that completes one.
    filled: u32,
    /// Our block, if this part completes one.
    ours: Option<Ours>,
    /// Copies on each medium.
    copies: [u32; Medium::ALL.len()],
    /// Media on which the sink believes our block to be.
    told: [bool; Medium::ALL.len()],
}

/// One of our blocks, with the one before it.
#[derive(Clone, Copy, Debug)]
struct Ours {
    hash: SequenceHash,
    before: Option<SequenceHash>,
}

/// A part as an event describes it.
#[derive(Clone, Copy)]
struct New<'a> {
    theirs: u64,
    parent: Option<u64>,
    tokens: &'a [u32],
    seed: HashSeed,
}

impl Merger {
    /// Makes a merger to blocks of `block_size` tokens that tracks at most `parts_max` parts.
    pub(super) fn new(block_size: u32, parts_max: usize) -> Self {
        Self { block_size, parts_max, parts: FxHashMap::default() }
    }

    /// Whether blocks of this size divide ours.
    pub(super) fn fits(&self, block_size: u32) -> bool {
        block_size > 0 && self.block_size.is_multiple_of(block_size)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
    }

    /// The seed of a known part, for the parts after it.
    pub(super) fn seed(&self, theirs: u64) -> Option<HashSeed> {
        self.parts.get(&theirs).map(|part| part.seed)
    }

    /// Our blocks that are present.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (SequenceHash, Medium)> {
        let told = |part: &Part| {
            let ours = part.ours.filter(|_| part.told != [false; 4]);
            let media = part.told.into_iter().zip(Medium::ALL);
            media
                .filter(|(told, _)| *told)
                .filter_map(move |(_, medium)| Some((ours?.hash, medium)))
        };
        self.parts.values().flat_map(told)
    }

    /// Stores the first `count` blocks of an event whose parent is known. Returns the number
    /// stored.
    pub(super) fn store(
        &mut self,
        stored: &Stored,
        seed: HashSeed,
        count: usize,
        out: &mut Vec<KvEvent>,
    ) -> usize {
        let mut parent = stored.parent;
        let tokens = stored.tokens.chunks_exact(stored.block_size as usize);
        let mut done = 0;
        for (&theirs, tokens) in stored.hashes.iter().zip(tokens).take(count) {
            let full = self.parts.len() >= self.parts_max && !self.parts.contains_key(&theirs);
            if full || !self.learn(New { theirs, parent, tokens, seed }, out) {
                break;
            }
            self.copy(theirs, stored.medium, out);
            parent = Some(theirs);
            done += 1;
        }
        done
    }

    /// Adds a copy of a part; false if the part is not known.
    pub(super) fn copy(&mut self, theirs: u64, medium: Medium, out: &mut Vec<KvEvent>) -> bool {
        let Some(part) = self.parts.get_mut(&theirs) else { return false };
        let copies = &mut part.copies[medium as usize];
        *copies = copies.saturating_add(1);
        if *copies == 1 {
            self.refresh(theirs, medium, out);
        }
        true
    }

    /// Removes a copy. Returns whether another is left on that medium; `None` if there was none.
    pub(super) fn remove(
        &mut self,
        theirs: u64,
        medium: Medium,
        out: &mut Vec<KvEvent>,
    ) -> Option<bool> {
        let part = self.parts.get_mut(&theirs)?;
        let copies = &mut part.copies[medium as usize];
        *copies = copies.checked_sub(1)?;
        let stays = *copies > 0;
        if part.copies == [0; 4] {
            self.forget(theirs, out);
        } else if !stays {
            self.refresh(theirs, medium, out);
        }
        Some(stays)
    }

    /// Makes a part known; false if its parent is unknown, or it does not fit.
    fn learn(&mut self, new: New<'_>, out: &mut Vec<KvEvent>) -> bool {
        let New { theirs, parent, tokens, seed } = new;
        if let Some(known) = self.parts.get(&theirs) {
            if known.parent == parent && *known.tokens == *tokens && known.seed == seed {
                return true;
            }
            // One name for two things: its removal could mean either, so that the later one counts.
            self.forget(theirs, out);
        }
        let before = match parent {
            None => 0,
            Some(parent) => match self.parts.get_mut(&parent) {
                None => return false,
                Some(part) => part.filled % self.block_size,
            },
        };
        let filled = before + tokens.len() as u32;
        if filled > self.block_size {
            return false;
        }
        let ours = (filled == self.block_size).then(|| self.completed(new));
        if let Some(parent) = parent.and_then(|parent| self.parts.get_mut(&parent)) {
            parent.children.push(theirs);
        }
        let (tokens, children) = (tokens.into(), Vec::new());
        let (copies, told) = ([0; 4], [false; 4]);
        let part = Part { parent, children, tokens, seed, filled, ours, copies, told };
        self.parts.insert(theirs, part);
        true
    }

    /// Our block that a part completes.
    fn completed(&self, new: New<'_>) -> Ours {
        let mut pieces = vec![new.tokens];
        let mut before = None;
        let mut at = new.parent;
        while let Some(part) = at.and_then(|at| self.parts.get(&at)) {
            if part.filled == self.block_size {
                before = part.ours.map(|ours| ours.hash);
                break;
            }
            pieces.push(&part.tokens);
            at = part.parent;
        }
        pieces.reverse();
        let hash = next_sequence_hash(before, block_hash(&pieces.concat(), new.seed));
        Ours { hash, before }
    }

    /// Reports the changes to our blocks that a part belongs to.
    fn refresh(&mut self, theirs: u64, medium: Medium, out: &mut Vec<KvEvent>) {
        let mut left = vec![theirs];
        while let Some(theirs) = left.pop() {
            let Some(part) = self.parts.get(&theirs) else { continue };
            let Some(ours) = part.ours else {
                left.extend(&part.children);
                continue;
            };
            let whole = self.is_whole(theirs, medium);
            let Some(part) = self.parts.get_mut(&theirs) else { continue };
            if std::mem::replace(&mut part.told[medium as usize], whole) != whole {
                out.push(event(ours, medium, whole, self.block_size));
            }
        }
    }

    /// Whether all parts of the block that this part completes are present.
    fn is_whole(&self, theirs: u64, medium: Medium) -> bool {
        let mut at = self.parts.get(&theirs);
        while let Some(part) = at {
            if part.copies[medium as usize] == 0 {
                return false;
            }
            let before = part.parent.and_then(|parent| self.parts.get(&parent));
            at = before.filter(|before| before.filled < self.block_size);
        }
        true
    }

    /// Forgets a part and all its continuations.
    fn forget(&mut self, theirs: u64, out: &mut Vec<KvEvent>) {
        let parent = self.parts.get(&theirs).and_then(|part| part.parent);
        if let Some(parent) = parent.and_then(|parent| self.parts.get_mut(&parent)) {
            parent.children.retain(|child| *child != theirs);
        }
        let mut left = vec![theirs];
        while let Some(part) = left.pop().and_then(|theirs| self.parts.remove(&theirs)) {
            left.extend(&part.children);
            let Some(ours) = part.ours else { continue };
            for (_, medium) in part.told.into_iter().zip(Medium::ALL).filter(|(told, _)| *told) {
                out.push(event(ours, medium, false, self.block_size));
            }
        }
    }
}

/// The event for one of our blocks that appeared or disappeared.
fn event(ours: Ours, medium: Medium, there: bool, block_size: u32) -> KvEvent {
    let hashes = vec![ours.hash.0];
    match there {
        false => KvEvent::Removed(Removed { hashes, medium }),
        true => KvEvent::Stored(Stored {
            hashes,
            parent: ours.before.map(|before| before.0),
            tokens: Vec::new(),
            block_size,
            medium,
            lora_name: None,
        }),
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
