//! Costs of a request at each worker, for callers that weigh more than these.

use super::shares::Shares;
use super::stage::Stage;
use super::{Placement, Scratch};
use crate::Time;
use crate::decision::{PickError, PlacementRequest};
use crate::fleet::Fleet;
use stator_kv_index::Overlap;
use stator_protos::WorkerRank;

/// The workers that may compute and answer a request, and what each would cost.
pub struct Survey<'p> {
    fleet: &'p Fleet,
    shares: &'p Shares,
    /// By slot; infinity where the worker may not take the request.
    costs: &'p [f64],
    refused: Option<PickError>,
}

impl Survey<'_> {
    /// Costs of the workers as [`crate::Score::total`], in order of their identity; infinity for a
    /// worker that may not take the request.
    pub fn costs(&self) -> impl ExactSizeIterator<Item = f64> {
        self.fleet.order().iter().map(|&slot| self.costs[slot as usize])
    }

    /// Why no worker may take the request, if none may.
    pub fn refused(&self) -> Option<PickError> {
        self.refused
    }

    /// Workers that hold some of the prompt, with their overlap, in any order.
    pub fn held(&self) -> impl Iterator<Item = (WorkerRank, Overlap)> {
        let slots = self.shares.slots();
        slots.map(|slot| (self.fleet.row(slot).worker, self.shares.of(slot).overlap))
    }
}

impl Placement {
    /// Finds what a request would cost at every worker that may compute and answer it, and books
    /// nothing. For callers that weigh more than the cost: they choose, then [`Placement::book`].
    pub fn survey(&mut self, request: &PlacementRequest<'_>, now: Time) -> Survey<'_> {
        self.begin(request, now);
        let stage = Stage::Whole;
        let mut refused = None;
        if !self.is_open_to_all(request, stage) || self.score_all(request, stage).is_none() {
            // Where nobody is eligible, every worker costs infinity.
            refused = self.find_eligible(request, stage).err();
            self.score_by_slot(request, stage);
        }
        let Scratch { shares, costs, .. } = &self.scratch;
        Survey { fleet: &self.fleet, shares, costs, refused }
    }
}
