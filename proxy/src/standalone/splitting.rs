//! Flags of disaggregation: prompts computed by workers of their own.

use clap::{Args, ValueEnum};
use stator_placement::{InvalidWeights, Level, Nearness, Split, UncachedThreshold};

/// Prompt tokens that must be missing at the worker that answers, where a flag does not say it.
const UNCACHED_TOKENS: u32 = 2048;
/// The share of the prompt that is enough of them.
const UNCACHED_SHARE: f64 = 0.7;

/// Disaggregation: prompts computed by workers of their own.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Disaggregation")]
pub struct SplitArgs {
    /// Policy that decides whether a worker with the role `prefill` computes a prompt and one with
    /// the role `decode` answers. Without such workers one worker does both.
    #[arg(long, env = "STATOR_ROUTER_SPLIT", default_value = "auto", value_name = "POLICY")]
    pub router_split: SplitPolicy,

    /// With `uncached`: prompt tokens that must be missing. Default 2048.
    #[arg(long, env = "STATOR_ROUTER_SPLIT_UNCACHED_TOKENS", value_name = "TOKENS")]
    pub router_split_uncached_tokens: Option<u32>,

    /// With `uncached`: share of the prompt, 0 to 1, that is enough if it is missing, however few
    /// tokens that are; at 1 only the tokens count. Default 0.7.
    #[arg(long, env = "STATOR_ROUTER_SPLIT_UNCACHED_SHARE", value_name = "SHARE")]
    pub router_split_uncached_share: Option<f64>,

    /// With `prefill-load`: prompt tokens still to be computed above which a worker for prompts is
    /// passed by. Needed there.
    #[arg(long, env = "STATOR_ROUTER_SPLIT_PREFILL_TOKENS", value_name = "TOKENS")]
    pub router_split_prefill_tokens: Option<u64>,

    /// Greatest distance between the two workers of a request, as their agents say
    /// (`--topology-host`, `--topology-rack`, `--topology-zone`); `any` leaves it to what the way
    /// of the KV costs.
    #[arg(long, env = "STATOR_ROUTER_SPLIT_WITHIN", default_value = "any", value_name = "PART")]
    pub router_split_within: Within,
}

/// Policy for computing a prompt on another worker than the one that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SplitPolicy {
    /// If a split is predicted to be faster; as `uncached` before enough was seen to predict.
    Auto,
    /// Never.
    Never,
    /// Whenever workers for prompts take requests.
    Always,
    /// If enough of the prompt is missing at the worker that answers.
    Uncached,
    /// Unless the worker for prompts has too much to compute.
    PrefillLoad,
}

/// Greatest distance between two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Within {
    /// At any distance.
    Any,
    /// On one machine.
    Host,
    /// In one rack, or whatever shares a fast network.
    Rack,
    /// In one zone.
    Zone,
}

impl SplitArgs {
    /// The split policy; adds unusable flags to `faults`.
    pub(crate) fn split(&self, faults: &mut Vec<String>) -> Split {
        let needs = |flag: &str, policy: &str, given: bool| {
            given.then(|| format!("router-split-{flag}: needs router-split to be {policy}"))
        };
        // A flag of another policy would be ignored in silence.
        let (tokens, share) = (self.router_split_uncached_tokens, self.router_split_uncached_share);
        if self.router_split != SplitPolicy::Uncached {
            faults.extend(needs("uncached-tokens", "uncached", tokens.is_some()));
            faults.extend(needs("uncached-share", "uncached", share.is_some()));
        }
        let limit = self.router_split_prefill_tokens;
        if self.router_split != SplitPolicy::PrefillLoad {
            faults.extend(needs("prefill-tokens", "prefill-load", limit.is_some()));
        }
        match self.router_split {
            SplitPolicy::Auto => Split::Measured,
            SplitPolicy::Never => Split::Never,
            SplitPolicy::Always => Split::Always,
            SplitPolicy::Uncached => Split::Uncached(self.threshold(faults)),
            SplitPolicy::PrefillLoad => {
                if limit.is_none() {
                    let fault = "router-split-prefill-tokens: router-split prefill-load needs it";
                    faults.push(fault.to_owned());
                }
                Split::PrefillLoad(limit.unwrap_or_default())
            }
        }
    }

