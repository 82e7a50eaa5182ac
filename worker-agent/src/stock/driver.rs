//! Drives one rank of a stock engine: a task per request, one life of the rank after the other.

use super::request::Rank;
use super::sink::LifeSink;
use crate::kv::tiers::TierBoard;
use crate::metrics::{Outcome, WorkerGauges};
use crate::request_plane::outbox::Outbox;
use crate::request_plane::translate;
use crate::worker::{Command, PrefillOrder, Submission};
use futures::future::{self, Either};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_dialect::Fault;
use stator_engine::RequestKey;
use stator_protos::load::Load;
use stator_protos::worker::{self, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

/// Pause between two load reports while nothing changes.
const BEAT: Duration = Duration::from_secs(1);

/// State of a rank.
#[derive(Clone, Debug)]
pub(crate) enum Life {
    /// The rank serves; its events and load go to this sink.
    Up(Arc<LifeSink>),
    /// The rank does not serve; holds the reason.
    Down(Arc<str>),
}

/// KV cache as the engine last reported it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cache {
    /// KV blocks in all.
    pub(crate) total_blocks: u32,
    /// Share of these blocks that running requests use, 0 to 1.
    pub(crate) used: f64,
    /// Requests in the batch, as the engine counts them: others may have sent some.
    pub(crate) running: u32,
    /// Requests that wait, as the engine counts them.
    pub(crate) waiting: u32,
}

impl Cache {
    /// The engine does not say what it has to do: what was sent to it is all that is known.
    pub(super) fn forget_requests(&mut self) {
        (self.running, self.waiting) = (0, 0);
    }
}

/// The parts of a rank's load reports.
pub(crate) struct RankReporting {
    pub(crate) cache: Arc<Mutex<Cache>>,
    /// Board of the agent's tiers, and the tokens of a block.
    pub(crate) tiers: Option<(Arc<TierBoard>, u32)>,
    pub(crate) gauges: WorkerGauges,
    /// Shortest time between two reports.
    pub(crate) load_interval: Duration,
}

/// The task of one rank.
pub(crate) struct Driver {
    pub(crate) rank: Arc<Rank>,
    pub(crate) life: watch::Receiver<Life>,
    pub(crate) reporting: RankReporting,
    live: FxHashMap<RequestKey, Live>,
    tasks: JoinSet<RequestKey>,
    prefills: JoinSet<()>,
}

/// A request that runs. Its task alone tells its client's stream, so that it ends there once.
struct Live {
    request_id: u64,
    first_choice: u32,
    outbox: Arc<Outbox>,
    task: Id,
    /// Ends it before it has ended by itself.
    end: oneshot::Sender<End>,
}

/// The end of a request that did not end by itself.
type End = (worker::Output, Outcome);

