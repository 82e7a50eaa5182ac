//! Metrics of the planner, under `stator_planner_`.

use crate::planner::{Decision, DecisionReason};
use crate::replicas::role_name;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::AtomicU64;

/// Labels of one role.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RoleLabels {
    model: String,
    role: &'static str,
}

/// Labels of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DecisionLabels {
    model: String,
    role: &'static str,
    reason: DecisionReason,
}

type RoleGauge = Family<RoleLabels, Gauge<f64, AtomicU64>>;

/// All metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlannerMetrics {
    wanted: RoleGauge,
    ordered: RoleGauge,
    ttft: RoleGauge,
    itl: RoleGauge,
    decisions: Family<DecisionLabels, Counter>,
    /// Looks without signals, or without an answer of who was to be asked.
    pub(crate) signals_lost: Counter,
    pub(crate) orders_failed: Counter,
}

impl EncodeLabelValue for DecisionReason {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        EncodeLabelValue::encode(&self.name(), encoder)
    }
}

impl PlannerMetrics {
    /// Registers all of them.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("stator_planner");
        let metrics = Self::default();
        for (name, help, gauge) in [
            ("wanted_replicas", "Workers that a role should have", &metrics.wanted),
            ("ordered_replicas", "Workers that the platform was asked for", &metrics.ordered),
            (
                "estimated_ttft_seconds",
                "Time to the first token, the queue included",
                &metrics.ttft,
            ),
            ("estimated_itl_seconds", "Time between two tokens", &metrics.itl),
        ] {
            registry.register(name, help, gauge.clone());
        }
        registry.register("decisions", "Decisions, by reason", metrics.decisions.clone());
        for (name, help, counter) in [
            ("signals_lost", "Looks at the fleet that failed", &metrics.signals_lost),
            ("orders_failed", "Orders that nobody took", &metrics.orders_failed),
        ] {
            registry.register(name, help, counter.clone());
        }
        metrics
    }

    /// Shows a decision.
    pub(crate) fn show(&self, model: &str, decision: &Decision, ordered: &crate::Replicas) {
        for of in &decision.roles {
            let role = role_name(of.role);
            let labels = RoleLabels { model: model.to_owned(), role };
            self.wanted.get_or_create(&labels).set(of.wanted.into());
            self.ordered.get_or_create(&labels).set(ordered.of(of.role).into());
            if let Some(need) = &of.need {
                self.ttft.get_or_create(&labels).set(need.estimate.ttft_s);
                self.itl.get_or_create(&labels).set(need.estimate.itl_s);
            }
            let labels = DecisionLabels { model: model.to_owned(), role, reason: of.reason };
            self.decisions.get_or_create(&labels).inc();
        }
    }
}
