//! Reasons against a split: why the worker that answers computes the prompt too.

use stator_placement::SplitReason;

/// Why the worker that answers computes the prompt too, in a pool where others could do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NoSplitReason {
    /// No worker for prompts takes requests, or none that may take this one.
    NoPrefillWorker,
    /// None of the workers for prompts says how others get the KV.
    NoHandover,
    /// The policy, or the request, wants it so.
    Policy,
    /// The decode worker has most of the prompt.
    Cached,
    /// The worker for prompts has too much to compute.
    PrefillLoad,
    /// One worker alone is predicted to be faster.
    Measured,
}

impl NoSplitReason {
    /// The reason of a decision; `mute` if there are workers for prompts, and none says how others
    /// get the KV.
    pub(crate) fn new(reason: SplitReason, mute: bool) -> Self {
        match reason {
            SplitReason::NoPrefillWorkers if mute => Self::NoHandover,
            SplitReason::NoPrefillWorkers | SplitReason::NobodyAlone => Self::NoPrefillWorker,
            SplitReason::Policy => Self::Policy,
            SplitReason::Uncached => Self::Cached,
            SplitReason::PrefillLoad => Self::PrefillLoad,
            SplitReason::Measured => Self::Measured,
        }
    }

    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoPrefillWorker => "no_prefill_worker",
            Self::NoHandover => "no_handover",
            Self::Policy => "policy",
            Self::Cached => "cached",
            Self::PrefillLoad => "prefill_load",
            Self::Measured => "measured",
        }
    }
}
