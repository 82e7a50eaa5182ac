//! Engines that are processes of their own: vLLM, SGLang, TensorRT-LLM, and any server of the
//! OpenAI API.
//!
//! [`start`] brings one up and finds out what it serves; [`keeper`] keeps it serving, one life
//! after the other; a [`driver`] per rank has its requests, each on its way in [`request`]. The
//! dialect speaks to the engine, the host keeps its process.

mod driver;
mod events;
mod host;
mod keeper;
mod launch;
mod metrics;
mod model;
mod openai;
mod pages;
mod paired;
#[cfg(test)]
mod paired_tests;
mod place;
mod probe;
mod request;
#[cfg(test)]
mod request_tests;
mod sink;
mod tally;
#[cfg(test)]
mod testkit;
mod trace;

pub(crate) use keeper::{Keeper, gave_up};

use crate::config::{BLOCK_SIZE, StockSettings};
use crate::model_loader::proxy_files;
use crate::prefill::agents::Peers;
use crate::request_plane::service::WorkerHandle;
use crate::served_model::{Crew, Engines, WorkerSlot};
use crate::worker::{COMMANDS_MAX, Status};
use crate::workers::{Reports, Workers};
use anyhow::Context;
use driver::{Cache, Driver, Life, RankReporting};
use host::{Host, Limits, News};
use keeper::RankState;
use metrics::StockMetrics;
use parking_lot::Mutex;
use probe::Probe;
use request::Rank;
use stator_dialect::{Description, Kind};
use stator_protos::discovery::{ModelRecord, ProfileRecord, Role, WorkerRecord};
use stator_runtime::metrics::Metrics;
use stator_runtime::{Lane, Shutdown};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tally::Tally;
use tokio::sync::{mpsc, oneshot, watch};

/// Tokens of several requests are read, and sent on, together where they come within this time:
/// it is the most by which one of them is late.
const PACE: Duration = Duration::from_micros(500);

/// A stock engine that serves.
pub(crate) struct Engine {
    settings: StockSettings,
    probe: Arc<Probe>,
    host: Host,
    place: Arc<place::EnginePlace>,
    description: Description,
    block_size: u32,
    total_blocks: u32,
    metrics: StockMetrics,
}

/// Starts an engine or finds the one that runs, and waits until it serves; `None` where `shutdown`
/// came first. The output of a started engine is logged under `name`.
///
/// # Errors
///
/// When it does not start, or does not say what an agent must know of it. It has ended then.
///
/// # Cancel safety
///
/// Dropping the future kills an engine that was started.
pub(crate) async fn start(
    settings: StockSettings,
    name: Option<&str>,
    metrics: &Metrics,
    shutdown: &Shutdown,
) -> anyhow::Result<Option<Crew>> {
    let (files, limits) = model::read(&settings)?;
    let stock = StockMetrics::default();
    stock.show(metrics);
    let (launch, place) = launch::launch(&settings, name.unwrap_or("engine"))?;
    let probe = Arc::new(Probe {
        dialect: place.clone(),
        tallies: OnceLock::new(),
        resting: Arc::default(),
        canary_idle: settings.canary_idle,
    });
    let patience = Limits {
        start: settings.start_timeout,
        hang: settings.hang_timeout,
        stop: settings.stop_grace,
    };
    let mut host = Host::start(launch, probe.clone(), patience);
    let served = tokio::select! {
        served = serves(&settings, &mut host, &stock) => served.map(Some),
        () = shutdown.wait() => Ok(None),
    };
    let (description, size) = match served {
        Ok(Some(served)) => served,
        ended => {
            host.stop().await;
            return ended.map(|_| None);
        }
    };
    let context_length = size.context_length(description.context_length.or(limits.context_length));
    let worker = |rank| WorkerSlot { engine: 0, rank, total_blocks: size.total_blocks };
    let (engine, url) = (&description.version, place.url());
    tracing::info!(engine, url = &*url, ranks = description.ranks, "engine is ready");
    Ok(Some(Crew {
        model: ModelRecord {
            name: settings.model_name.clone().unwrap_or_else(|| description.model.clone()),
            context_length,
            block_size: size.block_size,
            vocab_size: limits.vocab_size,
        },
        files: proxy_files(&files),
        places: (0..description.ranks.max(1)).map(worker).collect(),
        profile: profile(&settings, &description),
        engines: Engines::Stock(Box::new(Engine {
            settings,
            probe,
            host,
            place,
            description,
            block_size: size.block_size,
            total_blocks: size.total_blocks,
            metrics: stock,
        })),
    }))
}

/// KV blocks of each rank, 0 if unknown, and tokens of each block.
struct Size {
    block_size: u32,
    total_blocks: u32,
}

