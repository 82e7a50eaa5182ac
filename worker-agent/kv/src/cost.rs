//! Load a block or compute it again: whichever is predicted to be done first.
//!
//! A tier is a queue: a read takes the tier's latency and, for itself and for each read before it,
//! the time that the tier needs per block. Both are measured, from the start of a read to its
//! report.

use crate::Now;
use stator_protos::load::LOAD_MARGIN;
use std::num::NonZeroU8;
use std::time::Duration;

/// Most tiers that a store has.
pub const TIERS_MAX: usize = 8;
/// Numbers that a source can have, zero included, which none has.
const SOURCES_MAX: usize = 1 << 8;

/// Bursts over which the latency is averaged.
const LATENCY_SAMPLES: f64 = 8.0;
/// Blocks over which the time per block is averaged. Devices end several reads at once, so that
/// most samples are zero.
const BLOCK_SAMPLES: f64 = 64.0;
/// Age after which a measurement says nothing about now.
pub(crate) const STALE: Duration = Duration::from_secs(5);

/// Measured speed of reads from a tier.
#[derive(Clone, Debug, Default)]
pub struct ReadSpeed {
    /// Seconds until the first of several reads has ended, less its own time.
    latency: Average,
    /// Seconds for each further read.
    per_block: Average,
    in_flight: usize,
    /// When a read ended last, or began with none in flight.
    progress: Now,
    /// When a read ended last.
    measured: Option<Now>,
}

/// A read in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTicket {
    started: Now,
    /// Whether other reads were in flight at its start.
    is_queued: bool,
}

impl ReadSpeed {
    /// A read begins.
    pub fn start(&mut self, now: Now) -> ReadTicket {
        let is_queued = self.in_flight > 0;
        if !is_queued {
            self.progress = now;
            if self.is_stale(now) {
                self.latency.doubt();
                self.per_block.doubt();
            }
        }
        self.in_flight += 1;
        ReadTicket { started: now, is_queued }
    }

    /// A read has ended well.
    pub fn end(&mut self, ticket: ReadTicket, now: Now) {
        if ticket.is_queued {
            // The reads before it had the tier until the last of them ended.
            let own = now.saturating_sub(ticket.started.max(self.progress));
            self.per_block.add(own.as_secs_f64(), BLOCK_SAMPLES);
        } else {
            let all = now.saturating_sub(ticket.started).as_secs_f64();
            self.latency.add((all - self.per_block.mean).max(0.0), LATENCY_SAMPLES);
        }
        self.measured = Some(now);
        self.give_up(now);
    }

    /// A read has ended without a block, which says nothing about speed.
    pub fn give_up(&mut self, now: Now) {
        self.progress = now;
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A read was dropped before it began. That is no progress.
    pub fn drop_queued(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Measured time until the first of several reads has ended, less its own time.
    pub fn latency(&self) -> Duration {
        Duration::from_secs_f64(self.latency.mean)
    }

    /// Measured time for each further read.
    pub fn block(&self) -> Duration {
        Duration::from_secs_f64(self.per_block.mean)
    }

    /// Reads in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Predicted time until `more` reads that begin now, and those in flight, have ended. A tier
    /// that was never measured is taken to be fast.
    pub fn time(&self, more: usize) -> Duration {
        let blocks = (self.in_flight + more) as f64;
        let seconds = self.latency.mean + blocks * self.per_block.mean;
        Duration::from_secs_f64(seconds.min(1e6))
    }

    /// Latency of a read that begins now, with those in flight before it, and the time of each block;
    /// `None` before any was measured.
    pub fn measured(&self) -> Option<(Duration, Duration)> {
        self.measured?;
        let latency = self.latency.mean + self.in_flight as f64 * self.per_block.mean;
        let [latency, block] = [latency, self.per_block.mean].map(|seconds| seconds.min(1e6));
        Some((Duration::from_secs_f64(latency), Duration::from_secs_f64(block)))
    }

    /// Whether no read has ended for so long that the tier should be measured again.
    pub fn is_stale(&self, now: Now) -> bool {
        self.measured.is_none_or(|measured| now.saturating_sub(measured) >= STALE)
    }

    /// Whether reads are in flight and none has ended for `limit`.
    pub fn is_stalled(&self, limit: Duration, now: Now) -> bool {
        self.in_flight > 0 && now.saturating_sub(self.progress) >= limit
    }
}

/// Number of a source within its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub NonZeroU8);

/// Measured cost of reads from one source of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCost {
    /// Time until the first of several blocks begins to come, reads that wait there included.
    pub latency: Duration,
    /// Time for each block.
    pub block: Duration,
}

impl ReadCost {
    /// Predicted time until `reads` reads that begin now have ended.
    pub fn time(&self, reads: usize) -> Duration {
        self.latency.saturating_add(times(self.block, reads))
    }
}

/// Measured time to go over a block in host memory.
#[derive(Clone, Debug, Default)]
pub struct HostPace(Average);

impl HostPace {
    /// Going over so many blocks took this long.
    pub fn add(&mut self, blocks: usize, took: Duration) {
        if blocks > 0 {
            self.0.add(took.as_secs_f64() / blocks as f64, LATENCY_SAMPLES);
        }
    }

