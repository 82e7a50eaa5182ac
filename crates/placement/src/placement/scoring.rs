//! Cost of giving a request to each worker.

use super::Placement;
use super::shares::PromptShare;
use super::stage::Stage;
use crate::constraint::{Level, preference};
use crate::cost::{CostModel, Inputs, Prediction, Score, TimeInputs, Weights, score, time_score};
use crate::decision::{Candidate, PlacementRequest};
use crate::learn::Speed;
use crate::reuse::Lenders;
use crate::sessions::Affinity;
use crate::split::transfer_guess;
use crate::tracker::Sums;
use stator_kv_index::Overlap;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;

/// Tokens that an answer is taken to have before one has ended.
const OUTPUT_TOKENS: f64 = 256.0;
/// Weight of a loaded adapter, as that of a preferred label.
const ADAPTER_WEIGHT: f64 = 1.0;

/// Terms of the cost that all workers share in one stage of a request.
pub(super) struct Terms {
    pub(super) stage: Stage,
    pub(super) timed: bool,
    pub(super) weights: Weights,
    pub(super) prompt_tokens: u32,
    pub(super) prompt_blocks: u32,
    /// The workers that lend most of the prompt.
    pub(super) lenders: Lenders,
    output_tokens: f64,
    arrivals_per_s: f64,
    mean_requests: f64,
    least_backlog_tokens: f64,
    pub(super) fleet_speed: Speed,
    now_s: f64,
    /// The worker of the request's session, and what it weighs that it is.
    bound: Option<(u32, f64)>,
    /// Whether anything makes some workers preferable.
    preferring: bool,
}

impl Terms {
    /// Whether a worker with this overlap may have blocks to load. Most workers have none.
    #[inline]
    fn may_load(&self, overlap: Overlap) -> bool {
        !self.lenders.is_empty() || overlap.blocks() > overlap.on(Medium::Device)
    }
}

impl Placement {
    /// Leaves in `scratch.costs` what each eligible worker costs.
    pub(super) fn score(&mut self, request: &PlacementRequest<'_>, stage: Stage) {
        let terms = self.terms(request, stage);
        let mut costs = std::mem::take(&mut self.scratch.costs);
        costs.clear();
        let cost = |&slot: &u32| self.cost(request, &terms, slot).total;
        costs.extend(self.scratch.eligible.iter().map(cost));
        self.scratch.costs = costs;
    }

    /// Leaves in `scratch.costs` the cost of each slot, infinity for a slot without a worker that
    /// takes requests; returns the number of workers that do. It is several times as fast as
    /// [`Placement::score`], since most workers hold nothing of a prompt, and agrees with it if
    /// every worker may take the request and none is preferred. `None` otherwise, with nothing of
    /// use in `scratch.costs`.
    pub(super) fn score_all(
        &mut self,
        request: &PlacementRequest<'_>,
        stage: Stage,
    ) -> Option<usize> {
        let terms = self.terms(request, stage);
        let decays = terms.weights.settings().overlap_score_credit_decay > 0.0;
        if terms.preferring || decays {
            return None;
        }
        let mut costs = std::mem::take(&mut self.scratch.costs);
        costs.clear();
        let loads = self.tracker.loads();
        let slots = 0..self.fleet.slots_end() as u32;
        // First as if nobody held anything: the few who do are then scored once more.
        let bare = |slot, may_load| {
            self.bare_cost(&terms, slot, loads.sums_of(slot), PromptShare::default(), may_load)
        };
        match terms.lenders.is_empty() {
            // Without a call for plans the compiler scores several workers at once.
            true => costs.extend(slots.map(|slot| bare(slot, false).total)),
            false => costs.extend(slots.map(|slot| bare(slot, true).total)),
        }
        for slot in self.scratch.shares.slots() {
            let (sums, share) = (loads.sums_of(slot), self.scratch.shares.of(slot));
            let may_load = terms.may_load(share.overlap);
            costs[slot as usize] = self.bare_cost(&terms, slot, sums, share, may_load).total;
        }
        let mut takers = 0;
        for (cost, open) in costs.iter_mut().zip(self.fleet.all_open()) {
            let takes = open.is_some_and(|role| stage.is_for(role));
            *cost = if takes { *cost } else { f64::INFINITY };
            takers += usize::from(takes);
        }
        self.scratch.costs = costs;
        Some(takers)
    }

    /// As [`Placement::score`], by slot as in [`Placement::score_all`].
    pub(super) fn score_by_slot(&mut self, request: &PlacementRequest<'_>, stage: Stage) {
        let terms = self.terms(request, stage);
        let mut costs = std::mem::take(&mut self.scratch.costs);
        costs.clear();
        costs.resize(self.fleet.slots_end(), f64::INFINITY);
        for &slot in &self.scratch.eligible {
            costs[slot as usize] = self.cost(request, &terms, slot).total;
        }
        self.scratch.costs = costs;
    }

