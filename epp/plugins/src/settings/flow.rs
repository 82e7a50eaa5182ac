//! Settings of flow control policies.

use super::Settings;
use crate::context::BuildContext;
use crate::params::{Bound, Params};
use stator_epp_scheduler::plugin::Built;
use std::time::Duration;

/// Greatest weight of a part of a flow's score.
const WEIGHT_MAX: f64 = 1e3;
/// Seconds of a day, the longest that flows are remembered.
const DAY: f64 = 86_400.0;

/// Which request of a flow is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// The one that came first.
    FirstCome,
    /// The one whose time to live ends first.
    EarliestDeadline,
    /// The one whose objective for the first token ends first.
    SloDeadline,
}

/// Which flow of a priority band is next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fairness {
    /// The one with the best request: no fairness.
    GlobalStrict,
    /// One after the other.
    RoundRobin,
    /// By what each has got.
    ProgramAware(ProgramAware),
}

/// Settings of `program-aware-fairness`: the flow that attained the least service is next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgramAware {
    /// Weight of the service that a flow has attained.
    pub service_weight: f64,
    /// Weight of how long its first request waits.
    pub head_wait_weight: f64,
    /// How long it takes until attained service counts half.
    pub half_life: Duration,
    /// How long an idle flow is remembered.
    pub idle_ttl: Duration,
}

/// How saturated a pool may be for a band to dispatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UsageLimit {
    /// The same for all bands.
    Static {
        /// The saturation; 1 is full.
        threshold: f64,
    },
    /// Less for lower bands, between two limits.
    PriorityHoldback {
        /// How the limit falls.
        shape: Shape,
        /// Whether it falls with the value of priorities, or with their rank.
        by_value: bool,
        /// The lowest band's.
        min: f64,
        /// The highest band's.
        max: f64,
    },
    /// Less for lower bands as the pool fills, now and then.
    SoftReflective,
}

/// How a limit falls from the highest band to the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// In equal steps.
    Linear,
}

/// `fcfs-ordering-policy`.
pub(crate) fn fcfs(_: &mut Params<'_>, context: &mut BuildContext) -> Built {
    context.settle(Settings::Ordering(Ordering::FirstCome))
}

/// `edf-ordering-policy`.
pub(crate) fn edf(_: &mut Params<'_>, context: &mut BuildContext) -> Built {
    context.settle(Settings::Ordering(Ordering::EarliestDeadline))
}

/// `slo-deadline-ordering-policy`.
pub(crate) fn slo_deadline(_: &mut Params<'_>, context: &mut BuildContext) -> Built {
    context.settle(Settings::Ordering(Ordering::SloDeadline))
}

/// `global-strict-fairness-policy`.
pub(crate) fn global_strict(_: &mut Params<'_>, context: &mut BuildContext) -> Built {
    context.settle(Settings::Fairness(Fairness::GlobalStrict))
}

/// `round-robin-fairness-policy`.
pub(crate) fn round_robin(_: &mut Params<'_>, context: &mut BuildContext) -> Built {
    context.settle(Settings::Fairness(Fairness::RoundRobin))
}

/// `program-aware-fairness`.
pub(crate) fn program_aware(params: &mut Params<'_>, context: &mut BuildContext) -> Built {
    params.choice("strategy", &[("las", ())]);
    let mut weight = |name, default| params.number(name, default, Bound::Within(0.0, WEIGHT_MAX));
    let service_weight = weight("lasWeightService", 0.8);
    let head_wait_weight = weight("lasWeightHeadWait", 0.2);
    let mut seconds = |name, default, least| {
        Duration::from_secs_f64(params.number(name, default, Bound::Within(least, DAY)))
    };
    let half_life = seconds("lasHalfLifeSeconds", 60.0, 0.001);
    let idle_ttl = seconds("evictionTtlSeconds", 3600.0, 1.0);
    seconds("evictionSweepSeconds", 300.0, 0.001);
    params.without_effect("evictionSweepSeconds");
    let fairness = ProgramAware { service_weight, head_wait_weight, half_life, idle_ttl };
    context.settle(Settings::Fairness(Fairness::ProgramAware(fairness)))
}

/// `static-usage-limit-policy`.
pub(crate) fn static_limit(params: &mut Params<'_>, context: &mut BuildContext) -> Built {
    let threshold = params.number("threshold", 1.0, Bound::Above(0.0));
    context.settle(Settings::UsageLimit(UsageLimit::Static { threshold }))
}

/// `priority-holdback-policy`.
pub(crate) fn priority_holdback(params: &mut Params<'_>, context: &mut BuildContext) -> Built {
    if !params.has("minCeiling") {
        params.wrong("minCeiling", "is required");
    }
    let min = params.number("minCeiling", 0.0, Bound::Within(0.0, 1.0));
    let max = params.number("maxCeiling", 1.0, Bound::Within(0.0, 1.0));
    if min > max {
        params.wrong("minCeiling", format!("{min} is more than maxCeiling, {max}"));
    }
    let shape = params.choice("shape", &[("linear", Shape::Linear)]);
    let by_value = params.choice("domain", &[("rank", false), ("value", true)]);
    let limit = UsageLimit::PriorityHoldback { shape, by_value, min, max };
    context.settle(Settings::UsageLimit(limit))
}

/// `soft-reflective-ceiling-policy`.
pub(crate) fn soft_reflective(_: &mut Params<'_>, context: &mut BuildContext) -> Built {
    context.settle(Settings::UsageLimit(UsageLimit::SoftReflective))
}
