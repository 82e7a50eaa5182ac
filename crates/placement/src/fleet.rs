//! The workers that exist, and what each last said of itself.

use crate::constraint::{Adapter, Label, LabelSets, Profile, Role};
use crate::reuse::{PairLoads, WorkerLoads};
use rustc_hash::FxHashMap;
use stator_protos::discovery::WorkerRecord;
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};

/// A worker as discovery tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its identity.
    pub worker: WorkerRank,
    /// Its present life.
    pub generation: Generation,
    /// KV blocks that it can hold; 0 if unknown.
    pub total_blocks: u32,
    /// Whether it takes new requests.
    pub accepting: bool,
    /// Whether nobody but the worker itself says that it is there: others are preferred.
    pub suspect: bool,
    /// Whether it publishes KV events. Holdings of other workers are predicted from the requests
    /// sent to them.
    pub publishes_events: bool,
}

impl Worker {
    /// The worker of a discovery record, whose agent does or does not take new requests.
    pub fn new(record: &WorkerRecord, accepting: bool) -> Self {
        let WorkerRecord { worker, generation, total_blocks } = *record;
        let suspect = false;
        Self { worker, generation, total_blocks, accepting, suspect, publishes_events: true }
    }
}

/// A worker and its last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerState {
    /// Its record from discovery.
    pub worker: Worker,
    /// Its last load report in this life.
    pub load: Option<Load>,
    /// Its role, location, labels and adapters.
    pub profile: Profile,
}

/// Facts about a worker that every decision reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) worker: WorkerRank,
    /// Whether it can load one more adapter.
    pub(crate) adapter_room: bool,
    /// KV blocks that it can hold, 0 if unknown.
    pub(crate) total_blocks: u32,
    /// Tokens of one step, 0 if unknown.
    pub(crate) batch_tokens: u32,
    /// Its labels: a set of [`LabelSets`].
    pub(crate) labels: u32,
    /// The agent that lends its blocks, and fetches those of others.
    pub(crate) lends: Option<Label>,
}

/// Counts of the workers that take new requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Takers {
    all: usize,
    suspect: usize,
}

/// All workers. Each has a slot, a small number that another may have once it is gone.
#[derive(Debug, Default)]
pub struct Fleet {
    slots: FxHashMap<WorkerRank, u32>,
    /// By slot, the role of a worker that takes new requests; `None` for all others.
    open: Vec<Option<Role>>,
    rows: Vec<Row>,
    /// By slot, measured times of loads: apart, because most decisions do not read them.
    loads: Vec<WorkerLoads>,
    pair_loads: Vec<PairLoads>,
    states: Vec<Option<WorkerState>>,
    free: Vec<u32>,
    /// Slots in order of their workers' identity.
    order: Vec<u32>,
    labels: LabelSets,
    /// Slots of the workers that have an adapter loaded, in order.
    adapters: FxHashMap<Adapter, Vec<u32>>,
    /// Workers by role, as `Role as usize` counts.
    by_role: [usize; 5],
    /// Workers that take new requests, and the suspects among them.
    takers: Takers,
}

/// Effect of adding a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinResult {
    /// It was not known, or in an earlier life: it has nothing.
    New(u32),
    /// The same life of it is known already.
    Same,
    /// A later life of it is known, and nothing changed.
    Stale,
}

impl Takers {
    fn enter(&mut self, worker: &Worker) {
        self.all += usize::from(worker.accepting);
        self.suspect += usize::from(worker.accepting && worker.suspect);
    }

    fn leave(&mut self, worker: &Worker) {
        self.all -= usize::from(worker.accepting);
        self.suspect -= usize::from(worker.accepting && worker.suspect);
    }
}

impl Fleet {
    /// The workers, in order of their identity.
    pub fn workers(&self) -> impl ExactSizeIterator<Item = &WorkerState> {
        self.order.iter().map(|&slot| self.state(slot))
    }

    /// Workers in the fleet.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// One worker.
    pub fn worker(&self, worker: WorkerRank) -> Option<&WorkerState> {
        self.slot(worker).map(|slot| self.state(slot))
    }

    pub(crate) fn slot(&self, worker: WorkerRank) -> Option<u32> {
        self.slots.get(&worker).copied()
    }

    /// The worker in a slot that is taken.
    pub(crate) fn state(&self, slot: u32) -> &WorkerState {
        self.states[slot as usize].as_ref().expect("the slot is taken")
    }

    /// The row of the worker in a slot, which must be taken.
    pub(crate) fn row(&self, slot: u32) -> &Row {
        &self.rows[slot as usize]
    }

    /// The measured times of the worker in a slot.
    pub(crate) fn loads(&self, slot: u32) -> &WorkerLoads {
        &self.loads[slot as usize]
    }

    /// The measured times of the worker in a slot to load from single agents.
    pub(crate) fn pair_loads(&self, slot: u32) -> &PairLoads {
        &self.pair_loads[slot as usize]
    }

