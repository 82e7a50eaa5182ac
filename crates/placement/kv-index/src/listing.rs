//! Lists what workers hold.

use crate::cell::SetRef;
use crate::elements::{self, HolderState};
use crate::index::Index;
use crate::table;
use crate::tenancy::WorkerLife;
use rustc_hash::FxHashMap;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::{Generation, WorkerRank};
use std::ops::Range;

/// Blocks that a worker reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerHoldings {
    /// The life that reported it.
    pub generation: Generation,
    /// Each block once, in no order.
    pub blocks: Vec<(SequenceHash, Medium)>,
}

impl Index {
    /// Blocks that each of `workers` reported, as [`Index::replace`] takes them. `None` for a
    /// worker that is not registered or whose state is unknown, before or after.
    ///
    /// Looks at every block of the index once, for all workers together, and takes no lock
    /// meanwhile. Blocks stored or removed meanwhile may be among them or not.
    pub fn held_by(&self, workers: &[WorkerRank]) -> Vec<Option<WorkerHoldings>> {
        let before = self.known_lives(workers);
        let numbers = before.iter().zip(0..);
        let numbers = numbers.filter_map(|(life, number)| Some((life.as_ref()?.slot, number)));
        let mut members = Members { numbers: numbers.collect(), ..Members::default() };
        let mut blocks = vec![Vec::new(); workers.len()];
        for shard in 0..self.shared.layout.shards() {
            let view = self.shared.published.view();
            let table = view.table(shard);
            for (key, set) in table::blocks(table) {
                // A set that is gone was replaced in the cell by another.
                let place = || self.shared.layout.place(key).1;
                let found = members.of(self, set);
                let found = found.or_else(|| members.of(self, table::find(table, place(), key)));
                for &(number, medium) in &members.all[found.unwrap_or_default()] {
                    blocks[number].push((SequenceHash(key), medium));
                }
            }
        }
        let after = self.known_lives(workers);
        let same = |(before, after): (Option<WorkerLife>, Option<WorkerLife>)| {
            before.zip(after).filter(|(before, after)| before.slot == after.slot)
        };
        let lives = before.into_iter().zip(after).map(same);
        let held = lives.zip(blocks).map(|(life, blocks)| {
            life.map(|(life, _)| WorkerHoldings { generation: life.generation, blocks })
        });
        held.collect()
    }

    fn known_lives(&self, workers: &[WorkerRank]) -> Vec<Option<WorkerLife>> {
        let tenancy = self.tenancy.read();
        workers.iter().map(|worker| tenancy.life(*worker).filter(|life| life.known)).collect()
    }
}

/// Members of sets, among some slots.
#[derive(Default)]
struct Members {
    /// By slot.
    numbers: FxHashMap<u32, usize>,
    /// By set: where in `all`.
    known: FxHashMap<SetRef, Range<usize>>,
    all: Vec<(usize, Medium)>,
    elements: Vec<u32>,
}

impl Members {
    /// Reported members of a set; `None` if the set is gone.
    fn of(&mut self, index: &Index, set: SetRef) -> Option<Range<usize>> {
        if let Some(known) = self.known.get(&set) {
            return Some(known.clone());
        }
        if !index.shared.sets.copy(set, &mut self.elements) {
            return None;
        }
        let first = self.all.len();
        let reported = self.elements.iter().filter_map(|&element| match elements::state(element) {
            HolderState::Reported(medium) => {
                Some((*self.numbers.get(&elements::slot(element))?, medium))
            }
            HolderState::Predicted => None,
        });
        self.all.extend(reported);
        let members = first..self.all.len();
        self.known.insert(set, members.clone());
        Some(members)
    }
}
