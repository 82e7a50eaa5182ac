use super::*;
use crate::testkit::{consecutive, parent, path, removed, stored};
use proptest::{collection::vec, prelude::*, sample::select};
use std::collections::HashMap;

/// What a consumer of events believes that is held.
fn follow(held: &mut HashMap<u64, Medium>, events: &[KvEvent]) {
    for event in events {
        match event {
            KvEvent::Stored(stored) => {
                held.extend(stored.hashes.iter().map(|&hash| (hash, stored.medium)));
            }
            KvEvent::Removed(removed) => {
                for hash in &removed.hashes {
                    if held.get(hash) == Some(&removed.medium) {
                        held.remove(hash);
                    }
                }
            }
            KvEvent::Cleared => held.clear(),
        }
    }
}

#[track_caller]
fn check(events: &[KvEvent], expected: &[(u64, Medium)]) {
    let (mut closure, mut told) = (Closure::new(100), Vec::new());
    events.iter().for_each(|event| closure.apply(event, &mut told));
    let mut held = HashMap::new();
    follow(&mut held, &told);
    let expected: HashMap<_, _> = expected.iter().copied().collect();
    assert_eq!(held, expected, "told {told:?}");
    let blocks: HashMap<_, _> = closure.blocks().map(|(hash, medium)| (hash.0, medium)).collect();
    assert_eq!(blocks, expected);
}

#[test]
fn a_gap_hides_what_is_after_it_until_it_heals() {
    use Medium::Device;
    let all = stored(&[1, 2, 4], None, Device);
    let gap = [all.clone(), removed(&[2], Device)];
    check(&gap, &[(1, Device)]);
    let healed = [&gap[..], &[stored(&[2], Some(1), Device)]].concat();
    check(&healed, &[(1, Device), (2, Device), (4, Device)]);
    check(&[&gap[..], &[removed(&[4, 1], Device)]].concat(), &[]);
}

#[test]
fn a_block_may_come_before_its_parent() {
    use Medium::Device;
    let late = [stored(&[4], Some(2), Device), stored(&[2], Some(1), Device)];
    check(&late, &[]);
    let all = [&late[..], &[stored(&[1], None, Device)]].concat();
    check(&all, &[(1, Device), (2, Device), (4, Device)]);
}

#[test]
fn a_block_is_as_far_as_those_before_it() {
    use Medium::{Device, Disk, Host};
    let both = [stored(&[1, 2], None, Host), stored(&[1, 2, 4], None, Device)];
    check(&both, &[(1, Device), (2, Device), (4, Device)]);
    let offloaded = [&both[..], &[removed(&[1], Device)]].concat();
    check(&offloaded, &[(1, Host), (2, Host), (4, Host)]);
    check(&[stored(&[1], None, Disk), stored(&[2], Some(1), Host)], &[(1, Disk), (2, Disk)]);
}

#[test]
fn copies_count() {
    use Medium::Device;
    let twice = [stored(&[1, 2], None, Device), stored(&[1], None, Device)];
    check(&[&twice[..], &[removed(&[1], Device)]].concat(), &[(1, Device), (2, Device)]);
    check(&[&twice[..], &[removed(&[1, 1], Device)]].concat(), &[]);
    check(&[removed(&[1, 7], Device), stored(&[1], None, Device)], &[(1, Device)]);
}

#[test]
fn a_run_of_blocks_is_told_in_one_event() {
    let (mut closure, mut told) = (Closure::new(100), Vec::new());
    let event = stored(&[1, 2, 4, 8], None, Medium::Host);
    closure.apply(&event, &mut told);
    assert_eq!(told, std::slice::from_ref(&event));
    told.clear();
    closure.apply(&event, &mut told);
    assert_eq!(told, [], "copies change nothing");
    closure.apply(&KvEvent::Cleared, &mut told);
    assert_eq!((told, closure.blocks().count()), (vec![KvEvent::Cleared], 0));
}

#[test]
fn blocks_beyond_the_bound_are_not_told() {
    let (mut closure, mut told) = (Closure::new(3), Vec::new());
    closure.apply(&stored(&[1, 2, 4, 8], None, Medium::Device), &mut told);
    closure.apply(&stored(&[5], Some(2), Medium::Device), &mut told);
    assert_eq!(told, [stored(&[1, 2, 4], None, Medium::Device)]);
    closure.apply(&removed(&[4], Medium::Device), &mut told);
    closure.apply(&stored(&[5], Some(2), Medium::Device), &mut told);
    assert_eq!(closure.blocks().count(), 3);
}

