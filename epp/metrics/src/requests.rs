//! Requests by model, flow and priority.

use crate::bounded::{BoundedValues, OTHER};
use crate::exposition::{Metric, Row, SeriesValue, labelled, rows, write};
use crate::family::{Child, Family};
use crate::histogram::Histogram;
use crate::names::{self, REQUEST_LABELS};
use crate::request::{ErrorCode, RequestMetrics, RequestSeries};
use prometheus_client::encoding::DescriptorEncoder;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Names of models that are kept because clients asked for them; the rest becomes `other`. A name
/// from a rewrite, or of an adapter that an endpoint speaks of, is kept beside them.
///
/// The llm-d router keeps 1000 (`maxModelLabelValues`). Each name makes up to 345 series, so that
/// one client could make 345,000 of them.
pub(crate) const MODELS_MAX: usize = 100;
/// Fairness ids that are kept; the rest becomes `other`.
///
/// The llm-d router keeps 1000 (`--fairness-id-metric-label-limit`); see [`MODELS_MAX`].
pub(crate) const FAIRNESS_IDS_MAX: usize = 100;
/// Sets of labels that are kept, each 2.5 KB here, and up to 345 series and 36 KB of a page. From
/// here on, new flows and models that nobody configured become `other`: clients make 90,000 series
/// and 9 MB of a page at most.
pub(crate) const SETS_MAX: usize = 256;

/// Labels that tell requests apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestLabels<'a> {
    /// The model that the client named; empty where the body was not understood.
    pub model: &'a str,
    /// The model that the request is sent to.
    pub target_model: &'a str,
    /// The request's flow.
    pub fairness_id: &'a str,
    /// The request's priority; higher ones go first.
    pub priority: i32,
}

/// All requests.
///
/// Names of models share a bound of 100, fairness ids have one of 100, and sets of both one of
/// 256, all for the life of the process; what comes later is counted under `other`. Names
/// given to [`Requests::keep_model`] stay beside the bounds.
#[derive(Debug)]
pub struct Requests {
    family: Family<4, RequestSeries>,
    models: Arc<BoundedValues>,
    fairness_ids: Arc<BoundedValues>,
}

impl Default for Requests {
    fn default() -> Self {
        Self::new(MODELS_MAX, FAIRNESS_IDS_MAX, SETS_MAX)
    }
}

impl Requests {
    pub(crate) fn new(models_max: usize, fairness_ids_max: usize, sets_max: usize) -> Self {
        Self {
            family: Family::new(sets_max),
            models: Arc::new(BoundedValues::new(models_max)),
            fairness_ids: Arc::new(BoundedValues::new(fairness_ids_max)),
        }
    }

    /// Keeps the name of a model that an operator wrote into a rewrite, or that an endpoint serves,
    /// whatever clients send. A read lock for a name that is kept already.
    pub fn keep_model(&self, name: &str) {
        self.models.pin(name);
    }

    /// The names of models that are kept, for all metrics that have some.
    pub(crate) fn models(&self) -> &Arc<BoundedValues> {
        &self.models
    }

    /// The fairness ids that are kept, for all metrics that have some.
    pub(crate) fn fairness_ids(&self) -> &Arc<BoundedValues> {
        &self.fairness_ids
    }

    /// The counters for requests with these labels. One hash and one read lock for labels seen
    /// before.
    pub fn of(&self, labels: &RequestLabels<'_>) -> RequestMetrics {
        let mut digits = itoa::Buffer::new();
        let priority = digits.format(labels.priority);
        let RequestLabels { model, target_model, fairness_id, .. } = *labels;
        let asked = [model, target_model, fairness_id, priority];
        RequestMetrics(self.family.get(&asked).unwrap_or_else(|| self.folded(asked)))
    }

    /// The set for labels that are new, or too many.
    fn folded(
        &self,
        [model, target, fairness_id, priority]: [&str; 4],
    ) -> Arc<Child<4, RequestSeries>> {
        let (model, target) = (self.models.bound(model), self.models.bound(target));
        let fairness_id = self.fairness_ids.bound(fairness_id);
        let bounded = [model, target, fairness_id, priority];
        self.family.get_or_make(&bounded, RequestSeries::new).unwrap_or_else(|| {
            let kept = |name: &str| name.is_empty() || self.models.is_pinned(name);
            let model = if kept(model) { model } else { OTHER };
            let target = if kept(target) { target } else { OTHER };
            let configured = [model, target, OTHER, priority];
            self.family.always(&configured, RequestSeries::new)
        })
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let children = self.family.children();
        let of = |value: &dyn Fn(&Child<4, RequestSeries>) -> Option<SeriesValue>| {
            rows(&children, &REQUEST_LABELS, value)
        };
        let received =
            of(&|child| SeriesValue::count(child.metric.received.load(Ordering::Relaxed)));
        write(encoder, &names::REQUESTS, &received)?;
        write(encoder, &names::REQUEST_ERRORS, &errors(&children))?;
        write(encoder, &names::REQUEST_RUNNING, &of(&running))?;
        for (metric, histogram) in HISTOGRAMS {
            let read = |child: &Child<4, RequestSeries>| {
                histogram(&child.metric).read().map(SeriesValue::Histogram)
            };
            write(encoder, metric, &of(&read))?;
        }
        write(encoder, &names::TTFT, &first_tokens(&children))
    }
}

