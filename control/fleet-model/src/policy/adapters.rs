//! Adapters loaded on each worker, for policies of other projects.

use super::{Member, WorkerNumber};

/// The adapters of each worker.
#[derive(Debug, Default)]
pub(super) struct LoadedAdapters(Vec<Vec<u32>>);

impl LoadedAdapters {
    /// A worker is there.
    pub(super) fn up(&mut self, worker: WorkerNumber, member: &Member) {
        let place = worker as usize;
        self.0.resize_with(self.0.len().max(place + 1), Vec::new);
        self.0[place].clone_from(&member.adapters);
    }

    /// Whether a worker may take a request for an adapter, or for none.
    pub(super) fn allows(&self, worker: WorkerNumber, adapter: Option<u32>) -> bool {
        let has = |adapter| self.0.get(worker as usize).is_some_and(|own| own.contains(&adapter));
        adapter.is_none_or(has)
    }
}
