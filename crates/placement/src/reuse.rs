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
use stator_protos::load::{LOAD_MARGIN, LoadCost, PEER_COSTS_MAX, TierCosts};
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

/// Last blocks of a loan, which their holder reads from its disk first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DiskPart {
    pub(crate) blocks: u32,
    /// Time in which the holder reads them.
    pub(crate) time: LoadTime,
}

/// Blocks that another worker lends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Loan {
    pub(crate) worker: WorkerRank,
    /// Leading blocks of the prompt.
    pub(crate) blocks: u32,
    /// Time to fetch them from the holder's memory; `None` where nothing is known of it.
    pub(crate) time: Option<LoadTime>,
    /// The part of these blocks that is on the holder's disk.
    pub(crate) disk: Option<DiskPart>,
}

impl Loan {
    /// Seconds to fetch the last `blocks` of the loan: the holder has them in memory before they come.
    /// `None` where nothing is known of the way.
    pub(crate) fn seconds(&self, blocks: u32) -> Option<f64> {
        let disk = self.disk.map_or(0.0, |disk| disk.time.seconds(disk.blocks.min(blocks)));
        self.time.map(|time| time.seconds(blocks) + disk)
    }
}

/// Inputs to the plan for one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReuseInputs<'a> {
    pub(crate) overlap: Overlap,
    pub(crate) loads: &'a WorkerLoads,
    /// By medium, the share of a block's computation that is taken to be saved where the time of a
    /// load is not known. The last one is also that of what others lend.
    pub(crate) weights: [f64; Medium::ALL.len()],
    pub(crate) loans: Loans,
}

/// Loans to choose from: of what others have in memory, and of what reaches farther with their disks.
pub(crate) type Loans = [Option<Loan>; 2];

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

    /// The plan with the least time, as workers choose it: a load has to save a part of its time
    /// besides. `compute_s` says how long the rest takes if so many blocks are saved. Of equal plans
    /// that which loads less.
    #[inline]
    pub(crate) fn best(inputs: &ReuseInputs<'_>, compute_s: impl Fn(f64) -> f64) -> Self {
        let mut here = Self::device(inputs.overlap);
        let (mut best, mut best_s) = (here, compute_s(here.saved));
        let mut weigh = |plan: Self| {
            let margin = plan.load_s / f64::from(LOAD_MARGIN);
            let seconds = plan.load_s + margin + compute_s(plan.saved);
            if seconds < best_s {
                (best, best_s) = (plan, seconds);
            }
        };
        here.lent(inputs).for_each(&mut weigh);
        // Along a prompt blocks only get farther: what is behind a place needs the place too.
        for medium in [Medium::Host, Medium::Disk, Medium::Remote] {
            if inputs.overlap.on(medium) > 0 {
                here = here.and(medium, inputs);
                weigh(here);
                here.lent(inputs).for_each(&mut weigh);
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
        let seconds = inputs.loads.by_medium[at].map(|time| time.seconds(blocks));
        self.load(blocks, seconds, inputs.weights[at]);
        self
    }

    /// This plan with what another worker has beyond it, for each of the loans.
    fn lent(self, inputs: &ReuseInputs<'_>) -> impl Iterator<Item = Self> + use<> {
        let weight = inputs.weights[Medium::Remote as usize];
        inputs.loans.into_iter().flatten().filter_map(move |loan| {
            let more = loan.blocks.checked_sub(self.sources.own.blocks())?;
            let mut plan = self;
            (plan.sources.fetched, plan.sources.from) = (more, Some(loan.worker));
            plan.load(more, loan.seconds(more), weight);
            (more > 0).then_some(plan)
        })
    }

    /// Adds blocks that are loaded in this time, where it is known.
    fn load(&mut self, blocks: u32, seconds: Option<f64>, weight: f64) {
        match seconds {
            Some(seconds) => {
                self.saved += f64::from(blocks);
                self.load_s = self.load_s.max(seconds);
            }
            None => self.saved += weight * f64::from(blocks),
        }
    }
}

/// A worker that lends most of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BestHolder {
    pub(crate) slot: u32,
    pub(crate) holder: Holder,
    /// Its agent.
    pub(crate) lends: Label,
    /// Blocks that it has to read from its disk first.
    pub(crate) disk: Option<DiskPart>,
}

impl BestHolder {
    /// Blocks that it lends, which come from its memory in this time.
    pub(crate) fn loan(&self, time: LoadTime) -> Loan {
        let Holder { worker, blocks } = self.holder;
        Loan { worker, blocks, time: Some(time), disk: self.disk }
    }
}

/// Workers that lend most of a prompt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lenders {
    /// Workers that have most of the prompt in memory.
    pub(crate) memory: BestHolders,
    /// Workers that have most of it in memory and on disk, if that is more.
    pub(crate) disk: BestHolders,
}

impl Lenders {
    /// Whether nobody lends anything.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.memory.first().is_none() && self.disk.first().is_none()
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

/// Blocks of an overlap that a worker with tiers can lend at once: those in host memory, where its agent
/// has those of the device, too, and none behind a block that is farther.
pub(crate) fn lendable(overlap: Overlap) -> u32 {
    overlap.on(Medium::Device) + overlap.on(Medium::Host)
}

#[cfg(test)]
mod tests;
