//! Order of the requests of a flow.

use crate::entry::QueueEntry;
use crate::invalid::SettingFindings;
use crate::nanos;

/// Largest head start, in seconds: eleven days.
const JUMP_MAX_S: u64 = 1_000_000;
const NANOS_PER_S: u64 = 1_000_000_000;

/// Policy that orders the requests of a flow. Equal requests are served in the order of arrival.
///
/// Every policy is a key that a request gets once, at its arrival, so that nothing is sorted anew
/// as time passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ordering {
    /// The one that came first, by arrival less its head start.
    #[default]
    Fcfs,
    /// The one that came last, by arrival plus its head start. Others wait until their deadline
    /// while such requests come.
    Lcfs,
    /// The one with the fewest tokens to compute, where each second of waiting counts as
    /// `ageing_tokens_per_s` tokens fewer: key `arrival + tokens / ageing`. A request is overtaken
    /// only by those that come within `tokens / ageing` seconds after it.
    ShortestPrompt {
        /// 1 to 1,000,000,000.
        ageing_tokens_per_s: u32,
    },
    /// The one with the largest `(1 + jump) / tokens`. Long ones wait until their deadline while
    /// such requests come.
    ///
    /// Source: Dynamo's `wspt` queue policy.
    WeightedShortest,
    /// The one whose deadline comes first.
    Deadline,
    /// The one whose first token is due first: arrival plus objective; those without an objective
    /// after all others.
    SloDeadline,
}

impl Ordering {
    pub(crate) fn check(self, name: &str, findings: &mut SettingFindings) {
        if let Self::ShortestPrompt { ageing_tokens_per_s: ageing } = self {
            let name = format!("{name}.ageing_tokens_per_s");
            findings.range(&name, u64::from(ageing), 1..=NANOS_PER_S);
        }
    }

    /// The key of a request that arrives; the least is first.
    pub(crate) fn key<T>(self, entry: &QueueEntry<T>, arrival: u64, deadline: u64) -> u64 {
        let jump_s = u64::from(entry.jump).min(JUMP_MAX_S);
        let tokens = u64::from(entry.tokens);
        match self {
            // The largest head start is added to all, so that no key is negative.
            Self::Fcfs => arrival.saturating_add((JUMP_MAX_S - jump_s) * NANOS_PER_S),
            Self::Lcfs => u64::MAX - arrival.saturating_add(jump_s * NANOS_PER_S),
            Self::ShortestPrompt { ageing_tokens_per_s: ageing } => {
                arrival.saturating_add(tokens * NANOS_PER_S / u64::from(ageing.max(1)))
            }
            Self::WeightedShortest => (tokens.max(1) << 32) / (1 + u64::from(entry.jump)),
            Self::Deadline => deadline,
            Self::SloDeadline => {
                entry.objective.map_or(u64::MAX, |after| arrival.saturating_add(nanos(after)))
            }
        }
    }
}
