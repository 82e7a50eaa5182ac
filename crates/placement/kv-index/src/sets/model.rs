//! Models of sets while other threads read and write.

use super::*;
use crate::elements::{Code, Op};
use crate::transitions::Transitions;
use loom::sync::Arc;
use stator_protos::kv_event::Medium;

/// A lane with one cell, and the set that it names.
type Lane = Mutex<(Transitions, SetRef)>;

/// A set is freed, and its number and perhaps its words go to `other`, while a reader copies
/// it: that gets the set that it named or nothing.
fn check(other: &'static [u32]) {
    loom::model(move || {
        let sets = Arc::new(Sets::new(1 << 20));
        let name = sets.intern(&[1, 2]).expect("there is room");
        let writer = {
            let sets = sets.clone();
            loom::thread::spawn(move || {
                Collection::begin(&sets).finish(&sets);
                let next = sets.intern(other).expect("there is room");
                assert_eq!(next.number(), name.number());
            })
        };
        let mut out = Vec::new();
        if sets.copy(name, &mut out) {
            assert_eq!(out, [1, 2]);
        }
        writer.join().expect("the writer does not panic");
        assert!(!sets.copy(name, &mut out), "the name means nothing any more");
    });
}

#[test]
fn a_reader_never_copies_a_set_that_took_the_words() {
    check(&[3, 4]);
}

#[test]
fn a_reader_never_copies_a_set_that_took_the_number() {
    check(&[3, 4, 5]);
}

/// Changes who holds the block in the lane's cell.
fn change(sets: &Sets, lane: &Lane, slot: u32, code: Code) {
    let (steps, name) = &mut *lane.lock();
    *name = steps.step(sets, *name, slot, code).expect("there is room").set;
}

/// A cell names one set, then another, then the first again, while sets are collected: what it
/// names is there in the end.
#[test]
fn a_set_that_is_named_again_is_not_collected() {
    loom::model(|| {
        let sets = Arc::new(Sets::new(1 << 20));
        let lane: Arc<Lane> = Arc::new(Mutex::new((Transitions::new(), SetRef::EMPTY)));
        let [store, remove] = [Op::Store(Medium::Device), Op::Remove(Medium::Device)];
        change(&sets, &lane, 1, store.code());
        let writer = {
            let (sets, lane) = (sets.clone(), lane.clone());
            loom::thread::spawn(move || {
                change(&sets, &lane, 2, store.code());
                change(&sets, &lane, 2, remove.code());
                change(&sets, &lane, 2, store.code());
            })
        };
        let mut collection = Collection::begin(&sets);
        {
            let (steps, name) = &mut *lane.lock();
            steps.clear();
            collection.name(name.number());
        }
        collection.finish(&sets);
        writer.join().expect("the writer does not panic");
        let name = lane.lock().1;
        let mut out = Vec::new();
        assert!(sets.copy(name, &mut out) && out.len() == 2);
    });
}
