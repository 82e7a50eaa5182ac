//! Outcomes of engines' events, by reason.

use std::collections::BTreeMap;

/// Reason why an event describes no prefix: label `reason`.
///
/// Source: the first two are the llm-d router's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Its layers drop the KV of a prompt's start.
    UnsupportedCacheKind,
    /// Its block size does not fit ours.
    InvalidBlockSize,
    /// Another group of layers is indexed.
    OtherGroup,
    /// It continues an unknown block.
    UnknownParent,
}

impl Reason {
    /// The reason's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnsupportedCacheKind => "unsupported_cache_kind",
            Self::InvalidBlockSize => "invalid_block_size",
            Self::OtherGroup => "other_group",
            Self::UnknownParent => "unknown_parent",
        }
    }
}

/// Number of events by cache kind and reason.
pub type Counts = BTreeMap<(&'static str, Reason), u64>;

/// Numbers of events and blocks by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Stored events that were skipped.
    pub stores: Counts,
    /// Removed events that were skipped.
    pub removals: Counts,
    /// Removed blocks with another copy in the engine.
    pub suppressed: u64,
    /// Removed blocks without another copy in the engine.
    pub forwarded: u64,
}

impl Tally {
    /// Adds the counts of `more`.
    pub fn add(&mut self, more: &Self) {
        for (sum, counts) in
            [(&mut self.stores, &more.stores), (&mut self.removals, &more.removals)]
        {
            for (key, count) in counts {
                *sum.entry(*key).or_default() += count;
            }
        }
        self.suppressed += more.suppressed;
        self.forwarded += more.forwarded;
    }
}

/// Label of a cache kind in metrics, from a closed list: an engine may name any.
///
/// Source: the kinds of vLLM's KV cache specifications.
pub(super) fn cache_kind(kind: Option<&str>) -> &'static str {
    const KINDS: [&str; 8] = [
        "full_attention",
        "mla_attention",
        "sink_full_attention",
        "sliding_window",
        "sliding_window_mla",
        "chunked_local_attention",
        "mamba",
        "cross_attention",
    ];
    let Some(kind) = kind else { return "unknown" };
    KINDS.into_iter().find(|known| *known == kind).unwrap_or("other")
}
