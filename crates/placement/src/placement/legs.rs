//! Whether others help with a request, and the booking of all who do.

use super::Placement;
use super::scoring::length;
use super::select::WorkerChoice;
use super::shares::PromptShare;
use super::stage::Stage;
use crate::constraint::Role;
use crate::cost::{Prediction, joint_wait};
use crate::decision::{Decision, Leg, PickError, PlacementRequest, Reason};
use crate::mode::Mode;
use crate::random::Random;
use crate::sessions::Affinity;
use crate::split::{Split, SplitReason, UncachedThreshold};
use crate::tracker::{BookingId, Footprint};

/// Workers for prompts that are tried with each worker that answers, cheapest first.
const PREFILL_TRIED: usize = 4;

/// A worker that computes a prompt and one that answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerPair {
    prefill: WorkerChoice,
    decode: WorkerChoice,
    /// Cost, beyond the sum of both, of waiting for one after the other.
    joint: f64,
}

impl WorkerPair {
    fn cost(&self) -> f64 {
        self.prefill.cost + self.decode.cost + self.joint
    }
}

impl Placement {
    /// Whether another worker should compute the prompt than `whole`, which could do it all, and
    /// who answers then.
    pub(super) fn split(
        &mut self,
        request: &PlacementRequest<'_>,
        whole: WorkerChoice,
        random: &mut Random,
    ) -> Result<(SplitReason, Option<WorkerPair>), PickError> {
        if request.prefill_pinned.is_some() {
            self.find_eligible(request, Stage::Prefill)?;
            let pair = self.pair(request, random)?;
            return Ok((SplitReason::Policy, Some(pair)));
        }
        let policy = request.split.unwrap_or(self.settings.split);
        if policy == Split::Never || request.indivisible {
            return Ok((SplitReason::Policy, None));
        }
        if !self.fleet.has_role(Role::Prefill) {
            return Ok((SplitReason::NoPrefillWorkers, None));
        }
        // A session that is bound to a worker which takes no KV of others has all of it there.
        let bound = whole.reason == Reason::Session && self.affinity() == Some(Affinity::Hard);
        if bound && self.fleet.open(whole.slot) != Some(Role::Decode) {
            return Ok((SplitReason::NoPrefillWorkers, None));
        }
        let measured = self.is_timed() && self.settings.mode == Mode::Kv;
        let (wanted, reason) = match policy {
            Split::Uncached(threshold) => {
                (self.lacks(request, whole, threshold), SplitReason::Uncached)
            }
            Split::Measured if !measured => {
                (self.lacks(request, whole, UncachedThreshold::default()), SplitReason::Uncached)
            }
            Split::Measured => (true, SplitReason::Measured),
            Split::PrefillLoad(_) => (true, SplitReason::PrefillLoad),
            Split::Always | Split::Never => (true, SplitReason::Policy),
        };
        if !wanted {
            return Ok((reason, None));
        }
        if self.find_eligible(request, Stage::Prefill).is_err() {
            return Ok((SplitReason::NoPrefillWorkers, None));
        }
        let Ok(pair) = self.pair(request, random) else {
            return Ok((SplitReason::NoPrefillWorkers, None));
        };
        let worth = match policy {
            Split::Measured if measured => pair.cost() < whole.cost,
            Split::PrefillLoad(limit) => {
                self.tracker.loads().total(pair.prefill.slot).prefill_tokens <= limit
            }
            _ => true,
        };
        Ok((reason, worth.then_some(pair)))
    }

