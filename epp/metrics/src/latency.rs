//! Predictions of requests' latencies, beside the measured ones.

use crate::bounded::{BoundedValues, OTHER};
use crate::buckets;
use crate::decisions::PluginName;
use crate::exposition::{Metric, Row, SeriesValue, labelled, rows, write};
use crate::family::{Child, Family};
use crate::histogram::Histogram;
use crate::names::{self, LATENCY_LABELS};
use prometheus_client::encoding::DescriptorEncoder;
use stator_epp_scheduler::plugin::{LatencyOutcome, RequestLatencies};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Pairs of models that are kept; from here on, new ones become `other`. There are as many as
/// clients can make of [`Requests`](crate::Requests).
const SETS_MAX: usize = crate::requests::SETS_MAX;

/// Counters of a plug-in's predictions. Made once, when plug-ins are.
#[derive(Debug)]
pub struct LatencyMetrics {
    latencies: Arc<Latencies>,
    plugin: [Box<str>; 2],
}

/// Latencies by the name and the type of a plug-in and by two models.
#[derive(Debug)]
pub(crate) struct Latencies {
    family: Family<4, [Latency; 2]>,
    models: Arc<BoundedValues>,
}

/// Time to the first token, or mean time between tokens.
#[derive(Debug)]
struct Latency {
    predicted: Histogram,
    prediction: Histogram,
    violations: AtomicU64,
    /// Values of the latest request, by the positions below; as bits, not a number before the
    /// first.
    last: [AtomicU64; 4],
}

/// Label `type` of each value in [`Latency::last`], for both latencies.
///
/// Source: `inference_request_metric` of the llm-d router.
const LAST: [[&str; 4]; 2] = [
    ["ttft", "predicted_ttft", "ttft_prediction_duration", "ttft_slo_violation"],
    ["tpot", "predicted_tpot", "tpot_prediction_duration", "tpot_slo_violation"],
];
/// Positions in [`Latency::last`].
const MEASURED: usize = 0;
const PREDICTED: usize = 1;
const PREDICTION: usize = 2;
const VIOLATED: usize = 3;

impl LatencyMetrics {
    /// A plug-in predicted both latencies, and needed `took` for both together.
    pub fn predicted_in(&self, asked_model: &str, model: &str, took: Duration) {
        for latency in &self.of(asked_model, model).metric {
            latency.prediction.observe_duration(took);
            latency.saw(PREDICTION, took.as_secs_f64());
        }
    }

    /// A request is over, with these latencies.
    pub fn fared(&self, fared: &RequestLatencies<'_>) {
        let child = self.of(fared.asked_model, fared.model);
        let [ttft, tpot] = &child.metric;
        ttft.fared(fared.ttft);
        if let Some(timing) = fared.tpot {
            tpot.fared(timing);
        }
    }

    fn of(&self, asked_model: &str, model: &str) -> Arc<Child<4, [Latency; 2]>> {
        let Latencies { family, models } = &*self.latencies;
        let [name, type_name] = self.plugin.each_ref().map(|label| &**label);
        let make =
            || [buckets::PREDICTED_TTFT_SECONDS, buckets::PREDICTED_TPOT_SECONDS].map(Latency::new);
        let bounded = [name, type_name, models.bound(asked_model), models.bound(model)];
        family
            .get_or_make(&bounded, make)
            .unwrap_or_else(|| family.always(&[name, type_name, OTHER, OTHER], make))
    }
}

impl Latency {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            predicted: Histogram::new(bounds),
            prediction: Histogram::new(buckets::PREDICTION_SECONDS),
            violations: AtomicU64::new(0),
            last: [(); 4].map(|()| AtomicU64::new(f64::NAN.to_bits())),
        }
    }

    fn fared(&self, timing: LatencyOutcome) {
        let seconds = |ms: f64| ms / 1000.0;
        self.saw(MEASURED, seconds(timing.measured_ms));
        if let Some(predicted_ms) = timing.predicted_ms {
            self.predicted.observe(seconds(predicted_ms));
            self.saw(PREDICTED, seconds(predicted_ms));
        }
        if let Some(objective_ms) = timing.objective_ms {
            let violated = timing.measured_ms > objective_ms;
            self.violations.fetch_add(violated.into(), Ordering::Relaxed);
            self.saw(VIOLATED, f64::from(u8::from(violated)));
        }
    }

    fn saw(&self, which: usize, value: f64) {
        self.last[which].store(value.to_bits(), Ordering::Relaxed);
    }
}

impl Latencies {
    /// No latencies yet; names of models are kept as far as `models` allows.
    pub(crate) fn new(models: Arc<BoundedValues>) -> Self {
        Self { family: Family::new(SETS_MAX), models }
    }

    /// The metrics of a plug-in.
    pub(crate) fn of(self: &Arc<Self>, plugin: PluginName<'_>) -> LatencyMetrics {
        let plugin = [plugin.name.into(), plugin.type_name.into()];
        LatencyMetrics { latencies: self.clone(), plugin }
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let children = self.family.children();
        for (at, metrics) in HISTOGRAMS.iter().enumerate() {
            for (metric, histogram) in metrics {
                let read = |child: &Child<4, [Latency; 2]>| {
                    histogram(&child.metric[at]).read().map(SeriesValue::Histogram)
                };
                write(encoder, metric, &rows(&children, &LATENCY_LABELS, read))?;
            }
        }
        let last = typed(&children, |latency, position| {
            let value = f64::from_bits(latency.last[position].load(Ordering::Relaxed));
            (!value.is_nan()).then_some(SeriesValue::Gauge(value))
        });
        write(encoder, &names::LATENCY_LAST, &last)?;
        let violations = typed(&children, |latency, position| {
            SeriesValue::count(latency.violations.load(Ordering::Relaxed))
                .filter(|_| position == MEASURED)
        });
        write(encoder, &names::SLO_VIOLATIONS, &violations)
    }
}

/// Rows with the label `type`: one for each of [`LAST`] for which `value` gives a value.
fn typed(
    children: &[Arc<Child<4, [Latency; 2]>>],
    value: impl Fn(&Latency, usize) -> Option<SeriesValue>,
) -> Vec<Row<'_>> {
    let mut all = Vec::new();
    for (at, types) in LAST.iter().enumerate() {
        for (position, type_name) in types.iter().enumerate() {
            let of = |child: &Child<4, [Latency; 2]>| value(&child.metric[at], position);
            all.extend(labelled(children, &LATENCY_LABELS, ("type", type_name), of));
        }
    }
    all
}

type OneOf = fn(&Latency) -> &Histogram;

/// The histograms of each latency.
const HISTOGRAMS: [[(&Metric, OneOf); 2]; 2] = [
    [
        (&names::PREDICTED_TTFT, |latency| &latency.predicted),
        (&names::TTFT_PREDICTION, |latency| &latency.prediction),
    ],
    [
        (&names::PREDICTED_TPOT, |latency| &latency.predicted),
        (&names::TPOT_PREDICTION, |latency| &latency.prediction),
    ],
];
