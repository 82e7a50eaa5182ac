//! Names of blocks that are gone, remembered for a while.

use stator_protos::name::BlockName;

/// A bounded set of names. A new name may take the place of an older one: the set forgets at
/// random, the more so the more it is given.
#[derive(Debug)]
pub struct Ghosts {
    marks: Vec<u64>,
}

impl Ghosts {
    /// A set with room for about `names` names.
    pub fn new(names: usize) -> Self {
        Self { marks: vec![0; names.max(1).next_power_of_two()] }
    }

    /// Remembers a name; whether it was remembered already.
    pub fn replace(&mut self, name: BlockName) -> bool {
        let (at, mark) = self.place(name);
        std::mem::replace(&mut self.marks[at], mark) == mark
    }

    /// Forgets a name; whether it was remembered.
    pub fn take(&mut self, name: BlockName) -> bool {
        let (at, mark) = self.place(name);
        let was_there = self.marks[at] == mark;
        if was_there {
            self.marks[at] = 0;
        }
        was_there
    }

    fn place(&self, name: BlockName) -> (usize, u64) {
        let hash = hash_of(name);
        // Zero stands for an empty place.
        (hash as usize & (self.marks.len() - 1), (hash.rotate_left(32) ^ name.0 as u64).max(1))
    }
}

/// A hash of a name, all bits of which are of use.
///
/// Source: the finalizer of SplitMix64.
pub(super) fn hash_of(name: BlockName) -> u64 {
    let mut hash = name.0 as u64 ^ (name.0 >> 64) as u64;
    hash = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_remembered_once() {
        let mut ghosts = Ghosts::new(64);
        let name = BlockName(7);
        assert!(!ghosts.take(name));
        assert!(!ghosts.replace(name));
        assert!(ghosts.replace(name));
        assert!(ghosts.take(name));
        assert!(!ghosts.take(name));
    }

    #[test]
    fn most_of_the_latest_names_are_remembered() {
        let mut ghosts = Ghosts::new(1024);
        (0..10_000).for_each(|name| {
            ghosts.replace(BlockName(name));
        });
        let latest = (9_700..10_000).filter(|name| ghosts.take(BlockName(*name))).count();
        assert!(latest > 240, "{latest} of 300");
        assert!((0..9_000).filter(|name| ghosts.take(BlockName(*name))).count() < 700);
    }
}
