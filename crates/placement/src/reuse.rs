//! Sources of a prompt's leading blocks at a worker: its own memory, its tiers, another worker that
//! lends them; the rest is computed.
//!
//! Blocks are taken from their place as long as that is predicted to be faster than to compute them:
//! no plan is slower than one that loads nothing. Times are those that the worker's agent measured.

use crate::constraint::Label;
use crate::sources::PrefixSources;
use arrayvec::ArrayVec;
use stator_kv_index::Overlap;
use stator_protos::WorkerRank;
use stator_protos::kv_event::Medium;
use stator_protos::load::{LoadCost, PEER_COSTS_MAX, TierCosts};
use stator_protos::worker::KV_HOLDERS_MAX;

/// Other workers that hold leading blocks of a prompt and lend them, the one with most first.
pub type Holders = ArrayVec<Holder, KV_HOLDERS_MAX>;

/// A worker that lends leading blocks of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The worker.
    pub worker: WorkerRank,
    /// Leading blocks that it holds where others can read them.
    pub blocks: u32,
}

/// Time to load blocks from one place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoadTime {
    pub(crate) latency_s: f64,
    pub(crate) block_s: f64,
}

impl LoadTime {
    fn new(cost: LoadCost) -> Option<Self> {
        let latency_s = match cost.latency_us {
            LoadCost::NEVER_US.. => f64::INFINITY,
            us => us as f64 * 1e-6,
        };
        cost.is_known().then_some(Self { latency_s, block_s: cost.block_ns as f64 * 1e-9 })
    }

    /// Seconds to load so many blocks.
    pub(crate) fn seconds(&self, blocks: u32) -> f64 {
        self.latency_s + self.block_s * f64::from(blocks)
    }
}

/// Measured times of one worker; `None` where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WorkerLoads {
    pub(crate) by_medium: [Option<LoadTime>; Medium::ALL.len()],
    pub(crate) peer: Option<LoadTime>,
    /// Seconds in which the engine computes a block.
    pub(crate) compute_s: Option<f64>,
    /// Bytes of a block.
    pub(crate) block_bytes: Option<f64>,
    /// Number of agents of which [`PairLoads`] has times.
    pub(crate) pairs: u8,
}

impl WorkerLoads {
    /// The times that an agent reported.
    pub(crate) fn new(costs: &TierCosts) -> Self {
        let TierCosts { block_bytes, compute_ns, host, disk, remote, peer, .. } = *costs;
        let some = |number: u64| (number > 0).then_some(number as f64);
        let [host, disk, remote, peer] = [host, disk, remote, peer].map(LoadTime::new);
        Self {
            by_medium: [None, host, disk, remote],
            peer,
            compute_s: some(compute_ns).map(|ns| ns * 1e-9),
            block_bytes: some(block_bytes),
            pairs: costs.peers.iter().filter(|peer| peer.holder != 0).count() as u8,
        }
    }
}

/// Measured times of one worker's loads from single agents. They stand apart from [`WorkerLoads`],
/// which picks read of every worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PairLoads {
    holders: [Label; PEER_COSTS_MAX],
    times: [Option<LoadTime>; PEER_COSTS_MAX],
}

impl Default for PairLoads {
    fn default() -> Self {
        Self::new(&TierCosts::default())
    }
}

impl PairLoads {
    /// The times that an agent reported.
    pub(crate) fn new(costs: &TierCosts) -> Self {
        Self {
            holders: costs.peers.map(|peer| Label(peer.holder)),
            times: costs.peers.map(|peer| LoadTime::new(peer.cost)),
        }
    }

    /// The time of loads from the agent that lends under this label, if it was measured.
    pub(crate) fn of(&self, lends: Label) -> Option<LoadTime> {
        let place = self.holders.iter().position(|holder| *holder == lends)?;
        self.times[place]
    }
}

/// Blocks that another worker lends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Loan {
    pub(crate) worker: WorkerRank,
    /// Leading blocks of the prompt.
    pub(crate) blocks: u32,
    /// Time to fetch them; `None` where nothing is known of it.
    pub(crate) time: Option<LoadTime>,
}

/// Inputs to the plan for one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReuseInputs<'a> {
    pub(crate) overlap: Overlap,
    pub(crate) loads: &'a WorkerLoads,
    /// By medium, the share of a block's computation that is taken to be saved where the time of a
    /// load is not known. The last one is also that of what others lend.
    pub(crate) weights: [f64; Medium::ALL.len()],
    pub(crate) loan: Option<Loan>,
}