    /// Gives a request that nobody could take `alone` to two workers, where some answer only from
    /// prompts that others compute.
    ///
    /// # Errors
    ///
    /// `alone`, or why no two can share it; nothing is booked then.
    pub(super) fn place_shared(
        &mut self,
        request: &PlacementRequest<'_>,
        alone: PickError,
        random: &mut Random,
    ) -> Result<Decision, PickError> {
        let never = request.split.unwrap_or(self.settings.split) == Split::Never;
        let waits = never && matches!(alone, PickError::AllBusy { .. });
        // With `Never`, a request waits for a busy worker rather than being shared.
        if waits || !self.fleet.all_open().contains(&Some(Role::DecodeOnly)) {
            return Err(alone);
        }
        if request.indivisible {
            return Err(if alone == PickError::NoWorkers { PickError::Indivisible } else { alone });
        }
        let found = self.find_eligible(request, Stage::Prefill);
        let pair = found.and_then(|()| self.pair(request, random));
        let pair = pair.map_err(|why| match (alone, why) {
            (_, PickError::AllBusy { .. }) => why,
            (PickError::NoWorkers, PickError::NoWorkers) => PickError::Unshared,
            (PickError::NoWorkers, why) => why,
            (alone, _) => alone,
        })?;
        let encode = self.encode(request, random);
        let decision = self.place(request, pair.decode, Some(pair), encode);
        Ok(Decision { split: SplitReason::NobodyAlone, ..decision })
    }

    /// Whether so much of the prompt is missing at a worker.
    fn lacks(
        &self,
        request: &PlacementRequest<'_>,
        at: WorkerChoice,
        threshold: UncachedThreshold,
    ) -> bool {
        let sources = self.sources(request, Stage::Whole, at.slot);
        let uncached = request.prompt_tokens - self.cached_tokens(request, sources.blocks());
        threshold.reached(uncached, request.prompt_tokens)
    }

    /// The cheapest of the pairs that the cheapest eligible workers for prompts can form.
    fn pair(
        &mut self,
        request: &PlacementRequest<'_>,
        random: &mut Random,
    ) -> Result<WorkerPair, PickError> {
        let mut prefills = self.scratch.eligible.clone();
        let mut best: Result<WorkerPair, PickError> = Err(PickError::NoWorkers);
        for _ in 0..PREFILL_TRIED.min(prefills.len()) {
            self.scratch.eligible.clone_from(&prefills);
            let prefill = self.choose(request, Stage::Prefill, random);
            prefills.retain(|&slot| slot != prefill.slot);
            let stage = Stage::Decode { prefill: prefill.slot };
            let pair = self.find_eligible(request, stage).map(|()| {
                let decode = self.choose(request, stage, random);
                let joint = self.joint(request, prefill, decode);
                WorkerPair { prefill, decode, joint }
            });
            best = match (best, pair) {
                (Ok(best), Ok(pair)) if pair.cost() >= best.cost() => Ok(best),
                (Ok(best), Err(_)) => Ok(best),
                (_, pair) => pair,
            };
            // Only costs tell which pair is the better one.
            if best.is_ok() && self.settings.mode != Mode::Kv {
                break;
            }
        }
        best
    }

    fn joint(
        &self,
        request: &PlacementRequest<'_>,
        prefill: WorkerChoice,
        decode: WorkerChoice,
    ) -> f64 {
        let wait_ms = |stage, chosen: WorkerChoice| {
            self.predicted(request, stage, chosen.slot).map_or(0.0, |seen| seen.ttft_ms)
        };
        let one = wait_ms(Stage::Prefill, prefill);
        let other = wait_ms(Stage::Decode { prefill: prefill.slot }, decode);
        if self.is_timed() { joint_wait(&self.settings.time_weights, one, other) } else { 0.0 }
    }

    /// The least busy worker that encodes media, if the request wants one and there is any.
    pub(super) fn encode(
        &mut self,
        request: &PlacementRequest<'_>,
        random: &mut Random,
    ) -> Option<WorkerChoice> {
        if !request.encode || !self.fleet.has_role(Role::Encode) {
            return None;
        }
        self.find_eligible(request, Stage::Encode).ok()?;
        Some(self.choose(request, Stage::Encode, random))
    }