    /// The time for one block; `None` before any was measured.
    pub fn block(&self) -> Option<Duration> {
        (self.0.samples > 0.0).then(|| Duration::from_secs_f64(self.0.mean.min(1e6)))
    }
}

/// Mean of the first samples, from then on of the latest ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Average {
    mean: f64,
    samples: f64,
}

impl Average {
    /// The mean; zero before the first sample.
    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// Takes a sample, which weighs as much as one of the latest `over`.
    pub(crate) fn add(&mut self, sample: f64, over: f64) {
        self.samples = (self.samples + 1.0).min(over);
        self.mean += (sample - self.mean) / self.samples;
    }

    /// Begins anew with the next sample: what was measured is long ago.
    fn doubt(&mut self) {
        self.samples = 0.0;
    }
}

/// Time that an engine needs to go on with a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnginePace {
    /// Time in which it computes a block; zero if it is not known.
    pub block_prefill: Duration,
    /// Time from the start of a load until the request goes on, even if all is in host memory: most
    /// engines look for loads that have ended once a step.
    pub load: Duration,
}

/// An engine whose loads take no time of their own.
impl From<Duration> for EnginePace {
    fn from(block_prefill: Duration) -> Self {
        Self { block_prefill, load: Duration::ZERO }
    }
}

/// Source of a prompt's next block, if it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadSource {
    /// Host memory: it costs nothing.
    Host,
    /// A read from this tier that is in flight.
    InFlight(usize),
    /// A new read from this tier.
    Tier(usize),
    /// A new read from a source of a tier whose cost is known.
    Located {
        /// The tier.
        tier: usize,
        /// Its source.
        source: SourceId,
    },
}

/// Number of leading blocks to load, if the engine computes the others after those have come.
///
/// The time for `n` of `N` blocks is that of the slowest source among the first `n` and a quarter more, plus
/// `(N - n) * block_prefill`, plus `load` if `n` is not zero: the result has the least time, and loads
/// the fewest blocks for it. `time` predicts how long so many new reads from a source take, with those
/// in flight there. Tiers work side by side, and so do the sources of a tier. A `block_prefill` of zero
/// means that it is unknown: all are loaded.
pub fn blocks_to_load(
    sources: impl ExactSizeIterator<Item = LoadSource>,
    time: impl Fn(LoadSource, usize) -> Duration,
    EnginePace { block_prefill, load }: EnginePace,
) -> usize {
    let all = sources.len();
    if block_prefill.is_zero() {
        return all;
    }
    let mut reads = [0; TIERS_MAX];
    let mut located = [0; SOURCES_MAX];
    let mut reading = Duration::ZERO;
    let (mut best, mut best_time) = (0, times(block_prefill, all));
    for (before, source) in sources.enumerate() {
        let more = match source {
            LoadSource::Host | LoadSource::InFlight(_) => 0,
            LoadSource::Tier(tier) => count(&mut reads[tier]),
            LoadSource::Located { source, .. } => count(&mut located[usize::from(source.0.get())]),
        };
        reading = reading.max(time(source, more));
        let n = before + 1;
        let all_time = load + with_margin(reading) + times(block_prefill, all - n);
        if all_time < best_time {
            (best, best_time) = (n, all_time);
        }
    }
    best
}

/// Whether a read of so many blocks in this time pays, against computing them. Where the engine's pace
/// is not known, every read does.
pub(crate) fn saves_time(reading: Duration, blocks: usize, pace: EnginePace) -> bool {
    let computing = times(pace.block_prefill, blocks);
    computing.is_zero() || with_margin(reading) < computing
}

