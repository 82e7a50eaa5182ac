//! Metrics of the picker's decisions.

use crate::bounded::OTHER;
use crate::exposition::{SeriesValue, rows, single, write};
use crate::family::{Child, Family};
use crate::histogram::Histogram;
use crate::names::{ATTEMPT_LABELS, DISAGG_LABELS, REWRITE_LABELS};
use crate::request::RequestMetrics;
use crate::{buckets, names};
use prometheus_client::encoding::DescriptorEncoder;
use stator_epp_scheduler::Endpoint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sets of labels that a counter here keeps. Endpoints come and go for as long as the process
/// lives; from here on, new ones become `other`.
const SETS_MAX: usize = 16_384;
/// Type of the profile handler whose decisions have a metric of their own.
const PD_HANDLER: &str = "pd-profile-handler";
/// Name of a model without a name in the metrics of disaggregation.
const UNKNOWN: &str = "unknown";

/// A plug-in's names in the configuration.
#[derive(Clone, Copy, Debug)]
pub struct PluginName<'a> {
    /// Its type.
    pub type_name: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// Stages of a request that run on endpoints of their own: label `decision_type`.
///
/// Source: `disagg_decision_total` of the llm-d router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disaggregation {
    /// None: one endpoint does all.
    DecodeOnly,
    /// Prefill from decode.
    PrefillDecode,
    /// Encode from the rest.
    EncodeDecode,
    /// All three.
    EncodePrefillDecode,
}

impl Disaggregation {
    /// The decision, by the stages that have an endpoint of their own.
    pub fn of(encode: bool, prefill: bool) -> Self {
        match (encode, prefill) {
            (false, false) => Self::DecodeOnly,
            (false, true) => Self::PrefillDecode,
            (true, false) => Self::EncodeDecode,
            (true, true) => Self::EncodePrefillDecode,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::DecodeOnly => "decode-only",
            Self::PrefillDecode => "prefill-decode",
            Self::EncodeDecode => "encode-decode",
            Self::EncodePrefillDecode => "encode-prefill-decode",
        }
    }
}

/// Counts of decisions. Their models are those of [`RequestMetrics`], and so as few.
#[derive(Debug)]
pub struct Decisions {
    duration: Histogram,
    attempts: Family<5, AtomicU64>,
    rewrites: Family<3, AtomicU64>,
    disagg: Family<4, AtomicU64>,
    pd: Family<4, AtomicU64>,
}

impl Default for Decisions {
    fn default() -> Self {
        Self {
            duration: Histogram::new(buckets::DECISION_SECONDS),
            attempts: Family::new(SETS_MAX),
            rewrites: Family::new(SETS_MAX),
            disagg: Family::new(SETS_MAX),
            pd: Family::new(SETS_MAX),
        }
    }
}

impl Decisions {
    /// The scheduler took this time to choose an endpoint, or to find none. The choice is counted
    /// by its pod, as in the source; the port tells the endpoints of a pod apart.
    pub fn decided(&self, of: &RequestMetrics, took: Duration, chosen: Option<&Endpoint>) {
        self.duration.observe_duration(took);
        let target = of.target_model();
        let Some(endpoint) = chosen else {
            return bump(&self.attempts, ["failure", target, "", "", ""], |labels| labels);
        };
        let mut digits = itoa::Buffer::new();
        let port = digits.format(endpoint.address.port());
        let labels = ["success", target, &*endpoint.pod, &*endpoint.namespace, port];
        bump(&self.attempts, labels, |[status, target, ..]| [status, target, OTHER, OTHER, OTHER]);
    }

    /// A rewrite sent the request to another model.
    pub fn rewritten(&self, of: &RequestMetrics, rewrite: &str) {
        let labels = [rewrite, of.model(), of.target_model()];
        bump(&self.rewrites, labels, |[rewrite, _, target]| [rewrite, OTHER, target]);
    }

    /// A profile handler decided which stages get endpoints of their own.
    pub fn disaggregated(
        &self,
        of: &RequestMetrics,
        handler: PluginName<'_>,
        decision: Disaggregation,
    ) {
        let target = of.target_model();
        let model = if target.is_empty() { UNKNOWN } else { target };
        let family = if handler.type_name == PD_HANDLER { &self.pd } else { &self.disagg };
        let labels = [handler.name, handler.type_name, model, decision.name()];
        bump(family, labels, |[name, type_name, _, kind]| [name, type_name, OTHER, kind]);
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let duration = self.duration.read().map(SeriesValue::Histogram);
        write(encoder, &names::SCHEDULER_DURATION, &single(duration))?;
        let attempts = self.attempts.children();
        let attempts = rows(&attempts, &ATTEMPT_LABELS, count);
        write(encoder, &names::SCHEDULER_ATTEMPTS, &attempts)?;
        let rewrites = self.rewrites.children();
        write(encoder, &names::REWRITES, &rows(&rewrites, &REWRITE_LABELS, count))?;
        let disagg = self.disagg.children();
        write(encoder, &names::DISAGG_DECISIONS, &rows(&disagg, &DISAGG_LABELS, count))?;
        let pd = self.pd.children();
        write(encoder, &names::PD_DECISIONS, &rows(&pd, &DISAGG_LABELS, count))
    }
}

/// Adds one to the counter with these labels, or, where it would be one too many, with those that
/// `fold` makes of them.
pub(crate) fn bump<'a, const N: usize>(
    family: &Family<N, AtomicU64>,
    labels: [&'a str; N],
    fold: impl FnOnce([&'a str; N]) -> [&'a str; N],
) {
    let found = family.get_or_make(&labels, AtomicU64::default);
    let child = found.unwrap_or_else(|| family.always(&fold(labels), AtomicU64::default));
    child.metric.fetch_add(1, Ordering::Relaxed);
}

/// A counter's value.
pub(crate) fn count<const N: usize>(child: &Child<N, AtomicU64>) -> Option<SeriesValue> {
    SeriesValue::count(child.metric.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_without_end_fold_into_one() {
        let family = Family::<2, AtomicU64>::new(2);
        for pod in ["a", "b", "c", "a", "d"] {
            bump(&family, ["success", pod], |[status, _]| [status, OTHER]);
        }
        let children = family.children();
        let counts =
            children.iter().map(|child| (&*child.labels[1], child.metric.load(Ordering::Relaxed)));
        assert_eq!(counts.collect::<Vec<_>>(), [("a", 2), ("b", 1), (OTHER, 2)]);
    }
}
