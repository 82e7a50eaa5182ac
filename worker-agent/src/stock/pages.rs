//! The engine's own metrics: under one vocabulary for all engines, and under the engine's own
//! names.

use super::driver::Cache;
use super::engine::StockEngine;
use super::metrics::{RankGauges, StockMetrics};
use super::tally::Tally;
use parking_lot::Mutex;
use stator_dialect::Kind;
use stator_http::{Bearer, TlsOptions, Url};
use stator_protos::{WorkerId, WorkerRank};
use stator_signals::families::{self, Families};
use stator_signals::report::{self, EngineReport, PollSettings, Poller};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Pause between two reads of the page.
const INTERVAL: Duration = Duration::from_secs(1);
/// Missed pages in a row after which the last page's values are no longer shown.
const MISSED_MAX: u32 = 10;

/// The page of an engine.
pub(super) struct MetricsPage {
    kind: report::Engine,
    /// Place of the engine in this life.
    url: Arc<str>,
    bearer: Option<Bearer>,
    /// Longest text of its own families; 0 shows none.
    own_bytes_max: usize,
}

/// Destination of the values of one rank.
pub(super) struct RankOutlets {
    pub(super) worker: WorkerRank,
    pub(super) cache: Arc<Mutex<Cache>>,
    pub(super) tally: Arc<Tally>,
}

impl MetricsPage {
    /// That of an engine where it is now; nothing where nobody knows what its page would say.
    pub(super) fn of(engine: &StockEngine) -> Option<Self> {
        let settings = &engine.settings;
        Some(Self {
            kind: match settings.kind {
                Kind::Vllm => report::Engine::Vllm,
                Kind::Sglang => report::Engine::Sglang,
                Kind::Trtllm => report::Engine::TrtLlm,
                Kind::Openai => return None,
            },
            url: engine.place.url(),
            bearer: settings.api_key.as_ref().and_then(|key| Bearer::new(&key.0)),
            own_bytes_max: settings.own_metrics_bytes_max,
        })
    }

    fn poller(&self) -> Option<Poller> {
        let path = match self.kind {
            report::Engine::Vllm | report::Engine::Sglang => "/metrics",
            report::Engine::TrtLlm => "/prometheus/metrics",
        };
        let url = Url::parse(&self.url).ok()?;
        let origin = url.origin(&TlsOptions::default()).ok()?;
        let target = format!("{}{path}", url.target.trim_end_matches('/'));
        let settings = PollSettings { bearer: self.bearer.clone(), ..PollSettings::default() };
        Some(Poller::new(self.kind, origin, &target, settings))
    }

    /// The part of the page that is shown under the engine's own names.
    fn own(&self, worker: WorkerId, page: &[u8]) -> Families {
        let label = worker.to_string();
        families::republish(self.kind, page, ("worker", &label), self.own_bytes_max)
    }
}

/// Reads the engine's page again and again, until dropped. An engine without one is watched by
/// what is sent to it alone.
pub(super) async fn follow(source: MetricsPage, ranks: Vec<RankOutlets>, metrics: StockMetrics) {
    let Some(mut poller) = source.poller() else {
        return tracing::warn!(url = &*source.url, "the engine's metrics cannot be read there");
    };
    let mut gauges: Vec<_> = ranks.iter().map(|rank| metrics.rank(rank.worker)).collect();
    let own = OwnFamilies(metrics.clone());
    let mut missed = 0;
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match poller.poll().await {
            Ok(page) => {
                missed = 0;
                for report in page.reports {
                    let at = ranks.iter().position(|shown| shown.worker.rank == report.rank);
                    if let Some(at) = at {
                        show(report, &ranks[at], &mut gauges[at]);
                    }
                }
                if let Some(rank) = ranks.first().filter(|_| source.own_bytes_max > 0) {
                    own.0.show_own(source.own(rank.worker.worker, page.text));
                }
            }
            Err(error) => {
                // Numbers of an old page would pass for the load of now.
                for rank in &ranks {
                    rank.cache.lock().forget_requests();
                }
                missed += 1;
                if missed == MISSED_MAX {
                    own.0.show_own(Families::default());
                }
                metrics.pages_failed.inc();
                tracing::debug!(%error, "no metrics page");
            }
        }
    }
}

/// The engine's own metrics on the page, shown no longer than this lives.
struct OwnFamilies(StockMetrics);

impl Drop for OwnFamilies {
    fn drop(&mut self) {
        self.0.show_own(Families::default());
    }
}

fn show(report: &EngineReport, shown: &RankOutlets, gauges: &mut RankGauges) {
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

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