#[test]
fn absurd_parents_are_contained() {
    let (mut closure, mut told) = (Closure::new(100), Vec::new());
    closure.apply(&stored(&[1], Some(1), Medium::Device), &mut told);
    closure.apply(&stored(&[2], Some(3), Medium::Device), &mut told);
    closure.apply(&stored(&[3], Some(2), Medium::Device), &mut told);
    closure.apply(&stored(&[4, 4, 4], Some(3), Medium::Device), &mut told);
    closure.apply(&removed(&[1, 2, 3, 4], Medium::Device), &mut told);
    assert_eq!((told.len(), closure.blocks().count()), (0, 0));
    closure.apply(&stored(&[5, 6], None, Medium::Device), &mut told);
    closure.apply(&stored(&[5], Some(6), Medium::Device), &mut told);
    assert_eq!(closure.blocks().count(), 2, "the first parent counts");
}

/// Copies of each block, as the engine told.
type Copies = HashMap<(u64, Medium), u32>;

fn count(copies: &mut Copies, event: &KvEvent) {
    match event {
        KvEvent::Stored(stored) => {
            for &hash in &stored.hashes {
                *copies.entry((hash, stored.medium)).or_default() += 1;
            }
        }
        KvEvent::Removed(removed) => {
            for &hash in &removed.hashes {
                let copies = copies.entry((hash, removed.medium)).or_default();
                *copies = copies.saturating_sub(1);
            }
        }
        KvEvent::Cleared => copies.clear(),
    }
}

/// Where a block counts as held: looks at it and all before it, one by one.
fn effective(copies: &Copies, hash: u64) -> Option<Medium> {
    let has = |medium: &Medium| copies.get(&(hash, *medium)).is_some_and(|&copies| copies > 0);
    let own = Medium::ALL.into_iter().find(has)?;
    let before = parent(hash).map_or(Some(Medium::Device), |hash| effective(copies, hash))?;
    Some(own.max(before))
}

fn any_event() -> impl Strategy<Value = KvEvent> {
    let medium = || select(&Medium::ALL[..3]);
    let store = (1u64..40, vec(any::<bool>(), 0..4), medium());
    let remove = (vec(1u64..40, 0..5), medium());
    prop_oneof![
        6 => store.prop_map(|(from, turns, medium)| consecutive(&path(from, &turns), medium)),
        4 => remove.prop_map(|(hashes, medium)| removed(&hashes, medium)),
        1 => Just(KvEvent::Cleared),
    ]
}

proptest! {
    /// Whatever the engine tells, in whatever order, what is told onwards is what a look at all
    /// blocks says, and closed at every step.
    #[test]
    fn agrees_with_a_look_at_all_blocks(events in vec(any_event(), 0..60)) {
        let (mut closure, mut held, mut copies) =
            (Closure::new(1000), HashMap::new(), Copies::new());
        for event in &events {
            let mut told = Vec::new();
            closure.apply(event, &mut told);
            follow(&mut held, &told);
            count(&mut copies, event);
            let hashes = copies.keys().map(|&(hash, _)| hash);
            let expected: HashMap<_, _> =
                hashes.filter_map(|hash| Some((hash, effective(&copies, hash)?))).collect();
            prop_assert_eq!(&held, &expected);
            let mut seen = HashMap::new();
            for (hash, medium) in closure.blocks() {
                let before = parent(hash.0).map_or(Some(Medium::Device), |p| seen.get(&p).copied());
                prop_assert!(before.is_some_and(|before| before <= medium), "parents come first");
                prop_assert_eq!(seen.insert(hash.0, medium), None);
            }
            prop_assert_eq!(seen, expected);
        }
        let hashes: Vec<u64> = (1..2000).collect();
        for _ in 0..60 {
            for medium in Medium::ALL {
                closure.apply(&removed(&hashes, medium), &mut Vec::new());
            }
        }
        prop_assert_eq!((closure.by_hash.len(), closure.free.len() + 1), (0, closure.nodes.len()));
    }
}
