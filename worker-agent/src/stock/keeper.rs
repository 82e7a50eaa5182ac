//! Keeps a stock engine serving: watches each life of it, ends what must end, begins the next.

use super::driver::{Cache, Life};
use super::engine::StockEngine;
use super::events;
use super::host::{End, News};
use super::pages::{self, RankOutlets};
use super::profile::profile;
use super::sink::LifeSink;
use super::tally::Tally;
use super::tiers::TierService;
use crate::identity;
use crate::worker::OperationOrder;
use crate::workers::Reports;
use futures::future::select_all;
use parking_lot::Mutex;
use stator_dialect::{Description, Fault, Kind, Operation};
use stator_protos::discovery::WorkerRecord;
use stator_protos::{Generation, WorkerRank};
use stator_runtime::Shutdown;
use stator_runtime::shutdown::Trigger;
use stator_signals::events::{Follower, Source};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

/// Operations that may wait for the one before.
const ORDERS_MAX: usize = 16;
/// Longest wait for an operation: loading weights takes long.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(600);

/// The task that keeps an engine.
#[derive(Debug)]
pub(crate) struct Keeper {
    stop: Trigger,
    gave_up: oneshot::Receiver<anyhow::Error>,
    orders: mpsc::Sender<OperationOrder>,
    task: JoinHandle<()>,
}

/// One rank, as its keeper has it.
pub(super) struct RankState {
    pub(super) record: WorkerRecord,
    pub(super) tally: Arc<Tally>,
    pub(super) cache: Arc<Mutex<Cache>>,
    pub(super) life: watch::Sender<Life>,
}

impl Keeper {
    /// Begins the engine's first life and keeps it serving.
    pub(super) fn start(engine: StockEngine, ranks: Vec<RankState>, reports: Reports) -> Self {
        let (stop, stopped) = Shutdown::new();
        let (give_up, gave_up) = oneshot::channel();
        let (orders, inbox) = mpsc::channel(ORDERS_MAX);
        let task = tokio::spawn(async move {
            let (followers, pages, operations) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
            let mut keeping = Keeping { engine, ranks, reports, followers, pages, operations };
            if let Err(error) = keeping.run(inbox, &stopped).await {
                // The agent may be ending for another reason already.
                let _ = give_up.send(error);
            }
            keeping.engine.host.stop().await;
        });
        Self { stop, gave_up, orders, task }
    }

    /// The channel for operations on the engine.
    pub(crate) fn orders(&self) -> mpsc::Sender<OperationOrder> {
        self.orders.clone()
    }

    /// Ends the engine, if it was started here, and waits until it is gone.
    pub(crate) async fn stop(self) {
        self.stop.set();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task that keeps the engine failed");
        }
    }
}

/// Waits until the engine is given up; for ever where there is none to be kept.
pub(crate) async fn gave_up(keeper: &mut Option<Keeper>) -> anyhow::Error {
    match keeper {
        // Without a word it only ends by a panic: nobody keeps the engine any more then.
        Some(keeper) => (&mut keeper.gave_up)
            .await
            .unwrap_or_else(|_| anyhow::anyhow!("the task that keeps the engine failed")),
        None => std::future::pending().await,
    }
}

/// Waits until the task of a rank is there no longer, as after a panic: its requests would fail one
/// after the other.
async fn ended(ranks: &[RankState]) -> WorkerRank {
    let closed = ranks.iter().map(|rank| Box::pin(rank.life.closed()));
    let (.., first, _) = select_all(closed).await;
    ranks[first].record.worker
}

struct Keeping {
    engine: StockEngine,
    ranks: Vec<RankState>,
    reports: Reports,
    followers: JoinSet<()>,
    /// Tasks that read the metrics page of the present life.
    pages: JoinSet<()>,
    /// The operation that is on its way: one at most.
    operations: JoinSet<OperationResult>,
}

/// An operation that is over.
struct OperationResult {
    order: OperationOrder,
    /// The life that it was meant for.
    generation: Generation,
    /// Whether the engine rested before.
    rested: bool,
    result: Result<(), Fault>,
    /// The engine's new description, if the operation may have changed it.
    description: Option<Description>,
}

