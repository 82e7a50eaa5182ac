//! Numbers of pools here, and their mapping from peers' numbers.

use crate::PoolId;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Pools that are told apart, here and at peers together; further ones are not shared.
const POOLS_MAX: usize = 2048;

/// Longest name of a pool that is shared, in bytes: all together are well below a message.
const NAME_BYTES_MAX: usize = 512;

/// The names of all pools that are or were shared, by their numbers here. Peers' pools have numbers
/// too, so that news of a pool is kept until the pool comes here.
#[derive(Default)]
pub(crate) struct PoolNames {
    ids: FxHashMap<Arc<str>, PoolId>,
    names: Vec<Arc<str>>,
}

impl PoolNames {
    /// The number of a pool, now and later. `None`: it has no room.
    pub(crate) fn id(&mut self, name: &str) -> Option<PoolId> {
        if let Some(id) = self.ids.get(name) {
            return Some(*id);
        }
        if self.names.len() == POOLS_MAX || name.len() > NAME_BYTES_MAX {
            return None;
        }
        let (id, name) = (PoolId(self.names.len() as u32), Arc::<str>::from(name));
        self.names.push(name.clone());
        self.ids.insert(name, id);
        Some(id)
    }

    /// Number of names.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// All but the first so many, in the order of their numbers.
    pub(crate) fn after(&self, first: usize) -> Vec<String> {
        self.names.iter().skip(first).map(|name| name.to_string()).collect()
    }
}

/// Ours for each pool of a peer, by the position of its name in what the peer said.
#[derive(Default)]
pub(crate) struct PoolMap(Vec<Option<PoolId>>);

impl PoolMap {
    /// The peer has these further pools.
    pub(crate) fn extend(&mut self, theirs: &[String], ours: &mut PoolNames) {
        let room = POOLS_MAX - self.0.len();
        self.0.extend(theirs.iter().take(room).map(|name| ours.id(name)));
    }

    /// Ours for the peer's pool at a position, if it named one there.
    pub(crate) fn get(&self, position: u32) -> Option<PoolId> {
        self.0.get(position as usize).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn pools_are_matched_by_name_whoever_has_them_first() {
        let (mut names, mut map) = (PoolNames::default(), PoolMap::default());
        assert_eq!((names.id("a"), names.id("b")), (Some(PoolId(0)), Some(PoolId(1))));
        map.extend(&owned(&["b", "x"]), &mut names);
        map.extend(&owned(&["a"]), &mut names);
        let known: Vec<_> = (0..4).map(|position| map.get(position)).collect();
        assert_eq!(known, [Some(PoolId(1)), Some(PoolId(2)), Some(PoolId(0)), None]);
        assert_eq!(names.id("x"), Some(PoolId(2)), "it comes here too");
        assert_eq!((names.len(), names.after(1)), (3, owned(&["b", "x"])));
    }

    #[test]
    fn what_has_no_room_is_not_shared() {
        let (mut names, mut map) = (PoolNames::default(), PoolMap::default());
        assert_eq!(names.id(&"x".repeat(NAME_BYTES_MAX + 1)), None);
        let many: Vec<_> = (0..POOLS_MAX + 2).map(|number| number.to_string()).collect();
        map.extend(&many, &mut names);
        map.extend(&many[..1], &mut names);
        assert_eq!((map.get(POOLS_MAX as u32), names.id("one more")), (None, None));
        assert_eq!(names.id("7"), Some(PoolId(7)), "who is known stays");
    }
}
