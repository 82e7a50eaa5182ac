//! Threads that read and write, for systems without `io_uring`.

use super::{Device, Done, Job, raw};
use crate::arena::Arena;
use crate::disk::queue::Waker;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Most threads of a pool: so many keep a disk busy with large blocks.
const THREADS_MAX: u32 = 8;

/// A pool of threads. Dropping it waits for the jobs that are under way.
pub(super) struct Pool {
    arena: Arc<Arena>,
    shared: Arc<PoolShared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct PoolShared {
    state: Mutex<PoolState>,
    /// There is a job to do, or the pool ends.
    work: Condvar,
    /// A job has ended, or somebody called the waker.
    news: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    done: Vec<Done>,
    is_woken: bool,
    is_ending: bool,
}

impl Pool {
    pub(super) fn new(arena: &Arc<Arena>, jobs_max: u32) -> Self {
        let shared = Arc::new(PoolShared::default());
        let start = |number| {
            let (shared, arena) = (shared.clone(), arena.clone());
            let name = format!("kv-disk-{number}");
            thread::Builder::new().name(name).spawn(move || shared.work(&arena))
        };
        // Fewer threads do if the system has no more.
        let threads = (0..jobs_max.clamp(1, THREADS_MAX)).map_while(|number| start(number).ok());
        let threads = threads.collect();
        Self { arena: arena.clone(), shared, threads }
    }

    pub(super) fn waker(&self) -> Waker {
        let shared = self.shared.clone();
        Arc::new(move || {
            shared.state.lock().is_woken = true;
            shared.news.notify_all();
        })
    }
}

impl Device for Pool {
    fn start(&mut self, mut job: Job) {
        if self.threads.is_empty() {
            let result = raw::transfer(&mut job, &self.arena);
            self.shared.state.lock().done.push(Done { job, result });
            return;
        }
        self.shared.state.lock().jobs.push_back(job);
        self.shared.work.notify_one();
    }

    fn wait(&mut self, done: &mut Vec<Done>) {
        let mut state = self.shared.state.lock();
        while state.done.is_empty() && !take(&mut state.is_woken) {
            self.shared.news.wait(&mut state);
        }
        done.append(&mut state.done);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.lock().is_ending = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to wait for.
            let _ = thread.join();
        }
    }
}

impl PoolShared {
    fn work(&self, arena: &Arena) {
        loop {
            let mut state = self.state.lock();
            while state.jobs.is_empty() && !state.is_ending {
                self.work.wait(&mut state);
            }
            let Some(mut job) = state.jobs.pop_front() else { return };
            drop(state);
            let result = raw::transfer(&mut job, arena);
            self.state.lock().done.push(Done { job, result });
            self.news.notify_all();
        }
    }
}