/// The time of a read and the part of it that the read has to save besides.
fn with_margin(reading: Duration) -> Duration {
    reading + reading / LOAD_MARGIN
}

fn count(reads: &mut usize) -> usize {
    *reads += 1;
    *reads
}

/// The time in which an engine computes `blocks` blocks.
pub fn times(block_prefill: Duration, blocks: usize) -> Duration {
    block_prefill.saturating_mul(u32::try_from(blocks).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn ms(of: u64) -> Duration {
        Duration::from_millis(of)
    }

    /// A tier that needs `latency` and `per_block` milliseconds, measured by a burst of reads.
    fn measured(latency: u64, per_block: u64) -> ReadSpeed {
        let mut speed = ReadSpeed::default();
        for round in 0..50 {
            let start = ms(100_000 * round);
            let tickets: Vec<_> = (0..10).map(|_| speed.start(start)).collect();
            for (at, ticket) in (1..).zip(tickets) {
                speed.end(ticket, start + ms(latency + at * per_block));
            }
        }
        speed
    }

    #[test]
    fn what_is_in_flight_is_part_of_the_measured_latency() {
        let mut speed = measured(40, 3);
        let close = |of: Duration, to: u64| of.abs_diff(ms(to)) < ms(4);
        let (latency, block) = speed.measured().unwrap();
        assert!(close(latency, 40) && close(block, 3), "{latency:?} {block:?}");
        for _ in 0..10 {
            speed.start(ms(9_000_000));
        }
        assert!(close(speed.measured().unwrap().0, 70));
        assert_eq!(ReadSpeed::default().measured(), None);
        let mut host = HostPace::default();
        assert_eq!(host.block(), None);
        host.add(4, ms(8));
        assert_eq!(host.block(), Some(ms(2)));
    }

    /// Costs of the sources 1, 2 and 3 of every tier: the third is far.
    fn cost(source: SourceId) -> ReadCost {
        let number = u64::from(source.0.get());
        ReadCost { latency: ms(4 * number), block: ms(number * number * number) }
    }

    fn source(number: u8) -> LoadSource {
        LoadSource::Located { tier: 2, source: SourceId(NonZeroU8::new(number).unwrap()) }
    }

    fn read_time(tiers: &[&ReadSpeed], source: LoadSource, reads: usize) -> Duration {
        match source {
            LoadSource::Host => Duration::ZERO,
            LoadSource::InFlight(tier) | LoadSource::Tier(tier) => tiers[tier].time(reads),
            LoadSource::Located { source, .. } => cost(source).time(reads),
        }
    }

    fn load(sources: &[LoadSource], tiers: &[&ReadSpeed], prefill: Duration) -> usize {
        let time = |source, reads| read_time(tiers, source, reads);
        blocks_to_load(sources.iter().copied(), time, prefill.into())
    }

    #[test]
    fn bursts_tell_latency_and_time_per_block_apart() {
        let speed = measured(40, 3);
        let close = |of: Duration, to: u64| of.abs_diff(ms(to)) < ms(4);
        assert!(close(speed.time(1), 43), "{:?}", speed.time(1));
        assert!(close(speed.time(100), 340), "{:?}", speed.time(100));
    }

    #[test]
    fn a_tier_that_was_slow_long_ago_is_known_by_the_next_burst() {
        let mut speed = measured(400, 30);
        let start = ms(100_000 * 60);
        let tickets: Vec<_> = (0..8).map(|_| speed.start(start)).collect();
        for (at, ticket) in (1..).zip(tickets) {
            speed.end(ticket, start + ms(4 + at));
        }
        let time = speed.time(8);
        assert!((ms(8)..ms(20)).contains(&time), "{time:?}");
    }

    #[test]
    fn a_tier_slower_than_computing_is_not_read() {
        let tier = measured(0, 10);
        let sources = [LoadSource::Tier(0); 100];
        assert_eq!(load(&sources, &[&tier], ms(9)), 0);
        // The pace of the engine may be wrong by a fifth.
        assert_eq!(load(&sources, &[&tier], ms(12)), 0);
        assert_eq!(load(&sources, &[&tier], ms(13)), 100);
    }

    #[test]
    fn latency_has_to_pay_off() {
        let tier = measured(100, 1);
        assert_eq!(load(&[LoadSource::Tier(0); 5], &[&tier], ms(10)), 0);
        assert_eq!(load(&[LoadSource::Tier(0); 50], &[&tier], ms(10)), 50);
    }

    #[test]
    fn a_load_that_takes_the_engine_longer_than_computing_is_not_made() {
        let tier = measured(0, 1);
        let load = |blocks: usize| {
            let pace = EnginePace { block_prefill: ms(10), load: ms(60) };
            let time = |_, reads| tier.time(reads);
            blocks_to_load(vec![LoadSource::Tier(0); blocks].into_iter(), time, pace)
        };
        assert_eq!([load(6), load(7)], [0, 7]);
    }

    #[test]
    fn the_part_in_a_slow_tier_is_computed() {
        let (disk, far) = (measured(0, 1), measured(0, 50));
        let sources: Vec<_> = (0..20).map(|at| LoadSource::Tier(usize::from(at >= 12))).collect();
        assert_eq!(load(&sources, &[&disk, &far], ms(10)), 12);
    }

    #[test]
    fn each_source_of_a_tier_has_its_own_cost() {
        let mean = measured(0, 9);
        assert_eq!(load(&[source(1); 9], &[&mean; 3], ms(2)), 9);
        assert_eq!(load(&[source(3); 9], &[&mean; 3], ms(20)), 0);
        let near_and_far: Vec<_> = (0..20).map(|at| source(1 + 2 * (at / 12))).collect();
        assert_eq!(load(&near_and_far, &[&mean; 3], ms(10)), 12);
    }

    #[test]
    fn an_unmeasured_tier_is_tried() {
        assert_eq!(load(&[LoadSource::Tier(0); 3], &[&ReadSpeed::default()], ms(1)), 3);
    }

    #[test]
    fn a_tier_without_progress_is_stalled() {
        let mut speed = ReadSpeed::default();
        assert!(!speed.is_stalled(ms(10), ms(1000)));
        let first = speed.start(ms(1000));
        speed.start(ms(1005));
        assert!(!speed.is_stalled(ms(10), ms(1009)));
        assert!(speed.is_stalled(ms(10), ms(1010)));
        speed.end(first, ms(1011));
        assert!(!speed.is_stalled(ms(10), ms(1012)));
    }

    fn any_source() -> impl Strategy<Value = LoadSource> {
        prop_oneof![
            Just(LoadSource::Host),
            (0..3_usize).prop_map(LoadSource::InFlight),
            (0..3_usize).prop_map(LoadSource::Tier),
            (1..4_u8).prop_map(source),
        ]
    }

    /// The time until `n` blocks are loaded and the others computed, from the definition.
    fn time_for(
        n: usize,
        sources: &[LoadSource],
        tiers: &[&ReadSpeed],
        prefill: Duration,
    ) -> Duration {
        let reads = |of| sources[..n].iter().filter(|source| **source == of).count();
        let in_flight = |of: &usize| sources[..n].contains(&LoadSource::InFlight(*of));
        let waits = (0..3).filter(in_flight).map(|of| tiers[of].time(0));
        let new = (0..3).map(LoadSource::Tier).chain((1..4).map(source));
        let new = new.filter(|of| reads(*of) > 0).map(|of| read_time(tiers, of, reads(of)));
        let reading = waits.chain(new).max().unwrap_or_default();
        reading + reading / 4 + prefill * (sources.len() - n) as u32
    }

    proptest! {
        #[test]
        fn no_other_split_is_faster(
            sources in vec(any_source(), 0..60),
            tiers in vec((0..200_u64, 0..30_u64, 0..20_usize), 3),
            prefill in 1..40_u64,
        ) {
            let mut speeds = Vec::new();
            for (latency, per_block, in_flight) in tiers {
                let mut speed = measured(latency, per_block);
                (0..in_flight).for_each(|_| { speed.start(ms(9_000_000)); });
                speeds.push(speed);
            }
            let speeds: Vec<_> = speeds.iter().collect();
            let n = load(&sources, &speeds, ms(prefill));
            let time = |n| time_for(n, &sources, &speeds, ms(prefill));
            for other in 0..=sources.len() {
                prop_assert!(time(n) <= time(other), "{n} {other}");
            }
            prop_assert!(time(n) <= time(0));
        }
    }
}
