//! The policies by name, and how each is built.

use super::llm_d::LlmD;
use super::pair::PairedPolicies;
use super::placement::PlacementPolicy;
use super::prefix_hash::PrefixHash;
use super::{Common, Policy};
use stator_placement::{CostModel, Mode, PlacementSettings, Split};

/// A policy that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// Each worker in turn.
    RoundRobin,
    /// Any worker.
    Random,
    /// The worker with the fewest requests in flight.
    LeastLoaded,
    /// The less loaded of two at random.
    PowerOfTwo,
    /// SGLang's cache-aware router: the longest prefix that was sent before, unless loads differ.
    PrefixHash,
    /// llm-d's default profile: queue 2, KV utilisation 2, approximate prefix 3.
    LlmD,
    /// Dynamo's cost in blocks with its default weights, on this project's index.
    Dynamo,
    /// This project's placement with its default settings.
    Stator,
}

impl PolicyKind {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
            Self::LeastLoaded => "least-loaded",
            Self::PowerOfTwo => "power-of-two",
            Self::PrefixHash => "prefix-hash",
            Self::LlmD => "llm-d",
            Self::Dynamo => "dynamo",
            Self::Stator => "stator",
        }
    }

    /// A policy without workers.
    pub(crate) fn build(self, common: &Common) -> Box<dyn Policy> {
        let Common { block_size, busy, split, sessions, .. } = *common;
        let defaults =
            PlacementSettings { block_size, busy, sessions, ..PlacementSettings::default() };
        // What has no opinion of its own splits whenever it can.
        let mode = |mode| PlacementSettings { mode, split: Split::Always, ..defaults.clone() };
        let settings = match self {
            Self::RoundRobin => mode(Mode::RoundRobin),
            Self::Random => mode(Mode::Random),
            Self::LeastLoaded => mode(Mode::LeastLoaded),
            Self::PowerOfTwo => mode(Mode::PowerOfTwo),
            Self::Dynamo => PlacementSettings { cost: CostModel::Blocks, ..mode(Mode::Kv) },
            Self::Stator => defaults,
            Self::PrefixHash => {
                return paired(common, || Box::new(PrefixHash::new(block_size)));
            }
            Self::LlmD => return paired(common, || Box::new(LlmD::new(block_size))),
        };
        let split = split.unwrap_or(settings.split);
        let settings = PlacementSettings { split, ..settings };
        match self {
            Self::Dynamo => Box::new(PlacementPolicy::by_weights(settings)),
            _ => Box::new(PlacementPolicy::new(settings)),
        }
    }

    /// Whether it is this project's placement, with these settings or others.
    pub(crate) fn is_placed(self) -> bool {
        !matches!(self, Self::PrefixHash | Self::LlmD)
    }

    /// Whether what workers publish of their KV makes a difference to it.
    pub(crate) fn follows_events(self) -> bool {
        matches!(self, Self::Dynamo | Self::Stator)
    }
}

/// One for all workers, or one for each role.
fn paired<P: Policy + 'static>(common: &Common, new: impl Fn() -> Box<P>) -> Box<dyn Policy> {
    match common.paired {
        true => Box::new(PairedPolicies::new(new(), new())),
        false => new(),
    }
}
