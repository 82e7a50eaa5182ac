//! Drives one rank of a stock engine: a task per request, one life of the rank after the other.

use super::request::{self, Rank};
use super::sink::LifeSink;
use crate::engine::RequestKey;
use crate::metrics::{Outcome, WorkerGauges};
use crate::outbox::Outbox;
use crate::translate;
use crate::worker::{Command, Prefill, Submission};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_dialect::Fault;
use stator_protos::load::Load;
use stator_protos::worker::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// How often load is reported where nothing changes.
const BEAT: Duration = Duration::from_secs(1);

/// What a rank does now.
#[derive(Clone, Debug)]
pub(crate) enum Life {
    /// It serves; its events and load go to this sink.
    Up(Arc<LifeSink>),
    /// It does not, and why.
    Down(Arc<str>),
}

/// What the engine said last of its KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cache {
    /// KV blocks in all.
    pub(crate) total_blocks: u32,
    /// Of these, the share that running requests use, 0 to 1.
    pub(crate) used: f64,
    /// Requests in the batch, as the engine counts them: others may have sent some.
    pub(crate) running: u32,
    /// Requests that wait, as the engine counts them.
    pub(crate) waiting: u32,
}

/// The task of one rank.
pub(crate) struct Driver {
    pub(crate) rank: Arc<Rank>,
    pub(crate) life: watch::Receiver<Life>,
    pub(crate) cache: Arc<Mutex<Cache>>,
    pub(crate) gauges: WorkerGauges,
    pub(crate) load_interval: Duration,
    live: FxHashMap<RequestKey, Live>,
    tasks: JoinSet<RequestKey>,
}

/// A request that runs.
struct Live {
    request_id: u64,
    first_choice: u32,
    outbox: Arc<Outbox>,
    task: AbortHandle,
}

impl Driver {
    pub(crate) fn new(
        rank: Arc<Rank>,
        life: watch::Receiver<Life>,
        (cache, gauges): (Arc<Mutex<Cache>>, WorkerGauges),
        load_interval: Duration,
    ) -> Self {
        let (live, tasks) = (FxHashMap::default(), JoinSet::new());
        Self { rank, life, cache, gauges, load_interval, live, tasks }
    }

    /// Runs until nobody can send commands any more.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let tally = self.rank.tally.clone();
        let mut next_load = Instant::now();
        let mut load_due = true;
        // What the engine says changes also where nothing was sent to it.
        let mut beat = tokio::time::interval(BEAT);
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.apply(command).await,
                    None => return,
                },
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(key) => drop(self.live.remove(&key)),
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => tracing::error!(%error, "a request's task failed"),
                },
                Ok(()) = self.life.changed() => {
                    self.life_changed();
                    load_due = true;
                }
                () = tally.changed(), if !load_due => load_due = true,
                _ = beat.tick() => load_due = true,
                () = tokio::time::sleep_until(next_load), if load_due => {
                    self.report_load();
                    next_load = Instant::now() + self.load_interval;
                    load_due = false;
                }
            }
        }
    }

    async fn apply(&mut self, command: Command) {
        let life = self.life.borrow().clone();
        match (command, life) {
            (Command::Submit(submission), Life::Up(_)) => self.submit(submission),
            (Command::Submit(submission), Life::Down(why)) => {
                let Submission { request, request_id, outbox, ticket, .. } = submission;
                let kind = ErrorKind::Internal;
                let last = translate::failure(request_id, request.first_choice, kind, down(&why));
                self.rank.metrics.ended(kind.into());
                request::end(&outbox, request_id, Some(last), ticket);
            }
            (Command::Cancel(keys), _) => self.cancel(&keys),
            (Command::Snapshot(answer), Life::Up(sink)) => sink.snapshot(answer),
            // Dropping the sender says that there is no worker.
            (Command::Snapshot(_), Life::Down(_)) => {}
            (Command::Prefill(order), Life::Up(_)) => self.prefill(order),
            (Command::Prefill(order), Life::Down(why)) => {
                // Who asked may be gone.
                let _ = order.answer.send(Err((ErrorKind::Internal, down(&why))));
            }
            (Command::Operate(order), _) => {
                // What is done to the engine as a whole is its keeper's business.
                let fault = Fault::Unsupported("a rank has no operations of its own".into());
                let _ = order.answer.send(Err(fault));
            }
        }
    }

    fn submit(&mut self, submission: Submission) {
        let (key, request_id) = (submission.request.key, submission.request_id);
        let (first_choice, outbox) = (submission.request.first_choice, submission.outbox.clone());
        let rank = self.rank.clone();
        let task = self.tasks.spawn(async move {
            rank.run(submission).await;
            key
        });
        self.live.insert(key, Live { request_id, first_choice, outbox, task });
    }

    fn prefill(&mut self, order: Prefill) {
        let (key, rank) = (order.request.key, self.rank.clone());
        self.tasks.spawn(async move {
            rank.prefill(order).await;
            key
        });
    }

    fn cancel(&mut self, keys: &[RequestKey]) {
        for key in keys {
            // One that has ended is only waiting to be forgotten.
            let running = |live: &Live| !live.task.is_finished();
            let Some(live) = self.live.remove(key).filter(running) else { continue };
            live.task.abort();
            let last = translate::cancelled(live.request_id, live.first_choice);
            self.rank.metrics.ended(Outcome::cancelled);
            live.outbox.push(&mut vec![last], &mut vec![live.request_id]);
        }
    }

    /// A life that ended takes its requests with it: others may run them again elsewhere.
    fn life_changed(&mut self) {
        let Life::Down(why) = self.life.borrow_and_update().clone() else { return };
        for (_, live) in self.live.drain() {
            live.task.abort();
            let kind = ErrorKind::Internal;
            let last = translate::failure(live.request_id, live.first_choice, kind, down(&why));
            self.rank.metrics.ended(kind.into());
            live.outbox.push(&mut vec![last], &mut vec![live.request_id]);
        }
        self.tasks.abort_all();
    }

    fn report_load(&self) {
        let Life::Up(sink) = &*self.life.borrow() else { return };
        let (counts, cache) = (self.rank.tally.counts(), *self.cache.lock());
        let used = (cache.used * f64::from(cache.total_blocks)).round() as u32;
        let load = Load {
            running: counts.running.max(cache.running),
            waiting: counts.waiting.max(cache.waiting),
            used_blocks: used,
            cached_blocks: sink.blocks().saturating_sub(used),
            total_blocks: cache.total_blocks,
            pending_prefill_tokens: counts.pending_prefill_tokens,
        };
        self.gauges.set(&load);
        sink.load(load);
    }
}

fn down(why: &str) -> String {
    format!("the engine does not serve: {why}")
}
