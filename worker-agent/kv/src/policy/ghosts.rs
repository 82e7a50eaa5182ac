//! Names of blocks that are gone, remembered for a while.

use stator_protos::name::BlockName;

/// Names that share a bucket.
const BUCKET: usize = 16;

/// A bounded set of names, two bytes each. A new name takes the place of the oldest of those that happen to
/// share its bucket, so that blocks that follow one another are forgotten at about the same time. One of
/// 4,000 names is taken for another.
#[derive(Debug)]
pub struct Ghosts {
    /// Marks of names, the latest first; zero is an empty place.
    buckets: Vec<[u16; BUCKET]>,
}

impl Ghosts {
    /// A set with room for about `names` names.
    pub fn new(names: usize) -> Self {
        Self { buckets: vec![[0; BUCKET]; names.div_ceil(BUCKET).max(1).next_power_of_two()] }
    }

    /// Remembers a name; whether it was remembered already.
    pub fn replace(&mut self, name: BlockName) -> bool {
        let (bucket, mark) = self.place(name);
        let known = bucket.iter().position(|other| *other == mark);
        bucket[..=known.unwrap_or(BUCKET - 1)].rotate_right(1);
        bucket[0] = mark;
        known.is_some()
    }

    /// Forgets a name; whether it was remembered.
    pub fn take(&mut self, name: BlockName) -> bool {
        let (bucket, mark) = self.place(name);
        let Some(known) = bucket.iter().position(|other| *other == mark) else { return false };
        bucket[known..].rotate_left(1);
        bucket[BUCKET - 1] = 0;
        true
    }

    fn place(&mut self, name: BlockName) -> (&mut [u16; BUCKET], u16) {
        let hash = hash_of(name);
        let bucket = hash as usize & (self.buckets.len() - 1);
        (&mut self.buckets[bucket], ((hash >> 48) as u16).max(1))
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
    fn the_latest_names_are_remembered() {
        let mut ghosts = Ghosts::new(1024);
        (0..10_000).for_each(|name| {
            ghosts.replace(BlockName(name));
        });
        let latest = (9_700..10_000).filter(|name| ghosts.take(BlockName(*name))).count();
        assert_eq!(latest, 300);
        assert!((0..9_000).filter(|name| ghosts.take(BlockName(*name))).count() < 700);
    }
}
