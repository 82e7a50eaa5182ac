//! Flags of fleets in which some workers only compute prompts.

use super::check::Faulty;
use clap::{Args, ValueEnum};
use serde::Serialize;
use stator_placement::{InvalidWeights, Split, UncachedThreshold};

/// Disaggregation: prompts computed by another worker than the one that answers.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Disaggregation")]
pub(crate) struct SplitArgs {
    /// Policy that decides whether a worker for prompts computes a prompt, for the policies of
    /// this project's placement. Default: stator as `auto`, the others always. llm-d and
    /// prefix-hash always do.
    #[arg(long, value_enum, env = "STATOR_SIMULATE_SPLIT")]
    pub(crate) split: Option<SplitArg>,
    /// With `uncached`: prompt tokens that must be missing. Default 2048.
    #[arg(long, value_name = "TOKENS", env = "STATOR_SIMULATE_SPLIT_UNCACHED_TOKENS")]
    pub(crate) split_uncached_tokens: Option<u32>,
    /// With `uncached`: share of the prompt, 0 to 1, that is enough if it is missing, however few
    /// tokens that are; at 1 only the tokens count. Default 0.7.
    #[arg(long, value_name = "SHARE", env = "STATOR_SIMULATE_SPLIT_UNCACHED_SHARE")]
    pub(crate) split_uncached_share: Option<f64>,
    /// With `prefill-load`: prompt tokens still to be computed above which a worker for prompts is
    /// passed by. Needed there.
    #[arg(long, value_name = "TOKENS", env = "STATOR_SIMULATE_SPLIT_PREFILL_TOKENS")]
    pub(crate) split_prefill_tokens: Option<u64>,
}

/// Policy for computing a prompt on another worker than the one that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SplitArg {
    /// If a split is predicted to be faster; as `uncached` before enough was seen to predict.
    Auto,
    /// Never.
    Never,
    /// Whenever workers for prompts take requests.
    Always,
    /// If enough of the prompt is missing at the worker that answers: Dynamo's rule, and with a
    /// share of 1 llm-d's.
    Uncached,
    /// Unless the worker for prompts has too much to compute.
    PrefillLoad,
}

impl SplitArgs {
    /// The split that the flags ask for, if any.
    pub(super) fn check(&self, faulty: &mut Faulty) -> Option<Split> {
        let (tokens, share) = (self.split_uncached_tokens, self.split_uncached_share);
        let limit = self.split_prefill_tokens;
        let asked = self.split;
        // A threshold that its policy does not read would be ignored in silence.
        for (name, policy, given) in [
            ("split_uncached_tokens", SplitArg::Uncached, tokens.is_some()),
            ("split_uncached_share", SplitArg::Uncached, share.is_some()),
            ("split_prefill_tokens", SplitArg::PrefillLoad, limit.is_some()),
        ] {
            if given && asked != Some(policy) {
                faulty.fault(format!("{name}: needs another --split"));
            }
        }
        if asked == Some(SplitArg::PrefillLoad) && limit.is_none() {
            faulty.fault("split_prefill_tokens: --split prefill-load needs it".into());
        }
        Some(match asked? {
            SplitArg::Auto => Split::Measured,
            SplitArg::Never => Split::Never,
            SplitArg::Always => Split::Always,
            SplitArg::Uncached => {
                let share = share.unwrap_or(0.7);
                let threshold = UncachedThreshold::new(tokens.unwrap_or(2048), share);
                Split::Uncached(threshold.unwrap_or_else(|InvalidWeights(_)| {
                    faulty.fault(format!("split_uncached_share: {share} is not in 0..=1"));
                    UncachedThreshold::default()
                }))
            }
            SplitArg::PrefillLoad => Split::PrefillLoad(limit.unwrap_or_default()),
        })
    }
}
