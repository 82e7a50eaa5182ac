//! Costs of the sources of a tier that has several, such as the agents that a worker reads from.

use crate::Now;
use crate::cost::{ReadCost, STALE, SourceId};
use rustc_hash::FxHashMap;

/// Costs of the sources of one tier, as the tier told them last.
#[derive(Debug, Default)]
pub(super) struct ReadSources(FxHashMap<SourceId, SourceState>);

#[derive(Debug)]
struct SourceState {
    cost: Option<ReadCost>,
    /// When the cost changed, or blocks were read to measure it again.
    looked_at: Now,
}

impl ReadSources {
    /// The tier has told the cost of a source.
    pub(super) fn learn(&mut self, source: SourceId, cost: Option<ReadCost>, now: Now) {
        let state = self.0.entry(source).or_insert(SourceState { cost, looked_at: now });
        if state.cost != cost {
            *state = SourceState { cost, looked_at: now };
        }
    }

    /// The cost of a source; none where the tier's mean is the best guess.
    pub(super) fn cost(&self, source: SourceId) -> Option<ReadCost> {
        self.0.get(&source)?.cost
    }

    /// Whether a source should be measured again, which then begins.
    pub(super) fn probe(&mut self, source: SourceId, now: Now) -> bool {
        let Some(state) = self.0.get_mut(&source) else { return false };
        let is_due = now.saturating_sub(state.looked_at) >= STALE;
        if is_due {
            state.looked_at = now;
        }
        is_due
    }
}
