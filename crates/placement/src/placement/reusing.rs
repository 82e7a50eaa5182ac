//! Sources of a prompt's blocks at each worker, and the workers that lend them.

use super::Placement;
use super::scoring::Terms;
use super::stage::Stage;
use crate::constraint::Label;
use crate::cost::WeightSettings;
use crate::decision::PlacementRequest;
use crate::learn::Speed;
use crate::reuse::{
    BestHolder, BestHolders, DiskPart, Holder, Holders, Lenders, LoadTime, Loan, Loans,
    ReuseInputs, ReusePlan, WorkerLoads, lendable,
};
use crate::sources::PrefixSources;
use crate::split::transfer_time_guess;
use crate::work::Work;
use stator_kv_index::Overlap;
use stator_protos::kv_event::Medium;
use stator_protos::worker::KV_HOLDERS_MAX;

/// Times of a worker of which nothing was measured.
const UNMEASURED: WorkerLoads =
    WorkerLoads { by_medium: [None; 4], peer: None, compute_s: None, block_bytes: None, pairs: 0 };

impl Placement {
    /// Sources of the prompt's leading blocks at a worker that takes this part of the request.
    pub(super) fn sources(
        &self,
        request: &PlacementRequest<'_>,
        stage: Stage,
        slot: u32,
    ) -> PrefixSources {
        let overlap = self.scratch.shares.of(slot).overlap;
        if !stage.computes() {
            return PrefixSources { own: overlap, ..PrefixSources::default() };
        }
        self.reuse(&self.terms(request, stage), slot, overlap).sources
    }

    /// The plan for a worker that computes the prompt.
    pub(super) fn reuse(&self, terms: &Terms, slot: u32, overlap: Overlap) -> ReusePlan {
        if terms.timed {
            return self.timed_reuse(terms, slot, overlap);
        }
        let plan = self.reuse_in_blocks(terms, slot, overlap);
        plan.map_or_else(|| ReusePlan::device(overlap), |(plan, _)| plan)
    }

    /// The plan by the pace that the worker's agent decides by, or by learnt times of prompts where it
    /// told none. The agent might not follow a plan by other times.
    // Few workers have anything to load: the loop over all of them stays small without this. It looks the
    // speed up itself: a speed that is lent by the loop has to lie in memory, where each load of two of its
    // numbers waits for the stores.
    #[inline(never)]
    pub(super) fn timed_reuse(&self, terms: &Terms, slot: u32, overlap: Overlap) -> ReusePlan {
        let loans = self.loans(terms, slot, overlap);
        if loans == [None; 2] && overlap.blocks() == overlap.on(Medium::Device) {
            return ReusePlan::device(overlap);
        }
        let (loads, weights) = (self.fleet.loads(slot), weights(terms));
        let inputs = ReuseInputs { overlap, loads, weights, loans };
        if let Some(block_s) = loads.compute_s {
            return plan_by_pace(terms, &inputs, block_s);
        }
        let speed = self.learner.speed_of(slot, &terms.fleet_speed);
        ReusePlan::best(&inputs, |saved| self.compute_s(terms, saved, &speed))
    }

    /// Blocks of prefill that blocks outside a worker's device save.
    #[inline(never)]
    pub(super) fn outer_credit(&self, terms: &Terms, slot: u32, overlap: Overlap) -> f64 {
        self.reuse_in_blocks(terms, slot, overlap).map_or(0.0, |(plan, load_blocks)| {
            plan.saved - f64::from(overlap.on(Medium::Device)) - load_blocks
        })
    }

    /// The plan by the time in which the worker's engine computes a block, and the blocks that it would
    /// compute while it loads; by weights alone where that time was not measured. `None` where there is
    /// nothing to load.
    fn reuse_in_blocks(
        &self,
        terms: &Terms,
        slot: u32,
        overlap: Overlap,
    ) -> Option<(ReusePlan, f64)> {
        if !terms.stage.computes() {
            return None;
        }
        let loans = self.loans(terms, slot, overlap);
        if loans == [None; 2] && overlap.blocks() == overlap.on(Medium::Device) {
            return None;
        }
        let (loads, weights) = (self.fleet.loads(slot), weights(terms));
        let Some(compute_s) = loads.compute_s else {
            // Without a time to compare with, nobody is to wait for another's disk.
            let unmeasured = loans[0].map(|loan| Loan { time: None, ..loan });
            let (loads, loans) = (&UNMEASURED, [unmeasured, None]);
            let inputs = ReuseInputs { overlap, loads, weights, loans };
            return Some((plan_by_pace(terms, &inputs, 1.0), 0.0));
        };
        let inputs = ReuseInputs { overlap, loads, weights, loans };
        let plan = plan_by_pace(terms, &inputs, compute_s);
        Some((plan, plan.load_s / compute_s))
    }

    /// Seconds to compute a prompt of which so many blocks need not be. At least one token: the last is
    /// always computed.
    #[inline]
    pub(super) fn compute_s(&self, terms: &Terms, saved: f64, speed: &Speed) -> f64 {
        let tokens = f64::from(terms.prompt_tokens);
        let saved_tokens = saved * f64::from(self.settings.block_size.get());
        speed.work(Work::of((tokens - saved_tokens).max(1.0), tokens))
    }

    /// Blocks that the best holders lend to a worker, if they are more than the worker's device has.
    #[inline]
    fn loans(&self, terms: &Terms, slot: u32, overlap: Overlap) -> Loans {
        let Lenders { memory, disk } = &terms.lenders;
        [memory, disk].map(|lenders| self.loan(lenders, slot, overlap))
    }

