//! One background task per worker, for exactly the workers that are wanted.

use rustc_hash::FxHashMap;
use stator_protos::WorkerRank;
use std::future::Future;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// The tasks, each with the plan that it follows. Dropping the roster ends them.
#[derive(Debug)]
pub(crate) struct Roster<P> {
    tasks: FxHashMap<WorkerRank, (P, JoinSet<()>)>,
    /// Where they run; the caller's runtime if nowhere else.
    runtime: Option<Handle>,
}

impl<P> Default for Roster<P> {
    fn default() -> Self {
        Self { tasks: FxHashMap::default(), runtime: None }
    }
}

impl<P> Roster<P> {
    /// A roster whose tasks run there.
    pub(crate) fn on(runtime: Handle) -> Self {
        Self { runtime: Some(runtime), ..Self::default() }
    }
}

impl<P: PartialEq + Clone> Roster<P> {
    /// Ends the tasks of workers that are not `wanted` any more or have another plan, and starts
    /// those that are missing; the others go on undisturbed. Returns who has no task any more.
    pub(crate) fn update<F>(
        &mut self,
        wanted: FxHashMap<WorkerRank, P>,
        mut start: impl FnMut(WorkerRank, P) -> F,
    ) -> Vec<WorkerRank>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut gone = Vec::new();
        self.tasks.retain(|worker, (plan, _)| {
            let stays = wanted.get(worker) == Some(plan);
            if !stays && !wanted.contains_key(worker) {
                gone.push(*worker);
            }
            stays
        });
        for (worker, plan) in wanted {
            self.tasks.entry(worker).or_insert_with(|| {
                let (mut task, work) = (JoinSet::new(), start(worker, plan.clone()));
                match &self.runtime {
                    Some(runtime) => task.spawn_on(work, runtime),
                    None => task.spawn(work),
                };
                (plan, task)
            });
        }
        gone
    }

    /// How many tasks there are.
    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::WorkerId;

    fn worker(id: u64) -> WorkerRank {
        WorkerRank { worker: WorkerId(id), rank: 0 }
    }

    #[tokio::test]
    async fn only_what_changed_is_started_or_ended() {
        let mut roster = Roster::default();
        let mut update = |wanted: &[(u64, u32)]| {
            let mut started = Vec::new();
            let wanted = wanted.iter().map(|(id, plan)| (worker(*id), *plan)).collect();
            let mut gone = roster.update(wanted, |worker, plan| {
                started.push((worker.worker.0, plan));
                std::future::pending()
            });
            started.sort_unstable();
            gone.sort_unstable();
            (started, gone)
        };
        assert_eq!(update(&[(1, 7), (2, 7)]), (vec![(1, 7), (2, 7)], vec![]));
        assert_eq!(update(&[(1, 7), (2, 8)]), (vec![(2, 8)], vec![]));
        assert_eq!(update(&[(3, 7)]), (vec![(3, 7)], vec![worker(1), worker(2)]));
        assert_eq!(roster.len(), 1);
    }
}
