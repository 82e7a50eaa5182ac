//! Freeing sets that no cell names, without stopping those who write cells.

use super::Sets;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// One collection: it begins, each lane in turn tells it which sets its cells name, under the
/// lane's own lock, and it finishes.
///
/// Lanes go on before and after their turn. When it comes, a lane forgets its remembered steps
/// ([`crate::transitions`]), so that from there on it has each new name from [`Sets::intern`],
/// which notes the collection that was begun last: a set that was asked for since this one began
/// stays. Any other has been named at the lane's turn, or is named nowhere.
///
/// There can be one at a time.
pub(crate) struct Collection {
    number: u32,
    /// By number of the set, of those that there were when this began.
    named: Vec<bool>,
}

impl Collection {
    pub(crate) fn begin(sets: &Sets) -> Self {
        let mut interner = sets.interner.lock();
        interner.collection = interner.collection.wrapping_add(1);
        Self { number: interner.collection, named: vec![false; interner.known.len()] }
    }

    /// Some cell names the set of this number.
    pub(crate) fn name(&mut self, number: u32) {
        if let Some(named) = self.named.get_mut(number as usize) {
            *named = true;
        }
    }

    /// Frees the sets that nobody named and nobody asked for since the beginning.
    pub(crate) fn finish(self, sets: &Sets) {
        let mut interner = sets.interner.lock();
        sets.collections.fetch_add(1, Release);
        let before = interner.live.sets;
        for (number, _) in self.named.iter().enumerate().filter(|(_, is_named)| !**is_named) {
            let known = interner.known[number];
            if known.len > 0 && known.asked != self.number {
                sets.free(&mut interner, number as u32);
            }
        }
        if interner.live.sets < before {
            interner.refused = 0;
        }
        interner.kept = interner.live;
        sets.wants_collection.store(false, Relaxed);
    }
}

#[cfg(all(test, not(stator_loom)))]
mod tests {
    use super::*;
    use crate::cell::SetRef;
    use crate::elements::{self, Op};
    use crate::transitions::Transitions;
    use proptest::{collection::vec, prelude::*};
    use stator_protos::kv_event::Medium;
    use std::collections::BTreeSet;

    const LANES: usize = 3;
    const CELLS: usize = 4;

    /// A lane's cells, and what each should name.
    struct Lane {
        steps: Transitions,
        cells: [(SetRef, BTreeSet<u32>); CELLS],
    }

    impl Lane {
        fn new() -> Self {
            Self { steps: Transitions::new(), cells: Default::default() }
        }

        fn change(&mut self, sets: &Sets, cell: usize, slot: u32, is_held: bool) {
            let (name, expected) = &mut self.cells[cell];
            let op = [Op::Remove(Medium::Device), Op::Store(Medium::Device)][usize::from(is_held)];
            let step = self.steps.step(sets, *name, slot, op.code()).expect("there is room");
            *name = step.set;
            match is_held {
                true => expected.insert(slot),
                false => expected.remove(&slot),
            };
        }

        /// Does the work of [`crate::lane::Lane::name_sets`].
        fn take_turn(&mut self, collection: &mut Collection) {
            self.steps.clear();
            self.cells.iter().for_each(|(set, _)| collection.name(set.number()));
        }

        fn check(&self, sets: &Sets) {
            for (name, expected) in &self.cells {
                let mut found = Vec::new();
                assert!(sets.copy(*name, &mut found), "a set was freed that a cell names");
                assert!(found.iter().map(|&element| elements::slot(element)).eq(expected.clone()));
            }
        }
    }

    /// A collection, if one has begun, and the lane whose turn it is.
    #[derive(Default)]
    struct Round {
        collection: Option<Collection>,
        turn: usize,
    }

    impl Round {
        /// Begins the collection, gives a lane its turn, or finishes the collection.
        fn go_on(&mut self, sets: &Sets, lanes: &mut [Lane]) {
            match (self.collection.take(), lanes.get_mut(self.turn)) {
                (None, _) => {
                    *self = Self { collection: Some(Collection::begin(sets)), turn: 0 };
                }
                (Some(mut collection), Some(lane)) => {
                    lane.take_turn(&mut collection);
                    *self = Self { collection: Some(collection), turn: self.turn + 1 };
                }
                (Some(collection), None) => collection.finish(sets),
            }
        }
    }

    proptest! {
        /// However lanes and a collection take turns, no set goes that a cell names; and when all
        /// is quiet, all others go.
        #[test]
        fn what_cells_name_stays(
            steps in vec(prop_oneof![
                3 => (0..LANES, 0..CELLS, 0u32..4, any::<bool>()).prop_map(Some),
                1 => Just(None),
            ], 0..300),
        ) {
            let (sets, mut round) = (Sets::new(1 << 20), Round::default());
            let mut lanes: [Lane; LANES] = std::array::from_fn(|_| Lane::new());
            for step in steps {
                match step {
                    Some((lane, cell, slot, is_held)) => {
                        lanes[lane].change(&sets, cell, slot, is_held);
                    }
                    None => round.go_on(&sets, &mut lanes),
                }
                lanes.iter().for_each(|lane| lane.check(&sets));
            }
            // The rest of one collection, and two whole ones.
            let mut finished = 0;
            while finished < 3 {
                round.go_on(&sets, &mut lanes);
                finished += usize::from(round.collection.is_none());
            }
            lanes.iter().for_each(|lane| lane.check(&sets));
            let named = lanes.iter().flat_map(|lane| &lane.cells).map(|(set, _)| set.0);
            let named: BTreeSet<u32> = named.filter(|&set| set != SetRef::EMPTY.0).collect();
            prop_assert_eq!(sets.size().0, named.len());
        }
    }
}