    /// Books a request at all who take part in it.
    pub(super) fn place(
        &mut self,
        request: &PlacementRequest<'_>,
        whole: WorkerChoice,
        pair: Option<WorkerPair>,
        encode: Option<WorkerChoice>,
    ) -> Decision {
        // Before the bookings below, which would count as the load of others.
        let predicted = self.foresee(request, whole, pair);
        let answers = pair.map_or(whole, |pair| pair.decode);
        let prefill = pair.map(|pair| self.leg(request, pair.prefill.slot, Stage::Prefill));
        let encode = encode.map(|chosen| self.leg(request, chosen.slot, Stage::Encode));
        let stage = match pair {
            Some(pair) => Stage::Decode { prefill: pair.prefill.slot },
            None => Stage::Whole,
        };
        let Leg { worker, booking, overlap_blocks, cached_tokens, sources, holds_until } =
            self.leg(request, answers.slot, stage);
        let sources = prefill.map_or(sources, |leg| leg.sources);
        let computes = pair.map_or(answers.slot, |pair| pair.prefill.slot);
        if let (Some(key), Some(settings)) = (request.session, &self.settings.sessions) {
            self.sessions.bind(key, worker, self.now, settings);
        }
        Decision {
            worker,
            prefill,
            encode,
            booking,
            overlap_blocks,
            cached_tokens,
            sources,
            holders: self.holders(computes, &sources),
            holds_until,
            moved_blocks: pair
                .map_or(0, |_| self.prompt_blocks(request).saturating_sub(overlap_blocks)),
            reason: answers.reason,
            split: SplitReason::NoPrefillWorkers,
            predicted,
            candidates: Vec::new(),
        }
    }

    /// Books a request at the worker of a caller's choice.
    pub(super) fn place_surveyed(&mut self, request: &PlacementRequest<'_>, slot: u32) -> Decision {
        let chosen = WorkerChoice { slot, cost: 0.0, reason: Reason::Pinned };
        let decision = self.place(request, chosen, None, None);
        Decision { split: SplitReason::Policy, ..decision }
    }

    /// Predicted latency of the request, before any of it is booked.
    fn foresee(
        &self,
        request: &PlacementRequest<'_>,
        whole: WorkerChoice,
        pair: Option<WorkerPair>,
    ) -> Option<Prediction> {
        let Some(WorkerPair { prefill, decode, .. }) = pair else {
            return self.predicted(request, Stage::Whole, whole.slot);
        };
        let prompt = self.predicted(request, Stage::Prefill, prefill.slot)?;
        let stage = Stage::Decode { prefill: prefill.slot };
        let answer = self.predicted(request, stage, decode.slot)?;
        Some(Prediction { ttft_ms: prompt.ttft_ms + answer.ttft_ms, ..answer })
    }

    /// Books one part of a request's work.
    fn leg(&mut self, request: &PlacementRequest<'_>, slot: u32, stage: Stage) -> Leg {
        let PromptShare { overlap, .. } = self.scratch.shares.of(slot);
        let worker = self.fleet.row(slot).worker;
        if stage == Stage::Encode {
            let booking = self.book_at(slot, Footprint::default());
            let (sources, holds_until) = Default::default();
            let (overlap_blocks, cached_tokens) = (0, 0);
            return Leg { worker, booking, overlap_blocks, cached_tokens, sources, holds_until };
        }
        let sources = self.sources(request, stage, slot);
        let cached_tokens = self.cached_tokens(request, sources.blocks());
        let weights = request.weights.unwrap_or(&self.settings.weights).settings();
        let shared = if weights.assume_kv_reuse { request.sequence } else { &[] };
        let block_size = self.settings.block_size.get();
        let expected = request.said_output_tokens().filter(|_| weights.output_block_decay);
        let uncached_tokens = u64::from(request.prompt_tokens - cached_tokens);
        let footprint = Footprint {
            shared,
            own_blocks: self.prompt_blocks(request).saturating_sub(length(shared)),
            prefill_tokens: if stage.computes() { uncached_tokens } else { 0 },
            prompt_tokens: request.prompt_tokens.into(),
            loads: sources.loads(),
            expected_output_blocks: expected.map(|tokens| tokens.div_ceil(block_size)),
        };
        let booking = self.book_at(slot, footprint);
        let holds_until = self.prediction_end(worker, self.now);
        // Whoever looked the prompt up without the placement tells what it is sent without it too.
        if let (Some(until), None) = (holds_until, request.overlaps) {
            self.blocks.predict(worker, request.sequence, until);
        }
        let overlap_blocks = overlap.blocks();
        Leg { worker, booking, overlap_blocks, cached_tokens, sources, holds_until }
    }

    fn book_at(&mut self, slot: u32, footprint: Footprint<'_>) -> BookingId {
        let speed = self.learner.speed(slot);
        self.tracker.book(slot, footprint, self.now, &speed)
    }
}
