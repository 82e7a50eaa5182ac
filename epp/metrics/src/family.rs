//! Metrics of one name that differ by their labels.

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// One metric per set of `N` label values, made when first asked for.
///
/// One lock, read in nearly all cases: at tens of thousands of requests a second it is taken for
/// far below a percent of the time. Values come from clients, hence the seeded hash.
#[derive(Debug)]
pub(crate) struct Family<const N: usize, M> {
    children: RwLock<Children<N, M>>,
    hasher: RandomState,
    max: usize,
}

/// A metric and its label values.
#[derive(Debug)]
pub(crate) struct Child<const N: usize, M> {
    pub labels: [Box<str>; N],
    pub metric: M,
}

#[derive(Debug)]
struct Children<const N: usize, M> {
    /// By the hash of their labels, which two of them can share.
    by_hash: FxHashMap<u64, Vec<Arc<Child<N, M>>>>,
    len: usize,
}

impl<const N: usize, M> Children<N, M> {
    fn get(&self, hash: u64, labels: &[&str; N]) -> Option<&Arc<Child<N, M>>> {
        let equal = |child: &&Arc<Child<N, M>>| child.has(labels);
        self.by_hash.get(&hash)?.iter().find(equal)
    }
}

impl<const N: usize, M> Child<N, M> {
    fn has(&self, labels: &[&str; N]) -> bool {
        self.labels.iter().zip(labels).all(|(known, label)| **known == **label)
    }
}

impl<const N: usize, M> Family<N, M> {
    /// No metrics yet. After `max` of them, new label values fold.
    pub(crate) fn new(max: usize) -> Self {
        let children = Children { by_hash: FxHashMap::default(), len: 0 };
        Self { children: RwLock::new(children), hasher: RandomState::new(), max }
    }

    /// The metric with these labels, if there is one.
    pub(crate) fn get(&self, labels: &[&str; N]) -> Option<Arc<Child<N, M>>> {
        let hash = self.hasher.hash_one(labels);
        self.children.read().get(hash, labels).cloned()
    }

    /// The metric with these labels; `None` if it would be one too many.
    pub(crate) fn get_or_make(
        &self,
        labels: &[&str; N],
        make: impl FnOnce() -> M,
    ) -> Option<Arc<Child<N, M>>> {
        self.get(labels).or_else(|| self.insert(labels, self.max, make))
    }

    /// The metric with these labels, however many there are: for labels whose values are few,
    /// whoever sends requests.
    pub(crate) fn always(&self, labels: &[&str; N], make: impl FnOnce() -> M) -> Arc<Child<N, M>> {
        let found = self.get(labels).or_else(|| self.insert(labels, usize::MAX, make));
        found.expect("there is room for all")
    }

    /// All metrics, in order of their labels.
    pub(crate) fn children(&self) -> Vec<Arc<Child<N, M>>> {
        let mut all: Vec<_> = self.children.read().by_hash.values().flatten().cloned().collect();
        all.sort_unstable_by(|one, other| one.labels.cmp(&other.labels));
        all
    }

    fn insert(
        &self,
        labels: &[&str; N],
        max: usize,
        make: impl FnOnce() -> M,
    ) -> Option<Arc<Child<N, M>>> {
        let hash = self.hasher.hash_one(labels);
        let mut children = self.children.write();
        // Somebody else may have made it between the locks.
        if let Some(child) = children.get(hash, labels) {
            return Some(child.clone());
        }
        if children.len >= max {
            return None;
        }
        let child = Arc::new(Child { labels: labels.map(Box::from), metric: make() });
        children.len += 1;
        children.by_hash.entry(hash).or_default().push(child.clone());
        Some(child)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// A family is a map that takes no more than so many keys.
        #[test]
        fn agrees_with_a_bounded_map(
            asked in vec(("[ab]{0,2}", "[ab]{0,2}"), 0..60),
            max in 0_usize..8,
        ) {
            let family = Family::<2, usize>::new(max);
            let mut model = BTreeMap::<(String, String), usize>::new();
            for (at, (one, two)) in asked.into_iter().enumerate() {
                let child = family.get_or_make(&[&one, &two], || at);
                if model.len() < max {
                    model.entry((one.clone(), two.clone())).or_insert(at);
                }
                let expected = model.get(&(one, two)).copied();
                prop_assert_eq!(child.map(|child| child.metric), expected);
            }
            let children = family.children();
            let all = children.iter().map(|child| {
                ((child.labels[0].to_string(), child.labels[1].to_string()), child.metric)
            });
            prop_assert!(all.eq(model));
        }
    }

    #[test]
    fn a_full_family_still_takes_what_must_be_there() {
        let family = Family::<1, u8>::new(1);
        assert!(family.get_or_make(&["a"], || 1).is_some());
        assert!(family.get_or_make(&["b"], || 2).is_none());
        assert_eq!(family.always(&["b"], || 3).metric, 3);
        assert_eq!(family.children().len(), 2);
    }
}