    /// As [`Placement::score`], with all that the costs are made of in `scratch.candidates`.
    pub(super) fn explain(&mut self, request: &PlacementRequest<'_>, stage: Stage) {
        let terms = self.terms(request, stage);
        let mut candidates = std::mem::take(&mut self.scratch.candidates);
        candidates.clear();
        let ready = self.learner.is_ready();
        candidates.extend(self.scratch.eligible.iter().map(|&slot| {
            let PromptShare { overlap, active_blocks, .. } = self.scratch.shares.of(slot);
            Candidate {
                worker: self.fleet.row(slot).worker,
                overlap,
                sources: self.reuse(&terms, slot, overlap).sources,
                active_blocks,
                in_flight: self.tracker.loads().total(slot),
                score: self.cost(request, &terms, slot),
                predicted: ready.then(|| self.prediction(&terms, slot)),
            }
        }));
        self.scratch.costs.clear();
        self.scratch.costs.extend(candidates.iter().map(|candidate| candidate.score.total));
        self.scratch.candidates = candidates;
    }

    /// Predicted latency of the request at a worker; `None` until enough is learnt.
    pub(super) fn predicted(
        &self,
        request: &PlacementRequest<'_>,
        stage: Stage,
        slot: u32,
    ) -> Option<Prediction> {
        let ready = self.learner.is_ready();
        ready.then(|| self.prediction(&self.terms(request, stage), slot))
    }

    /// Whether costs are predicted times now.
    pub(super) fn is_timed(&self) -> bool {
        match self.settings.cost {
            CostModel::Blocks => false,
            CostModel::Time => self.learner.knows_prefill(),
            CostModel::Auto => self.learner.is_ready(),
        }
    }

    /// Tokens of the prompt in its first blocks.
    pub(super) fn cached_tokens(&self, request: &PlacementRequest<'_>, blocks: u32) -> u32 {
        let block_size = self.settings.block_size.get();
        blocks.saturating_mul(block_size).min(request.prompt_tokens)
    }

    /// Blocks of the prompt, complete or not.
    pub(super) fn prompt_blocks(&self, request: &PlacementRequest<'_>) -> u32 {
        let by_tokens = request.prompt_tokens.div_ceil(self.settings.block_size.get());
        by_tokens.max(length(request.sequence))
    }

    pub(super) fn terms(&self, request: &PlacementRequest<'_>, stage: Stage) -> Terms {
        let weights = *request.weights.unwrap_or(&self.settings.weights);
        let weights = match stage {
            // The prompt is computed elsewhere: nothing of it is to be saved here.
            Stage::Decode { .. } => weights.without_prefill(),
            _ => weights,
        };
        let loads = self.tracker.loads();
        // Only a credit that decays asks how much the least busy one has to do.
        let least_backlog_tokens = match weights.settings().overlap_score_credit_decay > 0.0 {
            true => {
                let slots = self.scratch.eligible.iter();
                let backlogs = slots.map(|&slot| loads.sums_of(slot).prefill_tokens);
                backlogs.reduce(f64::min).unwrap_or_default()
            }
            false => 0.0,
        };
        let output = self.learner.output_tokens().unwrap_or(OUTPUT_TOKENS);
        let output = match (request.expected_output_tokens, request.said_output_tokens()) {
            (None, Some(most)) => output.min(f64::from(most)),
            (_, said) => said.map_or(output, f64::from),
        };
        let bound = match self.affinity() {
            Some(Affinity::Soft(weight)) => self.bound(request, stage).map(|slot| (slot, weight)),
            _ => None,
        };
        Terms {
            stage,
            timed: self.is_timed(),
            weights,
            prompt_tokens: request.prompt_tokens,
            prompt_blocks: self.prompt_blocks(request),
            lenders: if stage.computes() { self.best_holders() } else { Lenders::default() },
            output_tokens: if stage.answers() { output.max(1.0) } else { 0.0 },
            // Of what comes to other replicas nothing is heard: as much as is in flight from them.
            arrivals_per_s: self.learner.arrivals_per_s() * loads.everybody()
                / self.fleet.len().max(1) as f64,
            mean_requests: loads.all_requests() as f64 / self.fleet.len().max(1) as f64,
            least_backlog_tokens,
            fleet_speed: self.learner.fleet_speed(),
            now_s: self.now.0.as_secs_f64(),
            bound,
            preferring: request.needs.is_some()
                || request.adapter.is_some()
                || bound.is_some()
                || matches!(stage, Stage::Decode { .. }),
        }
    }

    fn cost(&self, request: &PlacementRequest<'_>, terms: &Terms, slot: u32) -> Score {
        let (sums, share) = (self.tracker.loads().sums_of(slot), self.scratch.shares.of(slot));
        let mut score = self.bare_cost(terms, slot, sums, share, terms.may_load(share.overlap));
        if terms.preferring {
            score.total *= preference(self.preferred(request, terms, slot));
        }
        score
    }

    /// The cost of a worker, before anything makes it preferable; `may_load` by [`Terms::may_load`].
    #[inline]
    fn bare_cost(
        &self,
        terms: &Terms,
        slot: u32,
        sums: &Sums,
        share: PromptShare,
        may_load: bool,
    ) -> Score {
        match terms.timed {
            true => self.timed(terms, slot, sums, share, may_load).0,
            false => self.in_blocks(terms, slot, sums, share, may_load),
        }
    }

