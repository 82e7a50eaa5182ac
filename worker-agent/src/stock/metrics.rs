//! Metrics of agents whose engine is a process of its own. Counters end in `_total` where they are
//! rendered.

use super::host::UNHEALTHY;
use crate::metrics::{PrefilledBy, Prefills};
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stator_protos::WorkerRank;
use stator_runtime::metrics::Metrics;
use stator_signals::events::FollowMetrics;
use stator_signals::families::Families;
use stator_signals::report::EngineReport;
use stator_supervise::Cause;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Gauges of an engine's own report: name, help, and its place in the report. Counters of an engine
/// are gauges here: they restart with the engine, not with the agent.
const REPORT_GAUGES: [(&str, &str, Read); 12] = [
    ("engine_requests_running", "Requests in the engine's batch", |r, _| r.running.map(f64::from)),
    ("engine_requests_waiting", "Requests that wait in it", |r, _| r.waiting.map(f64::from)),
    ("engine_kv_usage_ratio", "Share of its KV blocks in use", |r, _| r.kv_usage),
    ("engine_kv_blocks", "Its KV blocks in all", |r, _| r.total_blocks.map(f64::from)),
    ("engine_kv_blocks_used", "Its KV blocks in use", |r, _| {
        Some((r.kv_usage? * f64::from(r.total_blocks?)).round())
    }),
    (
        "engine_prefix_query_tokens",
        "Prompt tokens looked for in its prefix cache, since its start",
        |r, _| r.prefix_queries.map(|count| count as f64),
    ),
    ("engine_prefix_hit_tokens", "Prompt tokens found there, since its start", |r, _| {
        r.prefix_hits.map(|count| count as f64)
    }),
    ("engine_prompt_tokens", "Prompt tokens it took in, since its start", |r, _| {
        r.prompt_tokens.map(|count| count as f64)
    }),
    ("engine_generated_tokens", "Tokens it produced, since its start", |r, _| {
        r.generation_tokens.map(|count| count as f64)
    }),
    ("engine_preemptions", "Requests that it put back, since its start", |r, _| {
        r.preemptions.map(|count| count as f64)
    }),
    ("engine_steps", "Steps it took, since its start", |r, _| r.steps.map(|count| count as f64)),
    (
        "engine_step_seconds",
        "How long a step took on average, in the last second that had one; of vLLM, which does not \
         time its steps, the time from one token of a request to its next",
        |r, before| r.step_s(before),
    ),
];

/// Takes a value from the present report of an engine, and the one before.
type Read = fn(&EngineReport, &EngineReport) -> Option<f64>;

type ReportGauge = Family<RankLabels, Gauge<f64, AtomicU64>>;

/// Metrics of one stock engine. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct StockMetrics {
    prefills: Prefills,
    ends: Family<EndLabels, Counter>,
    told: [ReportGauge; REPORT_GAUGES.len()],
    /// 1 while the engine serves.
    pub(crate) up: Gauge,
    /// Lives of the engine that began.
    pub(crate) lives: Counter,
    /// Metrics pages of the engine that could not be read.
    pub(crate) pages_failed: Counter,
    /// Counters of its followed KV events.
    pub(crate) follow: FollowMetrics,
    /// Text of the engine's own metrics.
    own: Arc<Mutex<String>>,
    /// Families of the engine for which there was no room.
    families_left_out: Gauge,
}

/// Gauges of one rank, looked up once.
#[derive(Debug)]
pub(crate) struct RankGauges {
    gauges: [Gauge<f64, AtomicU64>; REPORT_GAUGES.len()],
    /// The last report.
    last: EngineReport,
}

