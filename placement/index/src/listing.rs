//! Lists what a worker holds, in parts.

use crate::cell::SetRef;
use crate::elements::{self, State};
use crate::index::Index;
use crate::table;
use rustc_hash::FxHashMap;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::{Generation, WorkerRank};

/// Blocks listed at a time by [`Index::held_by`].
const PART: usize = 4096;

/// What a worker reported that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The life that reported it.
    pub generation: Generation,
    /// Each block once, in no order.
    pub blocks: Vec<(SequenceHash, Medium)>,
}

/// Where a list goes on; the default is its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// A block stays in its shard, whose table may be replaced from one part to the next.
    shard: usize,
}

impl Index {
    /// What a worker reported that it holds: what [`Index::replace`] takes. `None` if it is not
    /// registered or its state is unknown. Blocks that are stored or removed meanwhile may be in
    /// it or not.
    pub fn held_by(&self, worker: WorkerRank) -> Option<Held> {
        let life = self.tenancy.read().life(worker).filter(|life| life.known)?;
        let (mut blocks, mut cursor) = (Vec::new(), Some(Cursor::default()));
        while let Some(at) = cursor {
            cursor = self.held_part(worker, at, PART, &mut blocks);
        }
        Some(Held { generation: life.generation, blocks })
    }

    /// Adds a part of what a worker reported that it holds to `out`; where to go on, `None` at
    /// the end. A part is one or more of the 256 shards in which all blocks stand, whoever they
    /// belong to: as many as it takes to look at `most` cells. Takes no lock.
    ///
    /// Every block that is held from the first call to the last comes once.
    pub fn held_part(
        &self,
        worker: WorkerRank,
        cursor: Cursor,
        most: usize,
        out: &mut Vec<(SequenceHash, Medium)>,
    ) -> Option<Cursor> {
        let life = self.tenancy.read().life(worker).filter(|life| life.known)?;
        let view = self.shared.published.view();
        let (known, elements) = Default::default();
        let mut members = Members { slot: life.slot, known, elements };
        let (mut shard, mut looked) = (cursor.shard, 0);
        while looked < most.max(1) {
            let table = view.tables().nth(shard)?;
            for (key, set) in table::blocks(table) {
                // A set that is gone was replaced in the cell by another.
                let medium = members.medium(self, set).or_else(|| {
                    let place = self.shared.layout.place(key).1;
                    members.medium(self, table::find(table, place, key))
                });
                out.extend(medium.flatten().map(|medium| (SequenceHash(key), medium)));
            }
            looked += table::capacity(table.len());
            shard += 1;
        }
        view.tables().nth(shard).map(|_| Cursor { shard })
    }
}

/// Which sets a slot is in.
struct Members {
    slot: u32,
    known: FxHashMap<SetRef, Option<Medium>>,
    elements: Vec<u32>,
}

impl Members {
    /// How the slot is in a set, if it is; `None` if the set is gone.
    fn medium(&mut self, index: &Index, set: SetRef) -> Option<Option<Medium>> {
        if let Some(&known) = self.known.get(&set) {
            return Some(known);
        }
        if !index.shared.sets.copy(set, &mut self.elements) {
            return None;
        }
        let own = self.elements.iter().filter(|&&element| elements::slot(element) == self.slot);
        let medium = own.map(|&element| elements::state(element)).find_map(|state| match state {
            State::Reported(medium) => Some(medium),
            State::Predicted => None,
        });
        self.known.insert(set, medium);
        Some(medium)
    }
}
