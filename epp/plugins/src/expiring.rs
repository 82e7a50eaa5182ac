//! A bounded map that forgets what was not used for a while.

use crate::lru::LruKeys;
use rustc_hash::FxHashMap;
use stator_epp_scheduler::Time;
use std::hash::Hash;
use std::time::Duration;

/// Values that are gone some time after they were last put there, or when there is no room.
pub(crate) struct Expiring<K, V> {
    values: FxHashMap<K, (V, Time)>,
    /// Keys in the order of their last use, so that the first expire first.
    order: LruKeys<K>,
    ttl: Duration,
}

impl<K: Copy + Eq + Hash, V> Expiring<K, V> {
    /// An empty map of at most `capacity` values.
    pub(crate) fn new(capacity: usize, ttl: Duration) -> Self {
        Self { values: FxHashMap::default(), order: LruKeys::new(capacity), ttl }
    }

    /// A value that is not too old.
    pub(crate) fn get(&self, key: &K, now: Time) -> Option<&V> {
        let (value, used) = self.values.get(key)?;
        (now <= used.after(self.ttl)).then_some(value)
    }

    /// A value that is not too old, to be changed. Its age stays what it was.
    pub(crate) fn get_mut(&mut self, key: &K, now: Time) -> Option<&mut V> {
        let (value, used) = self.values.get_mut(key)?;
        (now <= used.after(self.ttl)).then_some(value)
    }

    /// Puts a value there, and drops what is too old.
    pub(crate) fn insert(&mut self, key: K, value: V, now: Time) {
        self.expire(now);
        if let Some(evicted) = self.order.touch(key) {
            self.values.remove(&evicted);
        }
        self.values.insert(key, (value, now));
    }

    /// At most `most` of the values, in no order that means anything, from position `from` on;
    /// `None` at the end.
    pub(crate) fn part(&self, from: usize, most: usize) -> Option<impl Iterator<Item = (K, &V)>> {
        let keys = self.order.part(from, most)?;
        Some(keys.filter_map(|key| self.values.get(&key).map(|(value, _)| (key, value))))
    }

    /// Takes a value out, unless it is too old.
    pub(crate) fn remove(&mut self, key: &K, now: Time) -> Option<V> {
        self.order.remove(key);
        let (value, used) = self.values.remove(key)?;
        (now <= used.after(self.ttl)).then_some(value)
    }

    fn expire(&mut self, now: Time) {
        while let Some(oldest) = self.order.oldest() {
            let used = self.values.get(&oldest).map(|(_, used)| *used);
            if used.is_some_and(|used| now <= used.after(self.ttl)) {
                return;
            }
            self.order.remove(&oldest);
            self.values.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_expire_after_their_last_use() {
        let mut map = Expiring::new(10, Duration::from_secs(1));
        let at = Time::from_millis;
        map.insert("a", 1, at(0));
        map.insert("b", 2, at(500));
        map.insert("a", 3, at(900));
        assert_eq!((map.get(&"a", at(1900)), map.get(&"a", at(1901))), (Some(&3), None));
        map.insert("c", 4, at(1600));
        assert_eq!((map.values.len(), map.remove(&"b", at(1600))), (2, None));
        assert_eq!(map.remove(&"a", at(1600)), Some(3));
    }

    #[test]
    fn the_oldest_goes_where_there_is_no_room() {
        let mut map = Expiring::new(2, Duration::from_secs(1));
        for key in 0..3 {
            map.insert(key, key, Time::default());
        }
        assert_eq!(map.get(&0, Time::default()), None);
        assert_eq!(map.get_mut(&2, Time::default()), Some(&mut 2));
    }
}