    /// Predicted latency of a request at a worker.
    fn prediction(&self, terms: &Terms, slot: u32) -> Prediction {
        let (sums, share) = (self.tracker.loads().sums_of(slot), self.scratch.shares.of(slot));
        self.timed(terms, slot, sums, share, terms.may_load(share.overlap)).1
    }

    #[inline]
    fn in_blocks(
        &self,
        terms: &Terms,
        slot: u32,
        sums: &Sums,
        share: PromptShare,
        may_load: bool,
    ) -> Score {
        let answers = terms.stage.answers();
        let new_blocks = f64::from(self.new_blocks(terms, share));
        let inputs = Inputs {
            prompt_tokens: terms.prompt_tokens,
            prompt_blocks: terms.prompt_blocks,
            block_size: self.settings.block_size.get(),
            overlap: if terms.stage.computes() { share.overlap } else { Overlap::default() },
            outer_credit: match may_load {
                true => self.outer_credit(terms, slot, share.overlap),
                false => 0.0,
            },
            backlog_tokens: sums.prefill_tokens,
            least_backlog_tokens: terms.least_backlog_tokens,
            potential_blocks: if answers { sums.blocks + new_blocks } else { 0.0 },
            requests: sums.requests,
        };
        score(&terms.weights, &inputs)
    }

    #[inline]
    fn timed(
        &self,
        terms: &Terms,
        slot: u32,
        sums: &Sums,
        share: PromptShare,
        may_load: bool,
    ) -> (Score, Prediction) {
        let speed = self.learner.speed_of(slot, &terms.fleet_speed);
        let (own_s, transfer_s, load_s) = match terms.stage {
            Stage::Decode { prefill } => {
                // The other worker computes the prompt: only its KV takes time here.
                let blocks = terms.prompt_blocks.saturating_sub(share.overlap.blocks());
                (0.0, self.transfer_s(prefill, slot, f64::from(blocks)), 0.0)
            }
            _ => {
                let (saved, load_s) = match may_load {
                    true => {
                        let plan = self.timed_reuse(terms, slot, share.overlap);
                        (plan.saved, plan.load_s)
                    }
                    false => (share.overlap.on(Medium::Device).into(), 0.0),
                };
                (self.compute_s(terms, saved, &speed), 0.0, load_s)
            }
        };
        let inputs = TimeInputs {
            speed,
            requests: sums.requests,
            blocks: sums.blocks,
            total_blocks: f64::from(self.fleet.row(slot).total_blocks),
            queue_s: speed.prefill(sums.backlog(terms.now_s, &speed)),
            own_s,
            new_blocks: f64::from(self.new_blocks(terms, share)),
            output_tokens: terms.output_tokens,
            arrivals_per_s: terms.arrivals_per_s,
            mean_requests: terms.mean_requests,
            transfer_s,
            load_s,
        };
        time_score(&self.settings.time_weights, &inputs)
    }

    /// Blocks that the request adds to those in use.
    fn new_blocks(&self, terms: &Terms, share: PromptShare) -> u32 {
        let reuse = terms.weights.settings().assume_kv_reuse;
        terms.prompt_blocks.saturating_sub(if reuse { share.active_blocks } else { 0 })
    }

    /// Seconds until blocks that one worker computed are at another.
    fn transfer_s(&self, from: u32, to: u32, blocks: f64) -> f64 {
        self.learner.transfer(from, to, blocks).unwrap_or_else(|| {
            let [from, to] = [from, to].map(|slot| &self.fleet.state(slot).profile.topology);
            transfer_guess(from, to, blocks)
        })
    }

    /// Preference for a worker beyond its cost, as a sum of weights.
    fn preferred(&self, request: &PlacementRequest<'_>, terms: &Terms, slot: u32) -> f64 {
        let row = self.fleet.row(slot);
        let labels = match request.needs {
            Some(_) => self.scratch.verdicts[row.labels as usize].unwrap_or_default(),
            None => 0.0,
        };
        let adapter = match request.adapter {
            Some(adapter) if self.fleet.with_adapter(adapter).binary_search(&slot).is_ok() => {
                ADAPTER_WEIGHT
            }
            _ => 0.0,
        };
        let session = terms.bound.filter(|bound| bound.0 == slot).map_or(0.0, |bound| bound.1);
        // Where times are predicted they count the way of the transfer.
        let near = match terms.stage {
            Stage::Decode { prefill } if !terms.timed => self.nearness_weight(prefill, slot),
            _ => 0.0,
        };
        labels + adapter + session + near
    }

    fn nearness_weight(&self, prefill: u32, slot: u32) -> f64 {
        let [one, other] = [prefill, slot].map(|slot| &self.fleet.state(slot).profile.topology);
        match one.shared(other) {
            Some(Level::Host) => 1.0,
            Some(Level::Rack) => 0.5,
            Some(Level::Zone) => 0.25,
            None => 0.0,
        }
    }
}

pub(super) fn length(sequence: &[SequenceHash]) -> u32 {
    u32::try_from(sequence.len()).unwrap_or(u32::MAX)
}