impl Driver {
    pub(crate) fn new(
        rank: Arc<Rank>,
        life: watch::Receiver<Life>,
        reporting: RankReporting,
    ) -> Self {
        let (live, tasks, prefills) = (FxHashMap::default(), JoinSet::new(), JoinSet::new());
        Self { rank, life, reporting, live, tasks, prefills }
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
                    Some(command) => {
                        // What ran is of the life before, what comes now of this one.
                        load_due |= self.catch_up();
                        self.apply(command);
                    }
                    None => return,
                },
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(key) => drop(self.live.remove(&key)),
                    Err(error) => self.failed(&error),
                },
                Some(ended) = self.prefills.join_next() => match ended {
                    Err(error) if error.is_panic() => {
                        tracing::error!(%error, "a prefill's task failed");
                    }
                    _ => {}
                },
                Ok(()) = self.life.changed() => {
                    self.life_changed();
                    load_due = true;
                }
                () = tally.changed(), if !load_due => load_due = true,
                _ = beat.tick() => load_due = true,
                () = tokio::time::sleep_until(next_load), if load_due => {
                    self.report_load();
                    next_load = Instant::now() + self.reporting.load_interval;
                    load_due = false;
                }
            }
        }
    }

    fn apply(&mut self, command: Command) {
        let life = self.life.borrow().clone();
        match (command, life) {
            (Command::Submit(submission), Life::Up(_)) if self.rank.rests() => {
                self.refuse(submission, ErrorKind::Overloaded, translate::RESTING.into());
            }
            (Command::Submit(submission), Life::Up(sink)) => self.submit(submission, sink),
            (Command::Submit(submission), Life::Down(why)) => {
                self.refuse(submission, ErrorKind::Internal, down(&why));
            }
            (Command::Cancel(keys), _) => self.cancel(&keys),
            (Command::Snapshot(answer), Life::Up(sink)) => sink.snapshot(answer),
            // Dropping the sender says that there is no worker.
            (Command::Snapshot(_), Life::Down(_)) => {}
            (Command::Prefill(order), Life::Up(_)) if self.rank.rests() => {
                let _ = order.answer.send(Err((ErrorKind::Overloaded, translate::RESTING.into())));
            }
            (Command::Prefill(order), Life::Up(sink)) => self.prefill(order, sink),
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

    fn refuse(&self, submission: Submission, kind: ErrorKind, why: String) {
        let Submission { request, request_id, outbox, ticket, .. } = submission;
        let last = translate::failure(request_id, request.first_choice, kind, why);
        self.rank.metrics.ended(kind.into());
        outbox.push_last(last);
        drop(ticket);
    }

    fn submit(&mut self, submission: Submission, sink: Arc<LifeSink>) {
        let (key, request_id) = (submission.request.key, submission.request_id);
        let (first_choice, outbox) = (submission.request.first_choice, submission.outbox.clone());
        let (end, ended) = oneshot::channel();
        let rank = self.rank.clone();
        let task = self.tasks.spawn(async move {
            rank.run_until(submission, sink, ended).await;
            key
        });
        let live = Live { request_id, first_choice, outbox, task: task.id(), end };
        self.live.insert(key, live);
    }

    fn prefill(&mut self, order: PrefillOrder, sink: Arc<LifeSink>) {
        let rank = self.rank.clone();
        self.prefills.spawn(async move { rank.prefill(order, sink).await });
    }

    fn cancel(&mut self, keys: &[RequestKey]) {
        for live in keys.iter().filter_map(|key| self.live.remove(key)) {
            let last = translate::cancelled(live.request_id, live.first_choice);
            // One that has ended is only waiting to be forgotten.
            let _ = live.end.send((last, Outcome::cancelled));
        }
    }

    /// Takes note of a life that changed and was not seen to; true if there was one.
    fn catch_up(&mut self) -> bool {
        let changed = self.life.has_changed().unwrap_or(false);
        if changed {
            self.life_changed();
        }
        changed
    }

    /// Fails the requests of a life that ended, so that others may run them again elsewhere. A next
    /// life that began before anybody looked counts as a change too.
    fn life_changed(&mut self) {
        let why = match &*self.life.borrow_and_update() {
            Life::Down(why) => why.clone(),
            Life::Up(_) => "it was started again".into(),
        };
        for (_, live) in self.live.drain() {
            let kind = ErrorKind::Internal;
            let last = translate::failure(live.request_id, live.first_choice, kind, down(&why));
            let _ = live.end.send((last, kind.into()));
        }
        // Who asked hears that the worker has ended.
        self.prefills.abort_all();
    }

    /// Ends a request whose task could not.
    fn failed(&mut self, error: &JoinError) {
        tracing::error!(%error, "a request's task failed");
        let key = self.live.iter().find(|(_, live)| live.task == error.id()).map(|(key, _)| *key);
        let Some(live) = key.and_then(|key| self.live.remove(&key)) else { return };
        let (kind, message) = (ErrorKind::Internal, "the agent failed at the request".into());
        let last = translate::failure(live.request_id, live.first_choice, kind, message);
        self.rank.metrics.ended(kind.into());
        live.outbox.push_last(last);
    }

    fn report_load(&self) {
        let Life::Up(sink) = &*self.life.borrow() else { return };
        let (counts, cache) = (self.rank.tally.counts(), *self.reporting.cache.lock());
        let tiers = self.reporting.tiers.as_ref();
        let costs = tiers.map(|(tiers, block_size)| tiers.costs(*block_size));
        let used = (cache.used * f64::from(cache.total_blocks)).round() as u32;
        let load = Load {
            running: counts.running.max(cache.running),
            waiting: counts.waiting.max(cache.waiting),
            used_blocks: used,
            cached_blocks: sink.blocks().saturating_sub(used),
            total_blocks: cache.total_blocks,
            pending_prefill_tokens: counts.pending_prefill_tokens,
            costs: costs.unwrap_or_default(),
        };
        self.reporting.gauges.set(&load);
        sink.load(load);
    }
}

impl Rank {
    /// Runs a request until it ends by itself, or until `ended` says how it ends.
    async fn run_until(
        &self,
        submission: Submission,
        sink: Arc<LifeSink>,
        ended: oneshot::Receiver<End>,
    ) {
        let outbox = submission.outbox.clone();
        let run = pin!(self.run(submission, sink));
        match future::select(ended, run).await {
            // The request counts as running until its client was told: it is dropped after that.
            Either::Left((Ok((last, outcome)), _run)) => {
                self.metrics.ended(outcome);
                outbox.push_last(last);
            }
            // Nobody is left who could end it.
            Either::Left((Err(_), run)) => run.await,
            Either::Right(_) => {}
        }
    }
}

fn down(why: &str) -> String {
    format!("the engine does not serve: {why}")
}

#[cfg(test)]
mod tests;