/// Blocks that a worker takes from each source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ReusePlan {
    pub(crate) sources: PrefixSources,
    /// Blocks whose computation is saved.
    pub(crate) saved: f64,
    /// Seconds until the last of the others is there: places are read side by side.
    pub(crate) load_s: f64,
}

impl ReusePlan {
    /// The plan to use the worker's own memory and nothing else.
    pub(crate) fn device(overlap: Overlap) -> Self {
        let blocks = overlap.on(Medium::Device);
        let own = Overlap::new([blocks, 0, 0, 0]);
        let sources = PrefixSources { own, ..PrefixSources::default() };
        Self { sources, saved: blocks.into(), load_s: 0.0 }
    }

    /// The plan with the least time; `compute_s` says how long the rest takes if so many blocks are
    /// saved. Of equal ones that which loads less.
    #[inline]
    pub(crate) fn best(inputs: &ReuseInputs<'_>, compute_s: impl Fn(f64) -> f64) -> Self {
        let mut here = Self::device(inputs.overlap);
        let (mut best, mut best_s) = (here, compute_s(here.saved));
        let mut weigh = |plan: Self| {
            let seconds = plan.load_s + compute_s(plan.saved);
            if seconds < best_s {
                (best, best_s) = (plan, seconds);
            }
        };
        here.lent(inputs).into_iter().for_each(&mut weigh);
        // Along a prompt blocks only get farther: what is behind a place needs the place too.
        for medium in [Medium::Host, Medium::Disk, Medium::Remote] {
            if inputs.overlap.on(medium) > 0 {
                here = here.and(medium, inputs);
                weigh(here);
                here.lent(inputs).into_iter().for_each(&mut weigh);
            }
        }
        best
    }

    /// This plan with the worker's blocks on one more medium.
    fn and(mut self, medium: Medium, inputs: &ReuseInputs<'_>) -> Self {
        let blocks = inputs.overlap.on(medium);
        let mut by_medium = Medium::ALL.map(|medium| self.sources.own.on(medium));
        by_medium[medium as usize] = blocks;
        self.sources.own = Overlap::new(by_medium);
        let at = medium as usize;
        self.load(blocks, inputs.loads.by_medium[at], inputs.weights[at]);
        self
    }

    /// This plan with what another worker has beyond it.
    fn lent(mut self, inputs: &ReuseInputs<'_>) -> Option<Self> {
        let Loan { worker, blocks, time } = inputs.loan?;
        let more = blocks.checked_sub(self.sources.own.blocks()).filter(|more| *more > 0)?;
        (self.sources.fetched, self.sources.from) = (more, Some(worker));
        self.load(more, time, inputs.weights[Medium::Remote as usize]);
        Some(self)
    }

    fn load(&mut self, blocks: u32, time: Option<LoadTime>, weight: f64) {
        match time {
            Some(time) => {
                self.saved += f64::from(blocks);
                self.load_s = self.load_s.max(time.seconds(blocks));
            }
            None => self.saved += weight * f64::from(blocks),
        }
    }
}

/// A worker that lends most of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BestHolder {
    pub(crate) slot: u32,
    pub(crate) holder: Holder,
    /// Its agent.
    pub(crate) lends: Label,
}

impl BestHolder {
    /// Blocks that it lends, in this time.
    pub(crate) fn loan(&self, time: LoadTime) -> Loan {
        Loan { worker: self.holder.worker, blocks: self.holder.blocks, time: Some(time) }
    }
}

/// Workers that lend equally much of a prompt and more than all others, of each agent one, in the order
/// of their identity.
#[derive(Clone, Debug, Default)]
pub(crate) struct BestHolders(ArrayVec<BestHolder, KV_HOLDERS_MAX>);

impl BestHolders {
    /// The workers, whatever the order in which they are found.
    pub(crate) fn of(lenders: impl Iterator<Item = BestHolder>) -> Self {
        let mut best = Self::default();
        lenders.for_each(|lender| best.add(lender));
        best
    }

