//! Runs a stock engine: a driver per rank, and the task that keeps the engine serving.

use super::driver::{Cache, Driver, Life, RankReporting};
use super::engine::StockEngine;
use super::keeper::{Keeper, RankState};
use super::read_ahead::ReadAhead;
use super::request::Rank;
use super::tally::Tally;
use super::tiers::TierService;
use crate::kv::prompt_pins::PromptPins;
use crate::prefill::agents::PrefillAgents;
use crate::request_plane::service::WorkerHandle;
use crate::worker::{COMMANDS_MAX, Status};
use crate::workers::{Reports, Workers};
use anyhow::Context;
use parking_lot::Mutex;
use stator_dialect::Kind;
use stator_protos::discovery::WorkerRecord;
use stator_runtime::Lane;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Tokens of several requests are read, and sent on, together where they come within this time:
/// it is the most by which one of them is late.
const PACE: Duration = Duration::from_micros(500);

/// Setup that all ranks of an engine share.
struct RankSetup<'a> {
    prefill_agents: &'a Arc<PrefillAgents>,
    reports: &'a Reports,
    lane: &'a Lane,
    /// Number of ranks.
    ranks: usize,
}

impl StockEngine {
    /// Runs a driver per rank, and what keeps the engine serving.
    ///
    /// # Errors
    ///
    /// When a thread cannot be started.
    pub(crate) fn run(
        self,
        records: &[WorkerRecord],
        reports: &Reports,
        prefill_agents: Arc<PrefillAgents>,
    ) -> anyhow::Result<(Workers, Keeper)> {
        let lane = Lane::paced("tokens", PACE).context("cannot start a thread for tokens")?;
        let mut workers = Workers::default();
        let setup = RankSetup {
            prefill_agents: &prefill_agents,
            reports,
            lane: &lane,
            ranks: records.len(),
        };
        let ranks = records.iter().map(|record| {
            let (state, handle, ended) = self.rank(*record, &setup);
            workers.handles.push(handle);
            workers.drivers.push(ended);
            state
        });
        let ranks: Vec<RankState> = ranks.collect();
        let tallies = ranks.iter().map(|rank| rank.tally.clone()).collect();
        self.probe.tallies.set(tallies).expect("an engine is run once");
        let keeper = Keeper::start(self, ranks, reports.clone());
        workers.lane = Some(lane);
        Ok((workers, keeper))
    }

    /// Pins prompts in the engine's tiers, if it has tiers and clients may.
    fn pins(&self) -> Option<PromptPins> {
        let may = self.settings.pins.share_percent > 0;
        let tiers = self.tiers.as_ref().filter(|_| may)?;
        Some(PromptPins::new(tiers.board(), NonZeroU32::new(self.block_size)?))
    }

    fn rank(
        &self,
        record: WorkerRecord,
        &RankSetup { prefill_agents, reports, lane, ranks }: &RankSetup<'_>,
    ) -> (RankState, WorkerHandle, oneshot::Receiver<()>) {
        let worker = record.worker;
        let block_size = NonZeroU32::new(self.block_size);
        let tiers = self.tiers.as_ref().map(TierService::board);
        let rank = Rank {
            dialect: self.probe.dialect.clone(),
            rank: (ranks > 1).then_some(worker.rank),
            tally: Arc::new(Tally::default()),
            prefill_agents: prefill_agents.clone(),
            prefill_timeout: self.settings.prefill_timeout,
            metrics: reports.metrics.clone(),
            stock: self.metrics.clone(),
            resting: self.probe.resting.clone(),
            read_ahead: tiers.clone().zip(block_size).map(|(of, size)| ReadAhead::new(of, size)),
            peers: self.peers.clone(),
            pins: self.pins(),
            page_tokens: block_size.filter(|_| self.settings.kind == Kind::Sglang),
        };
        let tally = rank.tally.clone();
        let cache =
            Arc::new(Mutex::new(Cache { total_blocks: record.total_blocks, ..Cache::default() }));
        let (life, lives) = watch::channel(Life::Down("it starts".into()));
        let gauges = reports.metrics.worker(worker);
        let load_interval = reports.load_interval;
        let tiers = tiers.map(|tiers| (tiers, self.block_size));
        let reporting = RankReporting { cache: cache.clone(), tiers, gauges, load_interval };
        let driver = Driver::new(Arc::new(rank), lives, reporting);
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let (ending, ended) = oneshot::channel();
        lane.handle().spawn(async move {
            driver.run(inbox).await;
            // Nobody may be waiting for it.
            let _ = ending.send(());
        });
        let handle = WorkerHandle { worker, commands, status: Arc::new(Status::default()) };
        (RankState { record, tally, cache, life }, handle, ended)
    }
}
