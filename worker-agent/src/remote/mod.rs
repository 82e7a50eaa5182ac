//! Engines that are processes of their own: vLLM, SGLang, TensorRT-LLM.
//!
//! [`start`] brings one up and finds out what it serves; [`keeper`] keeps it serving, one life
//! after the other; a [`driver`] per rank has its requests, each on its way in [`request`]. How an
//! engine is spoken to is the dialect's business, how its process is kept the host's.

mod driver;
mod events;
mod host;
mod keeper;
mod launch;
mod metrics;
mod model;
mod pages;
mod peers;
mod probe;
mod request;
#[cfg(test)]
mod request_tests;
mod sink;
mod tally;
#[cfg(test)]
mod testkit;

pub(crate) use keeper::{Keeper, gave_up};

use crate::config::StockSettings;
use crate::crew::{Crew, Engines, Place};
use crate::load::proxy_files;
use crate::model_files::ModelFiles;
use crate::service::WorkerHandle;
use crate::worker::{COMMANDS_MAX, Status};
use crate::workers::{Reports, Workers};
use anyhow::Context;
use driver::{Cache, Driver, Life};
use host::{Host, Limits, News};
use keeper::RankState;
use metrics::StockMetrics;
use parking_lot::Mutex;
use peers::Peers;
use probe::Probe;
use request::Rank;
use stator_dialect::{Connector, Description, Kind, Options};
use stator_protos::discovery::{ModelRecord, ProfileRecord, Role, WorkerRecord};
use stator_runtime::metrics::Metrics;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use tally::Tally;
use tokio::sync::{mpsc, oneshot, watch};

/// A stock engine that serves.
pub(crate) struct Engine {
    settings: StockSettings,
    probe: Arc<Probe>,
    host: Host,
    url: String,
    description: Description,
    block_size: u32,
    total_blocks: u32,
    metrics: StockMetrics,
}

/// Starts an engine or finds the one that runs, and waits until it serves.
///
/// # Errors
///
/// When it does not start, or does not say what an agent must know of it.
///
/// # Cancel safety
///
/// Dropping the future ends an engine that was started.
pub(crate) async fn start(settings: StockSettings, metrics: &Metrics) -> anyhow::Result<Crew> {
    let files = ModelFiles::open(&settings.model).context("model")?;
    let limits = model::limits(&files).context("model")?;
    let stock = StockMetrics::default();
    metrics.register(|registry| stock.register(registry));

    let (launch, url) = launch::launch(&settings)?;
    let api_key = settings.api_key.clone();
    let options = Options { url: url.clone(), api_key, connector: connector(&settings) };
    let probe = Arc::new(Probe {
        dialect: stator_dialect::connect(settings.kind, options).context("attach")?,
        tallies: OnceLock::new(),
        resting: AtomicBool::new(false),
        canary_idle: settings.canary_idle,
    });
    let patience = Limits {
        start: settings.start_timeout,
        hang: settings.hang_timeout,
        stop: settings.stop_grace,
    };
    let mut host = Host::start(launch, probe.clone(), patience);
    let description = loop {
        match host.next().await {
            Some(News::Up(description)) => break *description,
            Some(News::Failed(cause)) => stock.ended(cause),
            Some(News::Down(_)) => {}
            Some(News::Over(error)) => return Err(error),
            None => anyhow::bail!("nobody watches over the engine any more"),
        }
    };

    let block_size = description.block_size.filter(|tokens| *tokens > 0);
    let block_size = block_size.context("the engine does not tell its block size")?;
    let total_blocks = description.total_blocks.context("the engine does not tell its blocks")?;
    let fits = total_blocks.saturating_mul(block_size);
    let context = description.context_length.or(limits.context_length).unwrap_or(fits);
    let place = |rank| Place { engine: 0, rank, total_blocks };
    tracing::info!(engine = description.version, url, ranks = description.ranks, "engine is ready");
    Ok(Crew {
        model: ModelRecord {
            name: settings.model_name.clone().unwrap_or_else(|| description.model.clone()),
            context_length: context.min(fits),
            block_size,
            vocab_size: limits.vocab_size,
        },
        files: proxy_files(&files),
        places: (0..description.ranks.max(1)).map(place).collect(),
        profile: profile(&settings, &description),
        engines: Engines::Stock(Box::new(Engine {
            settings,
            probe,
            host,
            url,
            description,
            block_size,
            total_blocks,
            metrics: stock,
        })),
    })
}

/// How KV leaves or enters the engine, where it does not say so itself.
fn connector(settings: &StockSettings) -> Option<Connector> {
    let role = match settings.role {
        Role::Prefill => stator_dialect::Role::Prefill,
        Role::Decode => stator_dialect::Role::Decode,
        Role::Aggregated | Role::Encode => return None,
    };
    let usual = match settings.kind {
        Kind::Vllm => "NixlConnector",
        Kind::Sglang => "mooncake",
        Kind::Trtllm => "DEFAULT",
    };
    let name = settings.connector.clone().unwrap_or_else(|| usual.into());
    Some(Connector { name, role, bootstrap: None })
}

/// What an engine says of itself that placement must know.
fn profile(settings: &StockSettings, description: &Description) -> ProfileRecord {
    let handover = description.handover.as_ref().filter(|_| settings.role == Role::Prefill);
    ProfileRecord {
        adapters: description.adapters.clone(),
        batch_tokens: description.batch_tokens.unwrap_or(0),
        handover: handover.map(|json| json.get().to_owned()),
        ..ProfileRecord::default()
    }
}

impl Engine {
    /// Runs a driver per rank, and what keeps the engine serving.
    pub(crate) fn run(self, records: &[WorkerRecord], reports: &Reports) -> (Workers, Keeper) {
        let mut workers = Workers::default();
        let peers = Arc::new(Peers::default());
        let ranks = records.iter().map(|record| {
            let (state, handle, ended) = self.rank(*record, &peers, reports, records.len());
            workers.handles.push(handle);
            workers.drivers.push(ended);
            state
        });
        let ranks: Vec<RankState> = ranks.collect();
        let tallies = ranks.iter().map(|rank| rank.tally.clone()).collect();
        self.probe.tallies.set(tallies).expect("an engine is run once");
        let keeper = Keeper::start(self, ranks, reports.clone());
        (workers, keeper)
    }

    fn rank(
        &self,
        record: WorkerRecord,
        peers: &Arc<Peers>,
        reports: &Reports,
        ranks: usize,
    ) -> (RankState, WorkerHandle, oneshot::Receiver<()>) {
        let worker = record.worker;
        let rank = Rank {
            dialect: self.probe.dialect.clone(),
            rank: (ranks > 1).then_some(worker.rank),
            tally: Arc::new(Tally::default()),
            peers: peers.clone(),
            prefill_timeout: self.settings.prefill_timeout,
            metrics: reports.metrics.clone(),
            stock: self.metrics.clone(),
        };
        let tally = rank.tally.clone();
        let cache =
            Arc::new(Mutex::new(Cache { total_blocks: record.total_blocks, ..Cache::default() }));
        let (life, lives) = watch::channel(Life::Down("it starts".into()));
        let gauges = reports.metrics.worker(worker);
        let driver =
            Driver::new(Arc::new(rank), lives, (cache.clone(), gauges), reports.load_interval);
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let (ending, ended) = oneshot::channel();
        tokio::spawn(async move {
            driver.run(inbox).await;
            // Nobody may be waiting for it.
            let _ = ending.send(());
        });
        let handle = WorkerHandle { worker, commands, status: Arc::new(Status::default()) };
        (RankState { record, tally, cache, life }, handle, ended)
    }
}
