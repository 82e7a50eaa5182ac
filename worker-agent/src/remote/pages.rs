//! What the engine's own metrics say of it, under one vocabulary whichever engine it is.

use super::driver::Cache;
use super::metrics::{RankGauges, StockMetrics};
use super::tally::Tally;
use parking_lot::Mutex;
use stator_dialect::Kind;
use stator_engine_signals::fetch::{TlsOptions, Url};
use stator_engine_signals::report::{Engine, EngineReport, PollSettings, Poller};
use stator_protos::WorkerRank;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// How often the page is read.
const INTERVAL: Duration = Duration::from_secs(1);

/// Where what is read of one rank goes.
pub(super) struct Shown {
    pub(super) worker: WorkerRank,
    pub(super) cache: Arc<Mutex<Cache>>,
    pub(super) tally: Arc<Tally>,
}

/// Reads the engine's page again and again, until dropped. An engine without one is watched by
/// what is sent to it alone.
pub(super) async fn follow(kind: Kind, url: String, ranks: Vec<Shown>, metrics: StockMetrics) {
    let Some(mut poller) = poller(kind, &url) else {
        return tracing::warn!(url, "the engine's metrics cannot be read there");
    };
    let gauges: Vec<_> = ranks.iter().map(|rank| metrics.rank(rank.worker)).collect();
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match poller.poll().await {
            Ok(page) => {
                for report in page.reports {
                    let at = ranks.iter().position(|shown| shown.worker.rank == report.rank);
                    if let Some(at) = at {
                        show(report, &ranks[at], &gauges[at]);
                    }
                }
            }
            Err(error) => {
                for rank in &ranks {
                    rank.cache.lock().forget_requests();
                }
                metrics.pages_failed.inc();
                tracing::debug!(%error, "no metrics page");
            }
        }
    }
}

fn poller(kind: Kind, url: &str) -> Option<Poller> {
    let (engine, path) = match kind {
        Kind::Vllm => (Engine::Vllm, "/metrics"),
        Kind::Sglang => (Engine::Sglang, "/metrics"),
        Kind::Trtllm => (Engine::TrtLlm, "/prometheus/metrics"),
    };
    let url = Url::parse(url).ok()?;
    let origin = url.origin(&TlsOptions::default()).ok()?;
    let target = format!("{}{path}", url.target.trim_end_matches('/'));
    Some(Poller::new(engine, origin, &target, PollSettings::default()))
}

fn show(report: &EngineReport, shown: &Shown, gauges: &RankGauges) {
    {
        let mut cache = shown.cache.lock();
        cache.used = report.kv_usage.unwrap_or(cache.used);
        cache.total_blocks = report.total_blocks.unwrap_or(cache.total_blocks);
        cache.running = report.running.unwrap_or(0);
        cache.waiting = report.waiting.unwrap_or(0);
    }
    if let Some(steps) = report.steps {
        shown.tally.engine_steps(steps);
    }
    gauges.set(report);
}