impl Keeping {
    /// Runs until `stopped`, or until the engine is given up.
    async fn run(
        &mut self,
        mut orders: mpsc::Receiver<OperationOrder>,
        stopped: &Shutdown,
    ) -> anyhow::Result<()> {
        // The agent gave the first life its number with its record.
        self.begin(self.generation());
        loop {
            tokio::select! {
                news = self.engine.host.next() => match news {
                    Some(News::Up(description)) => {
                        self.returned(*description)?;
                        let last = Some(self.generation());
                        self.begin(identity::generation(SystemTime::now(), last));
                    }
                    Some(News::Down(end)) => self.end(&end),
                    Some(News::Ended(cause)) => self.engine.metrics.ended(cause),
                    Some(News::Over(error)) => return Err(error),
                    None => anyhow::bail!("nobody watches over the engine any more"),
                },
                // One after the other, while the engine is watched all the same.
                Some(order) = orders.recv(), if self.operations.is_empty() => self.operate(order),
                Some(done) = self.operations.join_next() => match done {
                    Ok(done) => self.operated(done).await,
                    Err(error) => tracing::error!(%error, "an operation's task failed"),
                },
                Some(Err(error)) = self.followers.join_next() => {
                    tracing::error!(%error, "the engine's KV events are not followed any more");
                }
                worker = ended(&self.ranks), if !self.ranks.is_empty() => {
                    anyhow::bail!("the task of worker {worker} has ended");
                }
                () = stopped.wait() => return Ok(()),
            }
        }
    }

    /// The life that is, or the last one that was.
    fn generation(&self) -> Generation {
        self.ranks.first().map_or(Generation(0), |rank| rank.record.generation)
    }

    /// Begins a life: its feeds, its followers, its place in the record.
    fn begin(&mut self, generation: Generation) {
        let (engine, reports) = (&self.engine, &self.reports);
        // It was asked for a token and gave one: whatever rested before does not any more.
        engine.probe.resting.store(false, Ordering::Relaxed);
        let mut sources = events::sources(engine, &mut self.followers);
        if sources.is_empty() && engine.settings.kind != Kind::Openai {
            tracing::warn!("the engine publishes no KV events: what it holds stays unknown");
        }
        for rank in &mut self.ranks {
            rank.record.generation = generation;
            let (worker, block_size) = (rank.record.worker, engine.block_size);
            let sink = Arc::new(LifeSink::new(&reports.feeds, worker, generation, block_size));
            let outer = engine.tiers.as_ref().map(|tiers| tiers.rank(block_size));
            // What tiers hold is known of an engine that tells nothing, too.
            let source = sources.pop_front().or(outer.as_ref().map(|_| Source::Silent));
            if let Some(source) = source {
                let blocks = rank.record.total_blocks;
                let settings = events::settings(block_size, blocks, outer.is_some());
                let mut follower = Follower::new(worker, source, settings, sink.clone())
                    .counted(engine.metrics.follow.clone(), Arc::default());
                if let Some(pages) = engine.tiers.as_ref().and_then(TierService::pages) {
                    follower = follower.heard_by(pages);
                }
                let control = follower.control();
                sink.followed_by(control.clone());
                if let Some(outer) = outer {
                    follower = follower.beside(outer.clone());
                    self.followers.spawn(async move {
                        loop {
                            outer.told().await;
                            control.outer_changed().await;
                        }
                    });
                }
                self.followers.spawn(follower.run());
            }
            rank.life.send_replace(Life::Up(sink));
        }
        let shown = |rank: &RankState| RankOutlets {
            worker: rank.record.worker,
            cache: rank.cache.clone(),
            tally: rank.tally.clone(),
        };
        let ranks = self.ranks.iter().map(shown).collect();
        if let Some(page) = pages::MetricsPage::of(engine) {
            self.pages.spawn(pages::follow(page, ranks, engine.metrics.clone()));
        }
        let workers: Vec<_> = self.ranks.iter().map(|rank| rank.record).collect();
        let said = profile(&engine.settings, &engine.description);
        reports.record.send_modify(|record| {
            record.workers = workers;
            record.profile.adapters = said.adapters;
            record.profile.batch_tokens = said.batch_tokens;
            record.profile.handover = said.handover;
            record.profile.needs_prefill = said.needs_prefill;
        });
        reports.availability.set_resting(false);
        engine.metrics.lives.inc();
        engine.metrics.up.set(1);
        tracing::info!(%generation, url = &*engine.place.url(), "the engine serves");
    }