type OneOf = fn(&RequestSeries) -> &Histogram;

/// Histograms that differ by nothing but [`RequestLabels`].
const HISTOGRAMS: [(&Metric, OneOf); 9] = [
    (&names::REQUEST_DURATION, |series| &series.duration),
    (&names::REQUEST_SIZE, |series| &series.request_bytes),
    (&names::RESPONSE_SIZE, |series| &series.response_bytes),
    (&names::INPUT_TOKENS, |series| &series.input_tokens),
    (&names::OUTPUT_TOKENS, |series| &series.output_tokens),
    (&names::CACHED_TOKENS, |series| &series.cached_tokens),
    (&names::NTPOT, |series| &series.ntpot),
    (&names::TPOT, |series| &series.tpot),
    (&names::ITL, |series| &series.itl),
];

/// Requests that run now; of a set whose model is not known there is no such number.
fn running(child: &Child<4, RequestSeries>) -> Option<SeriesValue> {
    let seen = child.metric.received.load(Ordering::Relaxed) > 0 && !child.labels[0].is_empty();
    seen.then(|| SeriesValue::Gauge(child.metric.running.load(Ordering::Relaxed) as f64))
}

fn errors(children: &[Arc<Child<4, RequestSeries>>]) -> Vec<Row<'_>> {
    let mut all = Vec::new();
    for code in ErrorCode::ALL {
        let count = |child: &Child<4, RequestSeries>| {
            SeriesValue::count(child.metric.errors[code as usize].load(Ordering::Relaxed))
        };
        all.extend(labelled(children, &REQUEST_LABELS, ("error_code", code.name()), count));
    }
    all
}

fn first_tokens(children: &[Arc<Child<4, RequestSeries>>]) -> Vec<Row<'_>> {
    let mut all = Vec::new();
    for (at, streaming) in ["false", "true"].into_iter().enumerate() {
        let read = |child: &Child<4, RequestSeries>| {
            child.metric.ttft[at].read().map(SeriesValue::Histogram)
        };
        all.extend(labelled(children, &REQUEST_LABELS, ("streaming", streaming), read));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn label(requests: &Requests, model: &str, fairness_id: &str) -> (String, String) {
        let labels = RequestLabels { model, fairness_id, ..RequestLabels::default() };
        let found = requests.of(&labels).0;
        (found.labels[0].to_string(), found.labels[2].to_string())
    }

    #[test]
    fn the_first_so_many_names_stay_and_the_rest_is_other() {
        let requests = Requests::default();
        requests.keep_model("tuned");
        for number in 0..MODELS_MAX + 5 {
            let name = format!("m{number}");
            let kept = if number < MODELS_MAX { &name } else { OTHER };
            assert_eq!(label(&requests, &name, "").0, kept);
        }
        assert_eq!(label(&requests, "tuned", "").0, "tuned");
        for number in 0..FAIRNESS_IDS_MAX + 5 {
            let name = format!("f{number}");
            let kept = if number < FAIRNESS_IDS_MAX { &name } else { OTHER };
            assert_eq!(label(&requests, "m0", &name).1, kept);
        }
    }

    proptest! {
        /// However many names clients think of, there are no more sets than the bound and those
        /// that an operator's names alone can make; and a configured name is never lost.
        #[test]
        fn sets_stay_bounded(
            asked in vec(("[a-f]{1,2}", "[a-f]{1,2}"), 0..60),
            (models_max, sets_max) in (0_usize..12, 0_usize..12),
        ) {
            let requests = Requests::new(models_max, 12, sets_max);
            ["a", "bb"].iter().for_each(|name| requests.keep_model(name));
            for (model, fairness_id) in &asked {
                let (kept, flow) = label(&requests, model, fairness_id);
                prop_assert!(kept == *model || kept == OTHER);
                prop_assert!(flow == *fairness_id || flow == OTHER);
                prop_assert!(kept == *model || !["a", "bb"].contains(&model.as_str()));
            }
            let children = requests.family.children();
            // Two configured names and `other`, each with no target and one flow.
            prop_assert!(children.len() <= sets_max + 3);
            let column = |at: usize| {
                children.iter().map(|child| &*child.labels[at]).collect::<BTreeSet<_>>().len()
            };
            prop_assert!(column(0) <= models_max + 3);
            prop_assert!(column(2) <= 13);
        }
    }
}
