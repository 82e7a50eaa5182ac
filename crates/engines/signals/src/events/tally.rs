//! What became of engines' events, by reason.

use std::collections::BTreeMap;

/// Why an event says nothing about prefixes: label `reason`.
///
/// Source: the first two are the llm-d router's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Its layers do not keep the KV of all of a prompt.
    UnsupportedCacheKind,
    /// Its blocks do not fit ours.
    InvalidBlockSize,
    /// Another group of layers is indexed.
    OtherGroup,
    /// It continues a block that is not known.
    UnknownParent,
}

impl Reason {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnsupportedCacheKind => "unsupported_cache_kind",
            Self::InvalidBlockSize => "invalid_block_size",
            Self::OtherGroup => "other_group",
            Self::UnknownParent => "unknown_parent",
        }
    }
}

/// Events by the kind of cache that they are about and by reason.
pub type Counts = BTreeMap<(&'static str, Reason), u64>;

/// Counts of events and blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Stored events that were passed over.
    pub stores: Counts,
    /// Removed events that were passed over.
    pub removals: Counts,
    /// Removed blocks of which the engine holds another copy.
    pub suppressed: u64,
    /// Removed blocks that the engine holds no more.
    pub forwarded: u64,
}

impl Tally {
    /// Adds another.
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

/// A kind of cache as metrics know it: an engine may name any.
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
