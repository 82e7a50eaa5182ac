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
    /// Tasks that were told to end and may still run: the next task of the same worker waits for
    /// them.
    leaving: FxHashMap<WorkerRank, JoinSet<()>>,
    /// Runtime of the tasks; `None` is the caller's.
    runtime: Option<Handle>,
}

impl<P> Default for Roster<P> {
    fn default() -> Self {
        Self { tasks: FxHashMap::default(), leaving: FxHashMap::default(), runtime: None }
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
    /// those that are missing, each after the end of the worker's task before; the others go on
    /// undisturbed. Returns who has no task any more.
    pub(crate) fn update<F>(
        &mut self,
        wanted: FxHashMap<WorkerRank, P>,
        mut start: impl FnMut(WorkerRank, P) -> F,
    ) -> Vec<WorkerRank>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.leaving.retain(|_, task| task.try_join_next().is_none() && !task.is_empty());
        let ends = |worker: &WorkerRank, (plan, _): &mut (P, _)| wanted.get(worker) != Some(plan);
        let mut gone = Vec::new();
        for (worker, (_, mut task)) in self.tasks.extract_if(ends) {
            if !wanted.contains_key(&worker) {
                gone.push(worker);
            }
            task.abort_all();
            self.leaving.insert(worker, task);
        }
        for (worker, plan) in wanted {
            self.tasks.entry(worker).or_insert_with(|| {
                let (mut task, work) = (JoinSet::new(), start(worker, plan.clone()));
                // Two tasks of one worker at a time would mix what they report.
                let before = self.leaving.remove(&worker);
                let work = async move {
                    if let Some(mut before) = before {
                        before.shutdown().await;
                    }
                    work.await;
                };
                match &self.runtime {
                    Some(runtime) => task.spawn_on(work, runtime),
                    None => task.spawn(work),
                };
                (plan, task)
            });
        }
        gone
    }

    /// Number of tasks.
    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use stator_protos::WorkerId;
    use std::sync::Arc;

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

    /// A task that says when it begins and when it is gone.
    async fn told(name: &'static str, log: Arc<Mutex<Vec<String>>>) {
        struct Gone(&'static str, Arc<Mutex<Vec<String>>>);
        impl Drop for Gone {
            fn drop(&mut self) {
                self.1.lock().push(format!("{} is gone", self.0));
            }
        }
        log.lock().push(format!("{name} begins"));
        let _gone = Gone(name, log);
        std::future::pending().await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_comes_after_a_task_waits_for_its_end() {
        for between in [false, true] {
            let (mut roster, log) = (Roster::default(), Arc::new(Mutex::new(Vec::new())));
            let mut update = |wanted: &[(&'static str, u32)]| {
                let wanted = wanted.iter().map(|(name, plan)| (worker(1), (*name, *plan)));
                roster.update(wanted.collect(), |_, (name, _)| told(name, log.clone()));
            };
            let until = async |count: usize| {
                let all = async {
                    while log.lock().len() < count {
                        tokio::task::yield_now().await;
                    }
                };
                tokio::time::timeout(crate::testkit::DEADLINE, all).await.expect("it comes");
            };
            update(&[("the first", 1)]);
            until(1).await;
            if between {
                update(&[]);
            }
            update(&[("the second", 2)]);
            until(3).await;
            let expected = ["the first begins", "the first is gone", "the second begins"];
            assert_eq!(*log.lock(), expected);
        }
    }
}