    /// The role of the worker in a slot, if it takes new requests.
    pub(crate) fn open(&self, slot: u32) -> Option<Role> {
        self.open[slot as usize]
    }

    /// By slot, the role of each worker that takes new requests.
    pub(crate) fn all_open(&self) -> &[Option<Role>] {
        &self.open
    }

    /// Whether the worker in a slot is suspect.
    pub(crate) fn is_suspect(&self, slot: u32) -> bool {
        self.state(slot).worker.suspect
    }

    /// Whether suspects are passed over where others can take a request: not where most workers
    /// are suspect. Then the fault is not theirs, and the few others would get everything.
    pub(crate) fn shuns_suspects(&self) -> bool {
        let Takers { all, suspect } = self.takers;
        suspect > 0 && 2 * suspect <= all
    }

    /// Slots below this may be taken.
    pub(crate) fn slots_end(&self) -> usize {
        self.rows.len()
    }

    /// Slots in order of their workers' identity.
    pub(crate) fn order(&self) -> &[u32] {
        &self.order
    }

    pub(crate) fn labels(&self) -> &LabelSets {
        &self.labels
    }

    /// Slots of the workers that have `adapter` loaded, in order.
    pub(crate) fn with_adapter(&self, adapter: Adapter) -> &[u32] {
        self.adapters.get(&adapter).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn has_role(&self, role: Role) -> bool {
        self.by_role[role as usize] > 0
    }

    /// Adds a worker or updates it; a new life forgets its report and keeps its profile.
    pub(crate) fn insert(&mut self, worker: Worker) -> JoinResult {
        let Some(slot) = self.slot(worker.worker) else {
            return JoinResult::New(self.add(worker));
        };
        let known = self.states[slot as usize].as_mut().expect("the slot is taken");
        if worker.generation < known.worker.generation {
            return JoinResult::Stale;
        }
        let same = worker.generation == known.worker.generation;
        let before = std::mem::replace(&mut known.worker, worker);
        if !same {
            known.load = None;
        }
        self.takers.leave(&before);
        self.takers.enter(&worker);
        self.refresh(slot);
        if same { JoinResult::Same } else { JoinResult::New(slot) }
    }

    /// Forgets a worker; the slot that it had.
    pub(crate) fn remove(&mut self, worker: WorkerRank) -> Option<u32> {
        let slot = self.slots.remove(&worker)?;
        self.unlist(slot);
        if let Some(state) = self.states[slot as usize].take() {
            self.takers.leave(&state.worker);
        }
        self.open[slot as usize] = None;
        // Costs of empty slots are computed, too, and then passed over.
        self.rows[slot as usize].lends = None;
        if let Ok(place) = self.place(worker) {
            self.order.remove(place);
        }
        self.free.push(slot);
        Some(slot)
    }

    /// Says what a worker is for. False if it is not known.
    pub(crate) fn set_profile(&mut self, worker: WorkerRank, profile: Profile) -> bool {
        let Some(slot) = self.slot(worker) else { return false };
        self.unlist(slot);
        self.list(slot, profile);
        true
    }

    /// Keeps a report: the slot of the worker. `None`, and without effect, if the worker or this
    /// life of it is not known.
    pub(crate) fn report(
        &mut self,
        worker: WorkerRank,
        generation: Generation,
        load: Load,
    ) -> Option<u32> {
        let slot = self.slot(worker)?;
        let state = self.states[slot as usize].as_mut()?;
        if state.worker.generation != generation {
            return None;
        }
        state.load = Some(load);
        self.refresh(slot);
        Some(slot)
    }

    fn add(&mut self, worker: Worker) -> u32 {
        self.takers.enter(&worker);
        let state = WorkerState { worker, load: None, profile: Profile::default() };
        let row = Row {
            worker: worker.worker,
            adapter_room: true,
            total_blocks: 0,
            batch_tokens: 0,
            labels: 0,
            lends: None,
        };
        // Slots are reused, so that tables by slot are no longer than the largest fleet.
        let slot = match self.free.pop() {
            Some(slot) => {
                (self.rows[slot as usize], self.states[slot as usize]) = (row, Some(state));
                slot
            }
            None => {
                self.open.push(None);
                self.rows.push(row);
                self.loads.push(WorkerLoads::default());
                self.pair_loads.push(PairLoads::default());
                self.states.push(Some(state));
                u32::try_from(self.rows.len() - 1).expect("fewer than 2^32 workers")
            }
        };
        let place = self.place(worker.worker).unwrap_or_else(|place| place);
        self.order.insert(place, slot);
        self.slots.insert(worker.worker, slot);
        self.list(slot, Profile::default());
        slot
    }

    /// Enters a worker's profile where decisions look for it.
    fn list(&mut self, slot: u32, profile: Profile) {
        let row = &mut self.rows[slot as usize];
        row.batch_tokens = profile.batch_tokens;
        row.lends = profile.lends;
        row.labels = self.labels.enter(profile.labels.clone());
        let full =
            profile.max_adapters > 0 && profile.adapters.len() >= profile.max_adapters as usize;
        row.adapter_room = !full && !profile.fixed_adapters;
        self.by_role[profile.role as usize] += 1;
        for &adapter in &profile.adapters {
            let slots = self.adapters.entry(adapter).or_default();
            if let Err(place) = slots.binary_search(&slot) {
                slots.insert(place, slot);
            }
        }
        if let Some(state) = &mut self.states[slot as usize] {
            state.profile = profile;
        }
        self.refresh(slot);
    }

    /// Takes a worker's profile out again.
    fn unlist(&mut self, slot: u32) {
        self.labels.leave(self.rows[slot as usize].labels);
        let Some(state) = &mut self.states[slot as usize] else { return };
        let profile = std::mem::take(&mut state.profile);
        self.by_role[profile.role as usize] -= 1;
        for adapter in profile.adapters {
            let Some(slots) = self.adapters.get_mut(&adapter) else { continue };
            slots.retain(|&other| other != slot);
            if slots.is_empty() {
                self.adapters.remove(&adapter);
            }
        }
    }

    /// Brings the row of a worker up to date with what discovery and its report say.
    fn refresh(&mut self, slot: u32) {
        let Some(state) = &self.states[slot as usize] else { return };
        let row = &mut self.rows[slot as usize];
        self.open[slot as usize] = state.worker.accepting.then_some(state.profile.role);
        let reported = state.load.map_or(0, |load| load.total_blocks);
        row.total_blocks = if reported > 0 { reported } else { state.worker.total_blocks };
        let costs = state.load.map(|load| load.costs).unwrap_or_default();
        self.loads[slot as usize] = WorkerLoads::new(&costs);
        self.pair_loads[slot as usize] = PairLoads::new(&costs);
    }

    /// Position of a worker in the order, or the position to insert it at.
    fn place(&self, worker: WorkerRank) -> Result<usize, usize> {
        self.order.binary_search_by_key(&worker, |&slot| self.rows[slot as usize].worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::Label;
    use proptest::{collection::vec, prelude::*};
    use stator_protos::WorkerId;
    use std::collections::BTreeMap;

    fn worker(number: u64, generation: u64) -> Worker {
        let worker = WorkerRank { worker: WorkerId(number), rank: 0 };
        let record = WorkerRecord { worker, generation: Generation(generation), total_blocks: 7 };
        Worker::new(&record, true)
    }

    proptest! {
        /// Workers come and go in any order; what decisions read is what was said last.
        #[test]
        fn agrees_with_a_sorted_map(
            steps in vec((0u64..8, 0u64..3, 0u8..4, vec(0u64..3, 0..3)), 0..80),
        ) {
            let (mut fleet, mut model) = (Fleet::default(), BTreeMap::new());
            for (number, generation, step, adapters) in steps {
                let worker = worker(number, generation);
                let rank = worker.worker;
                let known = model.get(&rank).map(|(life, _): &(u64, Profile)| *life);
                match step {
                    0 => prop_assert_eq!(fleet.remove(rank).is_some(), model.remove(&rank).is_some()),
                    1 => {
                        let adapters: Vec<_> = adapters.into_iter().map(Adapter).collect();
                        let labels = vec![Label(number % 2)];
                        let profile = Profile { role: Role::Prefill, labels, adapters, max_adapters: 2, ..Profile::default() };
                        prop_assert_eq!(fleet.set_profile(rank, profile.clone()), known.is_some());
                        if let Some((_, kept)) = model.get_mut(&rank) {
                            *kept = profile;
                        }
                    }
                    _ => {
                        let stale = known.is_some_and(|life| generation < life);
                        prop_assert_eq!(fleet.insert(worker) == JoinResult::Stale, stale);
                        if !stale {
                            model.entry(rank).or_default().0 = generation;
                        }
                    }
                }
                let told: Vec<_> = fleet
                    .workers()
                    .map(|state| (state.worker.worker, state.worker.generation.0, state.profile.clone()))
                    .collect();
                let wanted: Vec<_> = model.iter().map(|(rank, (life, profile))| (*rank, *life, profile.clone())).collect();
                prop_assert_eq!(told, wanted);
                for adapter in (0..3).map(Adapter) {
                    let have = model.iter().filter(|(_, (_, profile))| profile.adapters.contains(&adapter));
                    let mut slots: Vec<_> = have.filter_map(|(rank, _)| fleet.slot(*rank)).collect();
                    slots.sort_unstable();
                    prop_assert_eq!(fleet.with_adapter(adapter), slots);
                }
                let prefill = model.values().any(|(_, profile)| profile.role == Role::Prefill);
                prop_assert_eq!(fleet.has_role(Role::Prefill), prefill);
            }
            prop_assert!(model.keys().all(|rank| fleet.remove(*rank).is_some()));
            prop_assert!(fleet.is_empty() && fleet.adapters.is_empty() && fleet.by_role == [0; 5]);
        }
    }
}
