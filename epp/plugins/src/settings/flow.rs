//! Settings of flow control policies.

use super::PluginSettings;
use crate::context::BuildContext;
use crate::params::{Bound, Params};
use stator_epp_scheduler::plugin::PluginParts;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Greatest weight of a part of a flow's score.
const WEIGHT_MAX: f64 = 1e3;
/// Seconds of a day, the longest that flows are remembered.
const DAY: f64 = 86_400.0;

/// Order of the requests of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// The request that came first.
    FirstCome,
    /// The request whose time to live ends first.
    EarliestDeadline,
    /// The request whose objective for the first token ends first.
    SloDeadline,
    /// The request with the shortest prompt.
    ShortestPrompt {
        /// Tokens by which a second of waiting makes a prompt shorter.
        ageing_tokens_per_s: u32,
    },
}

/// Order of the flows of a priority band.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fairness {
    /// The flow with the best request: no fairness.
    GlobalStrict,
    /// One flow after the other.
    RoundRobin,
    /// By the service that each flow has got.
    ProgramAware(ProgramAware),
    /// By the number of turns that each flow has had.
    TurnPriority(TurnPriority),
    /// One after the other, as many prompt tokens.
    DeficitRoundRobin {
        /// Tokens of a turn.
        quantum_tokens: u32,
    },
    /// The one that has got the fewest weighted tokens.
    VirtualTokens {
        /// Weight of a prompt's token.
        input_weight: u32,
        /// Weight of an answer's token.
        output_weight: u32,
    },
}

/// Settings of `program-aware-fairness`: the flow that attained the least service is next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgramAware {
    /// Weight of the service that a flow has attained.
    pub service_weight: f64,
    /// Weight of the time that a flow's first request has waited.
    pub head_wait_weight: f64,
    /// Time after which attained service counts half.
    pub half_life: Duration,
    /// Longest time for which an idle flow is remembered.
    pub idle_ttl: Duration,
}

/// Settings of `program-aware-fairness` with the strategy `turn-priority`: the flow that had the
/// most turns is next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TurnPriority {
    /// Turns that a second of waiting counts for.
    pub turns_per_second: f64,
    /// Time without a turn after which a flow begins anew.
    pub inactivity: Duration,
    /// Longest time for which an idle flow is remembered.
    pub idle_ttl: Duration,
}

/// Saturation of a pool up to which a band dispatches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UsageLimit {
    /// One limit for all bands.
    Static {
        /// The saturation; 1 is full.
        threshold: f64,
    },
    /// Less for lower bands, between two limits.
    PriorityHoldback {
        /// Shape of the fall.
        shape: HoldbackShape,
        /// Whether it falls with the value of priorities, or with their rank.
        by_value: bool,
        /// Limit of the lowest band.
        min: f64,
        /// Limit of the highest band.
        max: f64,
    },
    /// Less for lower bands as the pool fills, now and then.
    SoftReflective,
}

/// Shape of a limit's fall from the highest band to the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldbackShape {
    /// In equal steps.
    Linear,
}

/// `fcfs-ordering-policy`.
pub(crate) fn fcfs(_: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    context.settle(PluginSettings::Ordering(Ordering::FirstCome))
}

/// `edf-ordering-policy`.
pub(crate) fn edf(_: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    context.settle(PluginSettings::Ordering(Ordering::EarliestDeadline))
}

/// `slo-deadline-ordering-policy`.
pub(crate) fn slo_deadline(_: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    context.settle(PluginSettings::Ordering(Ordering::SloDeadline))
}

/// `global-strict-fairness-policy`.
pub(crate) fn global_strict(_: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    context.settle(PluginSettings::Fairness(Fairness::GlobalStrict))
}

/// `round-robin-fairness-policy`.
pub(crate) fn round_robin(_: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    context.settle(PluginSettings::Fairness(Fairness::RoundRobin))
}

/// Half-life of attained service unless configured otherwise.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// The factor of `lasDecayFactor` that older configurations of the llm-d router have by default,
/// where newer ones have [`HALF_LIFE`].
const DECAY_FACTOR: f64 = 0.999_97;

