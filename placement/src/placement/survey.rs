//! What a request would cost at each worker, for callers that weigh more than that.

use super::select::Stage;
use super::shares::Shares;
use super::{Placement, Scratch};
use crate::Time;
use crate::decision::Request;
use crate::fleet::Fleet;
use stator_kv_index::Overlap;
use stator_protos::WorkerRank;

/// The workers that may compute and answer a request, and what each would cost.
pub struct Survey<'p> {
    fleet: &'p Fleet,
    shares: &'p Shares,
    /// By slot; infinity where the worker may not take the request.
    costs: &'p [f64],
}

/// What was found of one worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Surveyed {
    /// The cost of choosing it, as [`crate::Score::total`] is.
    pub cost: f64,
    /// What it holds of the prompt.
    pub overlap: Overlap,
}

impl Survey<'_> {
    /// What was found of a worker; `None` if it may not take the request. Told at no cost where
    /// the worker is number `at` of the fleet in order of their identity, from 0.
    #[inline]
    pub fn of(&self, worker: WorkerRank, at: usize) -> Option<Surveyed> {
        let there = self.fleet.order().get(at).copied();
        let slot = match there.filter(|&slot| self.fleet.row(slot).worker == worker) {
            Some(slot) => slot,
            None => self.fleet.slot(worker)?,
        };
        let cost = self.costs[slot as usize];
        let overlap = self.shares.of(slot).overlap;
        (cost < f64::INFINITY).then_some(Surveyed { cost, overlap })
    }
}

impl Placement {
    /// Finds what a request would cost at every worker that may compute and answer it, and books
    /// nothing. For callers that weigh more than the cost: they choose, then [`Placement::book`].
    pub fn survey(&mut self, request: &Request<'_>, now: Time) -> Survey<'_> {
        self.begin(request, now);
        let stage = Stage::Whole;
        if !self.is_open_to_all(request, stage) || self.score_all(request, stage).is_none() {
            // Why nobody may take it is of no interest: nobody is eligible then.
            self.find_eligible(request, stage).ok();
            self.score_by_slot(request, stage);
        }
        let Scratch { shares, costs, .. } = &self.scratch;
        Survey { fleet: &self.fleet, shares, costs }
    }
}