    /// Takes requests from now on, or none while the engine rests.
    fn rest(&self, rests: bool) {
        self.engine.probe.resting.store(rests, Ordering::Relaxed);
        self.reports.availability.set_resting(rests);
    }

    /// Ends a life: pickers first, then the requests that it had.
    fn end(&mut self, end: &End) {
        tracing::error!(cause = end.cause, why = end.why, "the engine's life ended");
        self.reports.record.send_modify(|record| record.workers.clear());
        self.reports.availability.publish();
        self.engine.metrics.up.set(0);
        self.reports.metrics.worker_failures.inc();
        // Dropping them ends them.
        (self.followers, self.pages) = (JoinSet::new(), JoinSet::new());
        for rank in &self.ranks {
            rank.life.send_replace(Life::Down(end.why.as_str().into()));
        }
    }

    /// Takes note of an engine that is back.
    fn returned(&mut self, description: Description) -> anyhow::Result<()> {
        let engine = &mut self.engine;
        let was = (engine.description.model.as_str(), engine.block_size);
        // One that does not tell is as the flags say.
        let block_size = description.block_size.unwrap_or(engine.block_size);
        let is = (description.model.as_str(), block_size);
        anyhow::ensure!(
            was == is && description.ranks == engine.description.ranks,
            "the engine came back as another: {was:?} was {is:?}, restart the agent"
        );
        let total_blocks = description.total_blocks.unwrap_or(engine.total_blocks);
        for rank in &mut self.ranks {
            rank.record.total_blocks = total_blocks;
            *rank.cache.lock() = Cache { total_blocks, ..Cache::default() };
        }
        engine.description = description;
        Ok(())
    }

    /// Does to the engine what an operator wants.
    fn operate(&mut self, order: OperationOrder) {
        let rested = self.engine.probe.resting.load(Ordering::Relaxed);
        if matches!(order.operation, Operation::Pause | Operation::Sleep { .. }) {
            // What came to it from now on would be held until it is told to go on.
            self.rest(true);
        }
        let (dialect, generation) = (self.engine.probe.dialect.clone(), self.generation());
        self.operations.spawn(async move {
            let done = tokio::time::timeout(OPERATION_TIMEOUT, dialect.operate(&order.operation));
            let late = || Err(Fault::Failed("it takes too long".into()));
            let result = done.await.unwrap_or_else(|_| late());
            // Where the engine does not answer now, the record follows with its next life.
            let description = match (&order.operation, &result) {
                (Operation::LoadAdapter { .. } | Operation::UnloadAdapter { .. }, Ok(())) => {
                    dialect.describe().await.ok()
                }
                _ => None,
            };
            OperationResult { order, generation, rested, result, description }
        });
    }

    /// Tells the fleet what follows from an operation, and then whoever asked for it.
    async fn operated(&mut self, done: OperationResult) {
        let OperationResult {
            order: OperationOrder { operation, answer }, generation, rested, ..
        } = done;
        let OperationResult { result, description, .. } = done;
        // A life that began since knows nothing of it.
        if generation == self.generation() {
            match &result {
                Ok(()) => self.follow_up(&operation, description).await,
                Err(_) => self.rest(rested),
            }
        }
        // Whoever asked may be gone.
        let _ = answer.send(result);
    }

    async fn follow_up(&mut self, operation: &Operation, description: Option<Description>) {
        if matches!(operation, Operation::Resume | Operation::Wake) {
            self.rest(false);
        }
        if self.engine.probe.dialect.forgets(operation) {
            for rank in &self.ranks {
                let life = rank.life.borrow().clone();
                if let Life::Up(sink) = life {
                    sink.cleared().await;
                }
            }
        }
        if let Some(now) = description {
            let adapters = now.adapters.clone();
            self.engine.description = now;
            self.reports.record.send_modify(|record| record.profile.adapters = adapters);
        }
    }
}

#[cfg(test)]
mod tests;