impl RankGauges {
    /// Shows what a page says; what it does not say stays as it was.
    pub(crate) fn set(&mut self, report: &EngineReport) {
        for (gauge, (_, _, told)) in self.gauges.iter().zip(REPORT_GAUGES) {
            if let Some(value) = told(report, &self.last) {
                gauge.set(value);
            }
        }
        self.last.clone_from(report);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RankLabels {
    worker: String,
    rank: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    cause: &'static str,
}

impl StockMetrics {
    /// Makes the metrics known to the process, and shows the engine's own beside them.
    pub(crate) fn show(&self, metrics: &Metrics) {
        metrics.register(|registry| self.register(registry));
        let own = self.own.clone();
        metrics.register_text(move |out| out.push_str(&own.lock()));
    }

    /// Makes the metrics known to a registry.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("stator_agent");
        self.prefills.register(registry);
        registry.register("engine_up", "1 while the engine serves", self.up.clone());
        registry.register("engine_lives", "Lives of the engine that began", self.lives.clone());
        let help = "Ends of the engine's lives, and of its process between them, by cause";
        registry.register("engine_ends", help, self.ends.clone());
        for cause in Cause::LABELS.into_iter().chain([UNHEALTHY]) {
            drop(self.ends.get_or_create(&EndLabels { cause }));
        }
        let help = "Metrics pages of the engine that could not be read";
        registry.register("engine_pages_failed", help, self.pages_failed.clone());
        let help = "Metric families of the engine's own for which there was no room";
        registry.register("engine_families_left_out", help, self.families_left_out.clone());
        for ((name, help, _), family) in REPORT_GAUGES.iter().zip(&self.told) {
            registry.register(*name, *help, family.clone());
        }
        self.follow.register(registry.sub_registry_with_prefix("kv_feed"));
    }

    /// Counts a prompt that a prefill worker was named for.
    pub(crate) fn prefilled(&self, by: PrefilledBy) {
        self.prefills.count(by);
    }

    /// Counts a life that ended, or a process that never served.
    pub(crate) fn ended(&self, cause: &'static str) {
        self.ends.get_or_create(&EndLabels { cause }).inc();
    }

    /// Shows the engine's own metrics, in place of the earlier ones.
    pub(crate) fn show_own(&self, families: Families) {
        self.families_left_out.set(families.left_out.try_into().unwrap_or(i64::MAX));
        *self.own.lock() = families.text;
    }

    /// The gauges of one rank.
    pub(crate) fn rank(&self, worker: WorkerRank) -> RankGauges {
        let labels = RankLabels { worker: worker.worker.to_string(), rank: worker.rank.into() };
        let gauges = self.told.each_ref().map(|family| family.get_or_create(&labels).clone());
        RankGauges { gauges, last: EngineReport::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::WorkerId;

    #[test]
    fn what_a_page_says_is_shown_and_what_it_does_not_say_stays() {
        let metrics = StockMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut gauges = metrics.rank(WorkerRank { worker: WorkerId(1), rank: 2 });
        let told = EngineReport {
            running: Some(3),
            kv_usage: Some(0.5),
            total_blocks: Some(100),
            ..EngineReport::default()
        };
        gauges.set(&told);
        let counted = |steps, steps_s| EngineReport {
            running: Some(4),
            steps: Some(steps),
            steps_s: Some(steps_s),
            ..EngineReport::default()
        };
        gauges.set(&counted(10, 1.0));
        gauges.set(&counted(14, 2.0));
        metrics.prefilled(PrefilledBy::itself_timeout);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "stator_agent_engine_requests_running{worker=\"0000000000000001\",rank=\"2\"} 4.0",
            "stator_agent_engine_kv_usage_ratio{worker=\"0000000000000001\",rank=\"2\"} 0.5",
            "stator_agent_engine_kv_blocks_used{worker=\"0000000000000001\",rank=\"2\"} 50.0",
            "stator_agent_engine_steps{worker=\"0000000000000001\",rank=\"2\"} 14.0",
            "stator_agent_engine_step_seconds{worker=\"0000000000000001\",rank=\"2\"} 0.25",
            "stator_agent_prefills_total{by=\"itself_timeout\"} 1",
            "stator_agent_engine_ends_total{cause=\"half_dead\"} 0",
            "stator_agent_engine_ends_total{cause=\"unhealthy\"} 0",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
