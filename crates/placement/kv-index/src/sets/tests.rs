use super::*;
use proptest::{collection::btree_set, collection::vec, prelude::*};
use std::collections::{BTreeMap, BTreeSet};

fn elements(sets: &Sets, set: SetRef) -> Option<Vec<u32>> {
    let mut out = Vec::new();
    sets.copy(set, &mut out).then_some(out)
}

/// Frees the sets that `is_named` denies.
fn collect(sets: &Sets, is_named: impl Fn(u32) -> bool) {
    let mut collection = Collection::begin(sets);
    (0..1000).filter(|&number| is_named(number)).for_each(|number| collection.name(number));
    collection.finish(sets);
}

#[test]
fn equal_sets_have_one_name_until_freed() {
    let sets = Sets::new(1 << 20);
    let one = sets.intern(&[1, 2]).expect("there is room");
    assert_eq!(sets.intern(&[1, 2]), Some(one));
    assert_ne!(sets.intern(&[1, 3]), Some(one));
    assert_eq!((elements(&sets, one), sets.size().0), (Some(vec![1, 2]), 2));
    collect(&sets, |_| false);
    assert_eq!((elements(&sets, one), sets.size().0), (None, 0));
    let again = sets.intern(&[1, 2]).expect("there is room");
    assert_ne!(again, one, "an old name never means a new set");
    assert_eq!(elements(&sets, one), None);
    assert_eq!(elements(&sets, SetRef::EMPTY), Some(vec![]));
}

#[test]
fn memory_has_a_bound_and_is_used_anew() {
    let sets = Sets::new(40_000);
    let mut made = 0;
    while sets.intern(&[made, made + 1, made + 2]).is_some() {
        made += 1;
        assert!(made < 40_000, "the bound never came");
    }
    assert!(sets.wants_collection() && sets.size().1 < 80_000);
    collect(&sets, |_| false);
    for again in 0..made {
        assert!(sets.intern(&[7, again + 8]).is_some(), "{again} of {made}");
    }
}

proptest! {
    /// Whatever is stored and freed, names mean what they were given for.
    #[test]
    fn agrees_with_a_map(
        rounds in vec((vec(btree_set(0u32..40, 1..9), 1..20), any::<u32>()), 1..12),
    ) {
        let sets = Sets::new(1 << 20);
        let mut model: BTreeMap<BTreeSet<u32>, SetRef> = BTreeMap::new();
        for (stored, keep) in rounds {
            for set in stored {
                let sorted: Vec<u32> = set.iter().copied().collect();
                let name = sets.intern(&sorted).expect("there is room");
                prop_assert_eq!(*model.entry(set).or_insert(name), name);
            }
            for (set, &name) in &model {
                prop_assert_eq!(elements(&sets, name), Some(set.iter().copied().collect()));
            }
            let is_used = |number: u32| keep >> (number % 32) & 1 == 1;
            collect(&sets, is_used);
            model.retain(|_, name| is_used(name.number()));
            prop_assert_eq!(sets.size().0, model.len());
        }
    }
}