/// `program-aware-fairness`: with the strategy `las` by least attained service, with
/// `turn-priority` by the depth of sessions.
///
/// A `lasHalfLifeSeconds` of 0 forgets nothing within a day. `lasDecayFactor` is the old way to say
/// it, per pick: where it stands alone it is taken as the half-life that it would have if picks
/// came at the rate at which its default, 0.99997, has 60 s.
pub(crate) fn program_aware(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let turns = params.choice("strategy", &[("las", false), ("turn-priority", true)]);
    let mut weight = |name, default| params.number(name, default, Bound::Within(0.0, WEIGHT_MAX));
    let service_weight = weight("lasWeightService", 0.8);
    let head_wait_weight = weight("lasWeightHeadWait", 0.2);
    let turns_per_second = weight("turnPriorityTimeWeight", 0.05);
    let mut seconds = |name, default, least| {
        Duration::from_secs_f64(params.number(name, default, Bound::Within(least, DAY)))
    };
    let inactivity = forever_if_zero(seconds("turnPriorityInactivitySeconds", 120.0, 0.0));
    let given = seconds("lasHalfLifeSeconds", HALF_LIFE.as_secs_f64(), 0.0);
    let idle_ttl = seconds("evictionTtlSeconds", 3600.0, 1.0);
    seconds("evictionSweepSeconds", 300.0, 0.001);
    params.without_effect("evictionSweepSeconds");
    let decay = params.number("lasDecayFactor", DECAY_FACTOR, Bound::UpTo(1.0));
    // Configurations of earlier routers give a decay factor instead of a half-life.
    let old =
        params.has("lasDecayFactor") && (!params.has("lasHalfLifeSeconds") || given.is_zero());
    let half_life = if old { half_life_of(decay) } else { forever_if_zero(given) };
    if old {
        params.note("lasDecayFactor", format!("is taken as lasHalfLifeSeconds: {half_life:?}"));
    }
    let fairness = match turns {
        true => Fairness::TurnPriority(TurnPriority { turns_per_second, inactivity, idle_ttl }),
        false => Fairness::ProgramAware(ProgramAware {
            service_weight,
            head_wait_weight,
            half_life,
            idle_ttl,
        }),
    };
    context.settle(PluginSettings::Fairness(fairness))
}

/// The half-life of a factor per pick, from 1 ms to a day.
fn half_life_of(decay: f64) -> Duration {
    // Both logarithms are of factors below 1, but for a factor of 1, which forgets nothing.
    let seconds = HALF_LIFE.as_secs_f64() * DECAY_FACTOR.ln() / decay.ln();
    let seconds = if decay < 1.0 { seconds } else { DAY };
    Duration::from_secs_f64(seconds.clamp(0.001, DAY))
}

/// The longest time there is for none.
fn forever_if_zero(time: Duration) -> Duration {
    let longest = Duration::from_secs_f64(DAY);
    if time.is_zero() { longest } else { time.max(Duration::from_millis(1)) }
}

/// `shortest-prompt-ordering-policy`.
pub(crate) fn shortest_prompt(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let ageing_tokens_per_s = whole(params, "ageingTokensPerSecond", 1000, 1..=1_000_000_000);
    context.settle(PluginSettings::Ordering(Ordering::ShortestPrompt { ageing_tokens_per_s }))
}

/// `deficit-round-robin-fairness-policy`.
pub(crate) fn deficit_round_robin(
    params: &mut Params<'_>,
    context: &mut BuildContext,
) -> PluginParts {
    let quantum_tokens = whole(params, "quantumTokens", 4096, 1..=u32::MAX);
    context.settle(PluginSettings::Fairness(Fairness::DeficitRoundRobin { quantum_tokens }))
}

/// `virtual-token-fairness-policy`.
pub(crate) fn virtual_tokens(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let input_weight = whole(params, "inputWeight", 1, 1..=1000);
    let output_weight = whole(params, "outputWeight", 2, 0..=1000);
    context
        .settle(PluginSettings::Fairness(Fairness::VirtualTokens { input_weight, output_weight }))
}

fn whole(
    params: &mut Params<'_>,
    name: &'static str,
    default: u32,
    range: RangeInclusive<u32>,
) -> u32 {
    let range = u64::from(*range.start())..=u64::from(*range.end());
    params.whole(name, default.into(), range) as u32
}

/// `static-usage-limit-policy`.
pub(crate) fn static_limit(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let threshold = params.number("threshold", 1.0, Bound::Above(0.0));
    context.settle(PluginSettings::UsageLimit(UsageLimit::Static { threshold }))
}

/// `priority-holdback-policy`.
pub(crate) fn priority_holdback(
    params: &mut Params<'_>,
    context: &mut BuildContext,
) -> PluginParts {
    if !params.has("minCeiling") {
        params.wrong("minCeiling", "is required");
    }
    let min = params.number("minCeiling", 0.0, Bound::Within(0.0, 1.0));
    let max = params.number("maxCeiling", 1.0, Bound::Within(0.0, 1.0));
    if min > max {
        params.wrong("minCeiling", format!("{min} is more than maxCeiling, {max}"));
    }
    let shape = params.choice("shape", &[("linear", HoldbackShape::Linear)]);
    let by_value = params.choice("domain", &[("rank", false), ("value", true)]);
    let limit = UsageLimit::PriorityHoldback { shape, by_value, min, max };
    context.settle(PluginSettings::UsageLimit(limit))
}

/// `soft-reflective-ceiling-policy`.
pub(crate) fn soft_reflective(_: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    context.settle(PluginSettings::UsageLimit(UsageLimit::SoftReflective))
}
