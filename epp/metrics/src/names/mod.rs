//! The name, the help and the deprecated twin of every metric; a counter's without `_total`.
//!
//! Source: `docs/metrics.md` of the llm-d router for names, labels and twins; the help is ours.
//! The router's tests want `[ALPHA] ` before it, and behind that which name a twin stands for.

mod flow;
mod plugins;
mod pools;
mod process;
mod requests;

pub(crate) use flow::*;
pub(crate) use plugins::*;
pub(crate) use pools::*;
pub(crate) use process::*;
pub(crate) use requests::*;

use crate::exposition::{Metric, Twin};

type TwinLabels = &'static [(&'static str, &'static str)];

const MODELS: TwinLabels =
    &[("model_name", "model_name"), ("target_model_name", "target_model_name")];

/// A metric of the llm-d router.
const fn alpha(name: &'static str, help: &'static str) -> Metric {
    Metric { name, stage: "[ALPHA] ", help, twin: None }
}

/// A metric with the name and the labels that it had before.
const fn twin(metric: Metric, name: &'static str, labels: TwinLabels) -> Metric {
    Metric { twin: Some(Twin { name, labels }), ..metric }
}

/// One of ours.
const fn own(name: &'static str, help: &'static str) -> Metric {
    Metric { name, stage: "", help, twin: None }
}
