//! Starts a stock engine, or finds the one that runs, and learns what it serves.

use super::engine::StockEngine;
use super::host::{Host, Limits, News};
use super::metrics::StockMetrics;
use super::probe::Probe;
use super::profile::profile;
use super::tiers::TierService;
use super::{launch, model};
use crate::config::{BLOCK_SIZE, StockSettings};
use crate::kv::peers::KvPeers;
use crate::model_loader::proxy_files;
use crate::served_model::{ModelEngines, ServedModel, WorkerSlot};
use anyhow::Context;
use stator_dialect::{Description, Kind};
use stator_protos::discovery::{ModelRecord, Role};
use stator_runtime::Shutdown;
use stator_runtime::metrics::Metrics;
use std::sync::{Arc, OnceLock};

/// Surroundings that an agent gives a stock engine.
pub(crate) struct EngineSurroundings<'a> {
    /// The agent's name, if it has one: the output of a started engine is logged under it.
    pub(crate) name: Option<&'a str>,
    /// The agent's metrics.
    pub(crate) metrics: &'a Metrics,
    /// Other agents, to exchange KV with.
    pub(crate) peers: Option<Arc<KvPeers>>,
}

/// Starts an engine or finds the one that runs, and waits until it serves; `None` where `shutdown`
/// came first.
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
    EngineSurroundings { name, metrics, peers }: EngineSurroundings<'_>,
    shutdown: &Shutdown,
) -> anyhow::Result<Option<ServedModel>> {
    let (files, limits) = model::read(&settings)?;
    let stock = StockMetrics::default();
    stock.show(metrics);
    // Before the engine, which looks for them when it starts.
    let tiers = TierService::serve(&settings, metrics, peers.clone())?;
    let kv_tiers = tiers.as_ref().map(TierService::place);
    let (launch, place) = launch::launch(&settings, name.unwrap_or("engine"), kv_tiers)?;
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
    // From here on a failure must end the engine: nobody else knows its process.
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
    if let Some(tiers) = &tiers {
        tiers.set_block_tokens(size.block_size);
    }
    let context_length = size.context_length(description.context_length.or(limits.context_length));
    let worker = |rank| WorkerSlot { engine: 0, rank, total_blocks: size.total_blocks };
    let (engine, url) = (&description.version, place.url());
    tracing::info!(engine, url = &*url, ranks = description.ranks, "engine is ready");
    Ok(Some(ServedModel {
        model: ModelRecord {
            name: settings.model_name.clone().unwrap_or_else(|| description.model.clone()),
            context_length,
            block_size: size.block_size,
            vocab_size: limits.vocab_size,
        },
        files: proxy_files(&files),
        workers: (0..description.ranks.max(1)).map(worker).collect(),
        profile: profile(&settings, &description),
        desk: tiers.as_ref().map(TierService::desk).unwrap_or_default(),
        rules: None,
        engines: ModelEngines::Stock(Box::new(StockEngine {
            settings,
            probe,
            host,
            place,
            description,
            block_size: size.block_size,
            total_blocks: size.total_blocks,
            metrics: stock,
            tiers,
            peers,
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

#[cfg(test)]
mod tests {
    use super::super::testkit::*;
    use super::*;
    use stator_protos::discovery::ProfileRecord;

    /// The profile of an SGLang with these flags, which reports whether it needs prefill.
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
