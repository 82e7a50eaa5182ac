//! Starts the drivers of an agent's workers: tasks for engines that only take time, threads for
//! engines that compute.

use crate::availability::Availability;
use crate::events::Feeds;
use crate::kv::fetch::Pairing;
use crate::metrics::AgentMetrics;
use crate::request_plane::service::WorkerHandle;
use crate::served_model::OwnWorker;
use crate::worker::{COMMANDS_MAX, Driver, Reporting, Status};
use anyhow::Context;
use stator_protos::discovery::{AgentRecord, WorkerRecord};
use stator_runtime::Lane;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Destination of the reports of all workers.
#[derive(Clone)]
pub(crate) struct Reports {
    /// Their events and load.
    pub(crate) feeds: Arc<Feeds>,
    /// Shortest time between two load reports of a busy worker.
    pub(crate) load_interval: Duration,
    /// Counters of the agent.
    pub(crate) metrics: AgentMetrics,
    /// The agent's record in the fleet.
    pub(crate) record: Arc<watch::Sender<AgentRecord>>,
    /// Whether it takes requests.
    pub(crate) availability: Availability,
}

/// The agent's workers, running.
#[derive(Default)]
pub(crate) struct Workers {
    pub(crate) handles: Vec<WorkerHandle>,
    /// Each ends with its driver, which ends with its commands.
    pub(crate) drivers: Vec<oneshot::Receiver<()>>,
    /// Lane that hands on the workers' tokens, if it is not the main runtime.
    pub(crate) lane: Option<Lane>,
}

/// Waits for the ends of drivers, all together at most `limit`: an engine may be in the middle of
/// a long step.
pub(crate) async fn ended(drivers: Vec<oneshot::Receiver<()>>, limit: Duration) {
    let all = async {
        for driver in drivers {
            // A sender that is gone has ended too.
            let _ = driver.await;
        }
    };
    if tokio::time::timeout(limit, all).await.is_err() {
        tracing::warn!(?limit, "engines are still in their last steps");
    }
}

impl Workers {
    /// Starts a driver per engine, in order of the records.
    ///
    /// # Errors
    ///
    /// When a thread cannot be started.
    pub(crate) fn start(
        own: Vec<OwnWorker>,
        records: &[WorkerRecord],
        reports: &Reports,
        pairing: &Pairing,
    ) -> anyhow::Result<Self> {
        let mut workers = Self::default();
        for (worker, record) in own.into_iter().zip(records) {
            workers.start_one(worker, *record, reports, pairing)?;
        }
        Ok(workers)
    }

    fn start_one(
        &mut self,
        own: OwnWorker,
        record: WorkerRecord,
        reports: &Reports,
        pairing: &Pairing,
    ) -> anyhow::Result<()> {
        let OwnWorker { loaded: engine, tiers } = own;
        let WorkerRecord { worker, generation, .. } = record;
        let metrics = &reports.metrics;
        let feed = reports.feeds.open(worker, generation);
        let status = Arc::new(Status::default());
        let agent_record = reports.record.clone();
        let driver = Driver::new(
            engine.engine,
            Reporting {
                feed,
                load_interval: reports.load_interval,
                metrics: metrics.clone(),
                gauges: metrics.worker(worker),
                status: status.clone(),
                on_death: Box::new(move || {
                    agent_record
                        .send_modify(|record| record.workers.retain(|w| w.worker != worker));
                }),
            },
            pairing.clone(),
        )
        .with_tiers(tiers);
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let (ending, ended) = oneshot::channel();
        let run = async move {
            driver.run(inbox).await;
            // Nobody may be waiting for it.
            let _ = ending.send(());
        };
        if engine.computes {
            let runtime = tokio::runtime::Handle::current();
            std::thread::Builder::new()
                .name(format!("engine {worker}"))
                .spawn(move || runtime.block_on(run))
                .context("cannot start an engine's thread")?;
        } else {
            tokio::spawn(run);
        }
        self.handles.push(WorkerHandle { worker, commands, status });
        self.drivers.push(ended);
        Ok(())
    }
}
