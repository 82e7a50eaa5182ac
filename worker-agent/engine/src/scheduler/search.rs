//! A waiting sequence's search for KV outside the engine's memory.

use crate::tiers::{OuterFound, OuterLookup};

/// Searches of one sequence at most.
const SEARCHES_MAX: u32 = 2;

/// A sequence's search for its KV in the tiers.
#[derive(Debug, Default)]
pub(super) struct Search {
    state: SearchState,
    /// Searches that were begun.
    count: u32,
}

#[derive(Debug, Default)]
enum SearchState {
    /// The search has not begun.
    #[default]
    Due,
    /// The search looks for the blocks from `first` on.
    Open { lookup: Box<dyn OuterLookup>, first: usize },
    /// There is nothing to find, or nothing more to wait for.
    Over,
}

impl Search {
    /// Whether it has not begun.
    pub(super) fn is_due(&self) -> bool {
        matches!(self.state, SearchState::Due)
    }

    /// Goes on with a lookup of the blocks from `first` on, or ends where there is none.
    pub(super) fn begin(&mut self, first: usize, lookup: Option<Box<dyn OuterLookup>>) {
        self.count += 1;
        self.state = match lookup {
            Some(lookup) => SearchState::Open { lookup, first },
            None => SearchState::Over,
        };
    }

    /// Whether blocks are on their way.
    pub(super) fn is_pending(&mut self) -> bool {
        match &mut self.state {
            SearchState::Open { lookup, .. } => lookup.found().pending > 0,
            SearchState::Due | SearchState::Over => false,
        }
    }

    /// Whether what was found cannot be used, because the engine holds only `held` blocks now and
    /// the search began behind them.
    pub(super) fn is_stale(&self, held: usize) -> bool {
        matches!(self.state, SearchState::Open { first, .. } if first > held)
    }

    /// Begins anew, unless there were too many searches: blocks come and go while a sequence waits.
    pub(super) fn renew(&mut self) {
        self.state = if self.count < SEARCHES_MAX { SearchState::Due } else { SearchState::Over };
    }

    /// Ends the search, and returns what it found: the lookup, its first block, and how many.
    pub(super) fn take(&mut self) -> Option<(Box<dyn OuterLookup>, usize, usize)> {
        match std::mem::replace(&mut self.state, SearchState::Over) {
            SearchState::Open { mut lookup, first } => {
                let OuterFound { ready, .. } = lookup.found();
                Some((lookup, first, ready))
            }
            SearchState::Due | SearchState::Over => None,
        }
    }
}