impl Size {
    /// The engine's own report, or the flags' values where it has none.
    fn of(settings: &StockSettings, description: &Description) -> anyhow::Result<Self> {
        if settings.kind == Kind::Openai {
            let block_size = settings.block_size.unwrap_or(BLOCK_SIZE);
            return Ok(Self { block_size, total_blocks: 0 });
        }
        let told = description.block_size.filter(|tokens| *tokens > 0);
        let block_size = told.or(settings.block_size);
        let total_blocks = description.total_blocks.or(settings.total_blocks);
        Ok(Self {
            block_size: block_size.context("block-size: the engine does not tell it")?,
            total_blocks: total_blocks.context("total-blocks: the engine does not tell them")?,
        })
    }

    /// Most tokens of prompt and answer together: the reported limit, as far as the KV has room; 0
    /// if unknown.
    fn context_length(&self, told: Option<u32>) -> u32 {
        match self.total_blocks.saturating_mul(self.block_size) {
            0 => told.unwrap_or(0),
            fits => told.unwrap_or(fits).min(fits),
        }
    }
}

/// Waits until an engine serves for the first time, and says what it is.
async fn serves(
    settings: &StockSettings,
    host: &mut Host,
    stock: &StockMetrics,
) -> anyhow::Result<(Description, Size)> {
    let description = loop {
        match host.next().await {
            Some(News::Up(description)) => break *description,
            Some(News::Ended(cause)) => stock.ended(cause),
            Some(News::Down(_)) => {}
            Some(News::Over(error)) => return Err(error),
            None => anyhow::bail!("nobody watches over the engine any more"),
        }
    };
    let size = Size::of(settings, &description)?;
    if description.needs_prefill && settings.role != Role::Decode {
        anyhow::bail!("role: the engine answers only from prompts of others, with --role decode");
    }
    Ok((description, size))
}

/// The parts of an engine's description that placement needs.
fn profile(settings: &StockSettings, description: &Description) -> ProfileRecord {
    let handover = description.handover.as_ref().filter(|_| settings.role == Role::Prefill);
    ProfileRecord {
        adapters: description.adapters.clone(),
        batch_tokens: description.batch_tokens.unwrap_or(0),
        handover: handover.map(|json| json.get().to_owned()),
        needs_prefill: settings.role == Role::Decode && description.needs_prefill,
        api: openai::api(settings, description),
        ..ProfileRecord::default()
    }
}

/// Setup that all ranks of an engine share.
struct RankSetup<'a> {
    peers: &'a Arc<Peers>,
    reports: &'a Reports,
    lane: &'a Lane,
    /// Number of ranks.
    ranks: usize,
}

impl Engine {
    /// Runs a driver per rank, and what keeps the engine serving.
    ///
    /// # Errors
    ///
    /// When a thread cannot be started.
    pub(crate) fn run(
        self,
        records: &[WorkerRecord],
        reports: &Reports,
        peers: Arc<Peers>,
    ) -> anyhow::Result<(Workers, Keeper)> {
        let lane = Lane::paced("tokens", PACE).context("cannot start a thread for tokens")?;
        let mut workers = Workers::default();
        let setup = RankSetup { peers: &peers, reports, lane: &lane, ranks: records.len() };
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

    fn rank(
        &self,
        record: WorkerRecord,
        &RankSetup { peers, reports, lane, ranks }: &RankSetup<'_>,
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
            resting: self.probe.resting.clone(),
        };
        let tally = rank.tally.clone();
        let cache =
            Arc::new(Mutex::new(Cache { total_blocks: record.total_blocks, ..Cache::default() }));
        let (life, lives) = watch::channel(Life::Down("it starts".into()));
        let gauges = reports.metrics.worker(worker);
        let load_interval = reports.load_interval;
        let reporting = RankReporting { cache: cache.clone(), gauges, load_interval };
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

#[cfg(test)]
mod tests {
    use super::testkit::*;
    use super::*;

    /// What is found out of an SGLang with these flags that says whether it needs prefill.
    async fn check(flags: &[&str], needs_prefill: bool) -> Result<ProfileRecord, String> {
        let flags = [&["--engine=sglang", "--model=/m"], flags].concat();
        let (settings, (news, mut host)) = (stock_settings(&flags), Host::scripted());
        let described = Scripted::default().description.into_inner();
        let described = Description { needs_prefill, ..described };
        news.send(News::Up(Box::new(described))).await.unwrap();
        let served = serves(&settings, &mut host, &StockMetrics::default()).await;
        let (description, _) = served.map_err(|error| error.to_string())?;
        Ok(profile(&settings, &description))
    }

    #[tokio::test]
    async fn an_engine_that_needs_prefill_decodes_and_its_agent_says_so() {
        assert!(check(&["--role=decode"], true).await.unwrap().needs_prefill);
        assert!(!check(&["--role=decode"], false).await.unwrap().needs_prefill);
        let error = check(&["--attach=http://127.0.0.1:1"], true).await.unwrap_err();
        assert!(error.starts_with("role: ") && error.ends_with("--role decode"), "{error}");
    }
}