    fn threshold(&self, faults: &mut Vec<String>) -> UncachedThreshold {
        let tokens = self.router_split_uncached_tokens.unwrap_or(UNCACHED_TOKENS);
        let share = self.router_split_uncached_share.unwrap_or(UNCACHED_SHARE);
        UncachedThreshold::new(tokens, share).unwrap_or_else(|InvalidWeights(_)| {
            faults.push(format!("router-split-uncached-share: {share} is not in 0..=1"));
            UncachedThreshold::default()
        })
    }

    /// Greatest distance between the two workers of a request.
    pub(crate) fn nearness(&self) -> Nearness {
        match self.router_split_within {
            Within::Any => Nearness::ByCost,
            Within::Host => Nearness::Within(Level::Host),
            Within::Rack => Nearness::Within(Level::Rack),
            Within::Zone => Nearness::Within(Level::Zone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};
    use stator_placement::PlacementSettings;

    fn parse(flags: &[&str]) -> SplitArgs {
        let command = SplitArgs::augment_args(Command::new("proxy").no_binary_name(true));
        let matches = command.try_get_matches_from(flags).expect("the flags are known");
        SplitArgs::from_arg_matches(&matches).expect("the flags are complete")
    }

    #[track_caller]
    fn check(flags: &[&str], split: Split, nearness: Nearness) {
        let (args, mut faults) = (parse(flags), Vec::new());
        assert_eq!((args.split(&mut faults), args.nearness()), (split, nearness));
        assert!(faults.is_empty(), "{faults:?}");
    }

    #[test]
    fn flags_left_out_are_the_defaults_of_the_core() {
        let PlacementSettings { split, nearness, .. } = PlacementSettings::default();
        check(&[], split, nearness);
        let threshold = UncachedThreshold::default();
        check(&["--router-split=uncached"], Split::Uncached(threshold), nearness);
    }

    #[test]
    fn every_policy_can_be_had() {
        check(&["--router-split=never"], Split::Never, Nearness::ByCost);
        let rack = Nearness::Within(Level::Rack);
        check(&["--router-split=always", "--router-split-within=rack"], Split::Always, rack);
        let flags = [
            "--router-split=uncached",
            "--router-split-uncached-tokens=100",
            "--router-split-uncached-share=1",
        ];
        let threshold = UncachedThreshold::new(100, 1.0).expect("the share is in range");
        check(&flags, Split::Uncached(threshold), Nearness::ByCost);
        let flags = ["--router-split=prefill-load", "--router-split-prefill-tokens=9"];
        check(&flags, Split::PrefillLoad(9), Nearness::ByCost);
    }

    #[track_caller]
    fn check_faults(flags: &[&str], expected: &[&str]) {
        let mut faults = Vec::new();
        parse(flags).split(&mut faults);
        assert_eq!(faults, expected);
    }

    #[test]
    fn what_would_have_no_effect_is_a_fault_as_what_cannot_be() {
        let flags = [
            "--router-split-uncached-tokens=1",
            "--router-split-uncached-share=0.5",
            "--router-split-prefill-tokens=1",
        ];
        let expected = [
            "router-split-uncached-tokens: needs router-split to be uncached",
            "router-split-uncached-share: needs router-split to be uncached",
            "router-split-prefill-tokens: needs router-split to be prefill-load",
        ];
        check_faults(&flags, &expected);
        let flags = ["--router-split=uncached", "--router-split-uncached-share=1.5"];
        check_faults(&flags, &["router-split-uncached-share: 1.5 is not in 0..=1"]);
        let expected = ["router-split-prefill-tokens: router-split prefill-load needs it"];
        check_faults(&["--router-split=prefill-load"], &expected);
    }
}
