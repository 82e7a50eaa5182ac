//! Which worker holds which block, and how many copies of it.

use rustc_hash::FxHashMap;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;

/// A worker's copies of one block on one medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) slot: u32,
    pub(crate) medium: Medium,
    pub(crate) copies: u32,
}

/// Most blocks have one holder, which then needs no allocation of its own.
enum Holders {
    One(Holder),
    /// In order of slot and medium, so that the nearest copy of a worker comes first.
    Many(Vec<Holder>),
}

impl Holders {
    fn as_slice(&self) -> &[Holder] {
        match self {
            Self::One(holder) => std::slice::from_ref(holder),
            Self::Many(holders) => holders,
        }
    }

    fn find(&self, slot: u32, medium: Medium) -> Result<usize, usize> {
        self.as_slice().binary_search_by_key(&(slot, medium), |h| (h.slot, h.medium))
    }

    fn at_mut(&mut self, position: usize) -> &mut Holder {
        match self {
            Self::One(holder) => holder,
            Self::Many(holders) => &mut holders[position],
        }
    }

    fn insert(&mut self, position: usize, holder: Holder) {
        match self {
            Self::One(first) => {
                let mut holders = vec![*first];
                holders.insert(position, holder);
                *self = Self::Many(holders);
            }
            Self::Many(holders) => holders.insert(position, holder),
        }
    }
}

struct Entry {
    /// Number of the block among all that were ever added: older ones have smaller numbers.
    birth: u64,
    holders: Holders,
}

/// What adding a copy changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// The worker had the block on this medium already and now has one more copy.
    Copy,
    /// Another worker, or another medium, had the block.
    Holder,
    /// Nobody had the block; its birth number.
    Block(u64),
}

/// A multiset of (block, worker, medium).
#[derive(Default)]
pub(crate) struct BlockTable {
    entries: FxHashMap<SequenceHash, Entry>,
    births: u64,
}

impl BlockTable {
    /// Distinct blocks.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Who holds a block, in order of slot and medium; nobody if it is unknown.
    pub(crate) fn holders(&self, hash: SequenceHash) -> &[Holder] {
        self.entries.get(&hash).map_or(&[], |entry| entry.holders.as_slice())
    }

    pub(crate) fn birth(&self, hash: SequenceHash) -> Option<u64> {
        self.entries.get(&hash).map(|entry| entry.birth)
    }

    pub(crate) fn add(&mut self, hash: SequenceHash, slot: u32, medium: Medium) -> Added {
        let holder = Holder { slot, medium, copies: 1 };
        let mut new = false;
        let births = &mut self.births;
        let entry = self.entries.entry(hash).or_insert_with(|| {
            new = true;
            *births += 1;
            Entry { birth: *births, holders: Holders::One(holder) }
        });
        if new {
            return Added::Block(entry.birth);
        }
        match entry.holders.find(slot, medium) {
            Ok(position) => {
                let held = entry.holders.at_mut(position);
                held.copies = held.copies.saturating_add(1);
                Added::Copy
            }
            Err(position) => {
                entry.holders.insert(position, holder);
                Added::Holder
            }
        }
    }

    /// Removes one copy; true if it was the worker's last on this medium.
    pub(crate) fn remove(&mut self, hash: SequenceHash, slot: u32, medium: Medium) -> bool {
        let Some(entry) = self.entries.get_mut(&hash) else { return false };
        let Ok(position) = entry.holders.find(slot, medium) else { return false };
        let held = entry.holders.at_mut(position);
        held.copies -= 1;
        if held.copies > 0 {
            return false;
        }
        self.retain(hash, |holder| (holder.slot, holder.medium) != (slot, medium));
        true
    }

    /// Removes all that a worker holds of a block; on how many media that was.
    pub(crate) fn remove_worker(&mut self, hash: SequenceHash, slot: u32) -> usize {
        let held = self.holders(hash).iter().filter(|holder| holder.slot == slot).count();
        self.retain(hash, |holder| holder.slot != slot);
        held
    }

    /// Removes a block; calls `each` with everyone who held it.
    pub(crate) fn remove_block(&mut self, hash: SequenceHash, each: impl FnMut(&Holder)) {
        if let Some(entry) = self.entries.remove(&hash) {
            entry.holders.as_slice().iter().for_each(each);
        }
    }

    fn retain(&mut self, hash: SequenceHash, keep: impl Fn(&Holder) -> bool) {
        let Some(entry) = self.entries.get_mut(&hash) else { return };
        let left = match &mut entry.holders {
            Holders::One(holder) => usize::from(keep(holder)),
            Holders::Many(holders) => {
                holders.retain(keep);
                holders.len()
            }
        };
        if left == 0 {
            self.entries.remove(&hash);
        } else if let (1, Holders::Many(holders)) = (left, &entry.holders) {
            entry.holders = Holders::One(holders[0]);
        }
    }
}