    #[inline]
    fn loan(&self, lenders: &BestHolders, slot: u32, overlap: Overlap) -> Option<Loan> {
        let best = lenders.first()?;
        // Workers of one agent share its tiers.
        let own = self.fleet.row(slot).lends?;
        if own == best.lends || best.holder.blocks <= overlap.on(Medium::Device) {
            return None;
        }
        let loads = self.fleet.loads(slot);
        if loads.pairs > 0 {
            return self.nearest_loan(lenders, slot, own);
        }
        Some(best.loan(loads.peer.unwrap_or_else(|| self.guessed_time(best.slot, slot))))
    }

    /// The loan of the best holder from which a worker has it first. A pair that was not measured has the
    /// mean of the worker's pairs.
    #[inline(never)]
    fn nearest_loan(&self, lenders: &BestHolders, slot: u32, own: Label) -> Option<Loan> {
        let (mean, pairs) = (self.fleet.loads(slot).peer, self.fleet.pair_loads(slot));
        let others = lenders.iter().filter(|best| best.lends != own);
        let loans = others.map(|best| {
            let time = pairs.of(best.lends).or(mean);
            let loan = best.loan(time.unwrap_or_else(|| self.guessed_time(best.slot, slot)));
            (loan.seconds(loan.blocks).unwrap_or(f64::INFINITY), loan)
        });
        let nearest = loans.reduce(|one, other| if other.0 < one.0 { other } else { one });
        nearest.map(|(_, loan)| loan)
    }

    /// The time to load from a holder of which nothing was measured, by where both stand.
    fn guessed_time(&self, holding: u32, slot: u32) -> LoadTime {
        let [one, other] = [holding, slot].map(|slot| &self.fleet.state(slot).profile.topology);
        transfer_time_guess(one, other, self.fleet.loads(slot).block_bytes)
    }

    /// The workers that lend most of the prompt.
    pub(super) fn best_holders(&self) -> Lenders {
        let memory = BestHolders::of(self.lenders(&PrefixSources::default()));
        let beyond = memory.first().map_or(0, |best| best.holder.blocks);
        Lenders { disk: BestHolders::of(self.disk_lenders(beyond)), memory }
    }

    /// Workers from which the one in `slot` may fetch blocks beyond those that it has itself: of each
    /// agent one, first the one that the sources name. Blocks on disk count where the sources count
    /// them: others would be waited for in vain.
    pub(super) fn holders(&self, slot: u32, sources: &PrefixSources) -> Holders {
        let mut holders = Holders::new();
        let Some(own) = self.fleet.row(slot).lends else { return holders };
        let mut agents = [own; KV_HOLDERS_MAX + 1];
        while let Some(next) = self
            .lenders(sources)
            .filter(|of| of.holder.blocks > sources.own.blocks() && !agents.contains(&of.lends))
            .max_by_key(|BestHolder { holder: Holder { worker, blocks }, .. }| {
                (*blocks, sources.from == Some(*worker), std::cmp::Reverse(*worker))
            })
            .filter(|_| !holders.is_full())
        {
            holders.push(next.holder);
            agents[holders.len()] = next.lends;
        }
        holders
    }

    /// Workers with blocks in memory, and the one that the sources name with all that it is to lend.
    fn lenders(&self, sources: &PrefixSources) -> impl Iterator<Item = BestHolder> {
        let (from, planned) = (sources.from, sources.blocks());
        self.scratch.shares.slots().filter_map(move |slot| {
            let row = self.fleet.row(slot);
            let mut blocks = lendable(self.scratch.shares.of(slot).overlap);
            if from == Some(row.worker) {
                blocks = blocks.max(planned);
            }
            let holder = Holder { worker: row.worker, blocks };
            (blocks > 0).then_some(BestHolder { slot, holder, lends: row.lends?, disk: None })
        })
    }

    /// Workers whose disks, of which the times are known, have more of the prompt than so many blocks.
    fn disk_lenders(&self, beyond: u32) -> impl Iterator<Item = BestHolder> {
        self.scratch.shares.slots().filter_map(move |slot| {
            let overlap = self.scratch.shares.of(slot).overlap;
            let on_disk = overlap.on(Medium::Disk);
            let blocks = lendable(overlap) + on_disk;
            if on_disk == 0 || blocks <= beyond {
                return None;
            }
            let time = self.fleet.loads(slot).by_medium[Medium::Disk as usize]?;
            let disk = time.latency_s.is_finite().then_some(DiskPart { blocks: on_disk, time })?;
            let row = self.fleet.row(slot);
            let holder = Holder { worker: row.worker, blocks };
            Some(BestHolder { slot, holder, lends: row.lends?, disk: Some(disk) })
        })
    }
}

/// The plan for an engine that computes a block in so many seconds.
fn plan_by_pace(terms: &Terms, inputs: &ReuseInputs<'_>, block_s: f64) -> ReusePlan {
    let blocks = f64::from(terms.prompt_blocks);
    ReusePlan::best(inputs, |saved| (blocks - saved).max(0.0) * block_s)
}

fn weights(terms: &Terms) -> [f64; Medium::ALL.len()] {
    let weights: &WeightSettings = terms.weights.settings();
    let WeightSettings { host_cache_hit_weight: host, disk_cache_hit_weight: disk, .. } = *weights;
    [1.0, host, disk, weights.shared_cache_multiplier]
}
