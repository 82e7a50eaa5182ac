//! Whether another worker should compute a request's prompt.

use crate::constraint::{Level, Topology};
use crate::cost::{InvalidWeight, InvalidWeights};
use crate::reuse::LoadTime;

/// Rule for computing a prompt on another worker than the one that answers, in a fleet that has
/// workers for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Split {
    /// Never, but where no worker could do all of it.
    Never,
    /// Whenever a worker for it takes requests.
    Always,
    /// If the answering worker lacks enough of the prompt.
    Uncached(UncachedThreshold),
    /// Unless the worker for it has more than so many prompt tokens to compute already.
    PrefillLoad(u64),
    /// If that is predicted to be faster, counting the queue, the transfer and what the prompt
    /// would delay on the answering worker; as [`Split::Uncached`] by default until enough was
    /// seen to tell.
    #[default]
    Measured,
}

/// Uncached part of a prompt from which on another worker computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UncachedThreshold {
    tokens: u32,
    share: f64,
}

impl Default for UncachedThreshold {
    /// 2048 tokens or a share of 0.7.
    ///
    /// Source: `isl_bounding` of Dynamo's conditional disaggregation.
    fn default() -> Self {
        Self { tokens: 2048, share: 0.7 }
    }
}

impl UncachedThreshold {
    /// At least so many tokens, or at least this share (0 to 1) of the prompt. With a share of 1
    /// only the tokens count, as in llm-d's prefix-based decider, whose default is 0 tokens.
    ///
    /// # Errors
    ///
    /// [`InvalidWeights`] if the share is no number from 0 to 1.
    pub fn new(tokens: u32, share: f64) -> Result<Self, InvalidWeights> {
        match (0.0..=1.0).contains(&share) {
            true => Ok(Self { tokens, share }),
            false => {
                let name = "split_uncached_share";
                Err(InvalidWeights(vec![InvalidWeight { name, value: share, limit: 1.0 }]))
            }
        }
    }

    /// Whether a prompt of which `uncached` of `tokens` are missing is worth the transfer.
    pub(crate) fn reached(&self, uncached: u32, tokens: u32) -> bool {
        let by_share = self.share < 1.0
            && f64::from(uncached) >= self.share * f64::from(tokens)
            && uncached > 0;
        uncached >= self.tokens || by_share
    }
}

/// Why a request is on one worker or on two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SplitReason {
    /// Two: no worker takes all of it, and the one that answers computes no prompts.
    NobodyAlone,
    /// One: there are no workers for prompts that could take it.
    NoPrefillWorkers,
    /// One or two: the policy wants it always or never.
    Policy,
    /// One or two: by how much of the prompt is missing.
    Uncached,
    /// One or two: by what the worker for prompts has to do.
    PrefillLoad,
    /// One or two: by predicted times.
    Measured,
}

/// Required nearness of a worker that computes a prompt and the worker that answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nearness {
    /// As the transfer costs.
    #[default]
    ByCost,
    /// Within one such part of the fleet.
    Within(Level),
}

impl Nearness {
    /// Whether two workers are near enough.
    pub(crate) fn allows(self, one: &Topology, other: &Topology) -> bool {
        match self {
            Self::ByCost => true,
            Self::Within(level) => one.shared(other).is_some_and(|shared| shared <= level),
        }
    }
}

/// Before any was seen a transfer is taken to start within this time.
const TRANSFER_START_S: f64 = 5e-3;
/// And each block to take this long within a rack: 2 MiB at about 25 GB/s.
///
/// Source: 16 tokens of Llama 3.1 8B, over one 200 Gb/s network card.
const TRANSFER_BLOCK_S: f64 = 85e-6;

/// Bytes of a block for which [`TRANSFER_BLOCK_S`] holds.
const TRANSFER_BLOCK_BYTES: f64 = 2_097_152.0;

/// Time of a transfer between workers before any was seen. Blocks of unknown size count as large.
pub(crate) fn transfer_time_guess(
    one: &Topology,
    other: &Topology,
    block_bytes: Option<f64>,
) -> LoadTime {
    let size = block_bytes.map_or(1.0, |bytes| bytes / TRANSFER_BLOCK_BYTES);
    let block_s = TRANSFER_BLOCK_S * size * slowness(one, other);
    LoadTime { latency_s: TRANSFER_START_S, block_s }
}

/// Seconds that the transfer of `blocks` is taken to take before any was seen.
pub(crate) fn transfer_guess(one: &Topology, other: &Topology, blocks: f64) -> f64 {
    let block_s = TRANSFER_BLOCK_S * slowness(one, other);
    if blocks > 0.0 { TRANSFER_START_S + block_s * blocks } else { 0.0 }
}

/// Factor by which the way between two workers is slower than within a rack.
fn slowness(one: &Topology, other: &Topology) -> f64 {
    let slower = match one.shared(other) {
        Some(Level::Host) => 0.25,
        Some(Level::Rack) => 1.0,
        Some(Level::Zone) => 2.0,
        None => 4.0,
    };
    // Where nothing is known of either, the network is taken to be good.
    let unknown = *one == Topology::default() || *other == Topology::default();
    if unknown { 1.0 } else { slower }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::Label;

    #[test]
    fn thresholds_are_those_of_their_sources() {
        let dynamo = UncachedThreshold::default();
        for (uncached, tokens, reached) in
            [(2047, 4000, false), (2048, 4000, true), (700, 1000, true), (699, 1000, false)]
        {
            assert_eq!(dynamo.reached(uncached, tokens), reached, "{uncached} of {tokens}");
        }
        let llm_d = UncachedThreshold::new(100, 1.0).expect("the share is in range");
        assert!(llm_d.reached(100, 5000) && !llm_d.reached(99, 99));
        assert!(UncachedThreshold::new(0, 1.0).expect("in range").reached(0, 10));
        for share in [f64::NAN, -0.1, 1.1] {
            assert!(UncachedThreshold::new(0, share).is_err());
        }
    }

    #[test]
    fn a_guess_grows_with_blocks_and_distance() {
        let at = |host, rack, zone| Topology {
            host: Some(Label(host)),
            rack: Some(Label(rack)),
            zone: Some(Label(zone)),
        };
        let here = at(1, 1, 1);
        let others = [at(1, 1, 1), at(2, 1, 1), at(2, 2, 1), at(2, 2, 2)];
        let guesses = others.map(|other| transfer_guess(&here, &other, 800.0));
        assert!(guesses.is_sorted_by(|one, other| one < other), "{guesses:?}");
        assert_eq!(transfer_guess(&here, &here, 0.0), 0.0);
        let allowed = others.map(|other| Nearness::Within(Level::Rack).allows(&here, &other));
        assert_eq!(allowed, [true, true, false, false]);
        assert!(Nearness::ByCost.allows(&here, &others[3]));
        let unknown = Topology::default();
        assert!(!Nearness::Within(Level::Zone).allows(&here, &unknown));
    }
}