    /// The first of them.
    pub(crate) fn first(&self) -> Option<&BestHolder> {
        self.0.first()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &BestHolder> {
        self.0.iter()
    }

    fn add(&mut self, lender: BestHolder) {
        let blocks = self.first().map_or(0, |best| best.holder.blocks);
        if lender.holder.blocks > blocks {
            self.0.clear();
        } else if lender.holder.blocks < blocks {
            return;
        }
        let is_before = |other: &BestHolder| other.holder.worker < lender.holder.worker;
        if let Some(same) = self.0.iter().position(|other| other.lends == lender.lends) {
            if is_before(&self.0[same]) {
                return;
            }
            self.0.remove(same);
        }
        let place = self.0.iter().take_while(|other| is_before(other)).count();
        if place == self.0.capacity() {
            return;
        }
        if self.0.is_full() {
            self.0.pop();
        }
        self.0.insert(place, lender);
    }
}

/// Blocks of an overlap that a worker with tiers can lend: those in host memory, where its agent has
/// those of the device, too, and none behind a block that is farther.
pub(crate) fn lendable(overlap: Overlap) -> u32 {
    overlap.on(Medium::Device) + overlap.on(Medium::Host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, option, prelude::*};
    use stator_protos::WorkerId;

    const OTHER: WorkerRank = WorkerRank { worker: WorkerId(7), rank: 0 };
    const WEIGHTS: [f64; 4] = [1.0, 0.75, 0.25, 0.5];

    /// Times in milliseconds: latency and for each block, of host, disk, remote and others.
    fn loads(ms: [Option<(f64, f64)>; 4]) -> WorkerLoads {
        let time = |ms: Option<(f64, f64)>| {
            ms.map(|(latency, block)| LoadTime { latency_s: latency / 1e3, block_s: block / 1e3 })
        };
        let [host, disk, remote, peer] = ms.map(time);
        let by_medium = [None, host, disk, remote];
        WorkerLoads { by_medium, peer, ..WorkerLoads::default() }
    }

    fn inputs<'a>(overlap: [u32; 4], loads: &'a WorkerLoads, lent: u32) -> ReuseInputs<'a> {
        let loan = Loan { worker: OTHER, blocks: lent, time: loads.peer };
        let overlap = Overlap::new(overlap);
        ReuseInputs { overlap, loads, weights: WEIGHTS, loan: Some(loan) }
    }

    /// Seconds to compute what is left of 100 blocks, at 10 ms each.
    fn compute_s(saved: f64) -> f64 {
        (100.0 - saved).max(0.0) * 0.01
    }

    fn best(overlap: [u32; 4], loads: &WorkerLoads, lent: u32) -> ReusePlan {
        ReusePlan::best(&inputs(overlap, loads, lent), compute_s)
    }

    #[test]
    fn a_tier_is_read_where_that_is_faster() {
        let quick = loads([Some((1.0, 1.0)), Some((5.0, 4.0)), None, None]);
        let plan = best([10, 20, 30, 0], &quick, 0);
        assert_eq!((plan.sources.own.blocks(), plan.saved), (60, 60.0));
        assert!((plan.load_s - 0.125).abs() < 1e-9, "tiers are read side by side");
        let slow = loads([Some((1.0, 1.0)), Some((5.0, 11.0)), None, None]);
        assert_eq!(best([10, 20, 30, 0], &slow, 0).sources.own.blocks(), 30);
        let broken = loads([Some((f64::INFINITY, 0.0)), None, None, None]);
        assert_eq!(
            best([10, 20, 30, 0], &broken, 0),
            ReusePlan::device(Overlap::new([10, 0, 0, 0]))
        );
    }

    #[test]
    fn what_was_not_measured_counts_by_its_weight() {
        let plan = best([10, 20, 40, 0], &WorkerLoads::default(), 0);
        assert_eq!((plan.saved, plan.load_s), (10.0 + 15.0 + 10.0, 0.0));
        assert_eq!(plan.sources.own.blocks(), 70);
    }

    #[test]
    fn blocks_are_fetched_where_that_is_faster_than_the_own_disk_and_than_computing() {
        let near = loads([Some((0.0, 0.1)), Some((5.0, 8.0)), None, Some((2.0, 1.0))]);
        let plan = best([10, 20, 30, 0], &near, 80);
        assert_eq!((plan.sources.own.blocks(), plan.sources.fetched), (30, 50));
        let text = plan.sources.to_string();
        assert_eq!(text, format!("10 blocks device, 20 host, 50 from worker {OTHER}"));
        let far = loads([Some((0.0, 0.1)), Some((5.0, 8.0)), None, Some((2.0, 40.0))]);
        assert_eq!(best([10, 20, 30, 0], &far, 80).sources.fetched, 0);
        // Nothing beyond its own.
        assert_eq!(best([10, 20, 0, 0], &near, 30).sources.fetched, 0);
        assert_eq!(best([0; 4], &near, 0).sources.to_string(), "nothing cached");
        let fetched = best([0; 4], &near, 9).sources;
        assert_eq!(fetched.to_string(), format!("9 blocks from worker {OTHER}"));
    }

    #[test]
    fn reports_of_agents_are_understood() {
        let never = LoadCost { latency_us: LoadCost::NEVER_US, block_ns: 0 };
        let disk = LoadCost { latency_us: 500, block_ns: 2_000 };
        let costs =
            TierCosts { compute_ns: 1_000_000, disk, remote: never, ..TierCosts::default() };
        let loads = WorkerLoads::new(&costs);
        assert_eq!((loads.compute_s, loads.peer, loads.block_bytes), (Some(1e-3), None, None));
        let [_, host, disk, remote] = loads.by_medium;
        assert_eq!(host, None);
        assert!((disk.unwrap().seconds(1000) - 2.5e-3).abs() < 1e-12);
        assert_eq!(remote.unwrap().seconds(0), f64::INFINITY);
    }

    proptest! {
        /// Of the lenders those with most blocks are kept, of each agent the first worker, and of the
        /// agents the first ones.
        #[test]
        fn the_best_holders_are_those_of_a_sorted_list(
            lenders in vec((0..9_u64, 1..4_u32), 0..20),
        ) {
            let mut lenders: Vec<_> = (0..).zip(lenders).map(|(number, (agent, blocks))| {
                let worker = WorkerRank { worker: WorkerId(number * 7 % 20), rank: number as u16 };
                let holder = Holder { worker, blocks };
                BestHolder { slot: number as u32, holder, lends: Label(agent) }
            }).collect();
            let best = BestHolders::of(lenders.iter().copied());
            lenders.sort_by_key(|of| (std::cmp::Reverse(of.holder.blocks), of.holder.worker));
            let most = lenders.first().map_or(0, |first| first.holder.blocks);
            let mut wanted: Vec<BestHolder> = Vec::new();
            for lender in lenders.into_iter().filter(|of| of.holder.blocks == most) {
                if wanted.iter().all(|other| other.lends != lender.lends) {
                    wanted.push(lender);
                }
            }
            wanted.truncate(KV_HOLDERS_MAX);
            prop_assert_eq!(best.iter().copied().collect::<Vec<_>>(), wanted);
        }

        /// No other end of the prefix, with or without lent blocks behind it, is faster, and
        /// neither is computing all of it.
        #[test]
        fn no_other_plan_is_faster(
            overlap in [0..30_u32, 0..30_u32, 0..30_u32, 0..30_u32],
            times in vec(option::of((0.0..50.0_f64, 0.0..20.0_f64)), 4),
            lent in 0..140_u32,
        ) {
            let times: [_; 4] = times.try_into().expect("there are four");
            let loads = loads(times);
            let plan = best(overlap, &loads, lent);
            let seconds = plan.load_s + compute_s(plan.saved);
            prop_assert!(plan.sources.own.on(Medium::Device) == overlap[0]);
            for media in 1..=4_usize {
                for lends in [false, true] {
                    let held: u32 = overlap[..media].iter().sum();
                    let more = if lends { lent.saturating_sub(held) } else { 0 };
                    let blocks = |at: usize| if at < 4 { overlap[at] } else { more };
                    let read = (1..media).chain([4]).filter(|&at| blocks(at) > 0);
                    let (mut load, mut saved) = (0.0_f64, f64::from(overlap[0]));
                    for at in read {
                        let weight = WEIGHTS[at.min(3)];
                        match times[at - 1] {
                            Some((latency, block)) => {
                                load = load.max((latency + block * f64::from(blocks(at))) / 1e3);
                                saved += f64::from(blocks(at));
                            }
                            None => saved += weight * f64::from(blocks(at)),
                        }
                    }
                    prop_assert!(seconds <= load + compute_s(saved) + 1e-9, "{media} {lends}");
                }
            }
            prop_assert!(seconds <= compute_s(f64::from(overlap[0])));
        }
    }
}
