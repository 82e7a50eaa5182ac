//! Input and output of an engine: its capacities, requests and their progress.

use super::block::BlockId;
use super::rates::Rates;
use super::tiers::TierLimits;
use crate::time::Ps;
use stator_timing::Timing;

/// Names a sequence of one engine until it has ended.
pub(crate) type SequenceId = u32;

/// Capacities of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks on the device.
    pub total_blocks: u32,
    /// Tiers below the device.
    pub tiers: TierLimits,
    /// Sequences computed together.
    pub max_running: u32,
    /// Tokens computed in one step, at least `max_running`.
    pub step_tokens: u32,
    /// Computing one block of a prompt, about: what loads are weighed against.
    pub block_prefill: Ps,
    /// Most steps computed at once; 1 computes each alone, to the same effect.
    pub stride: u32,
}

impl EngineLimits {
    /// Time in which an engine computes a block in the middle of a prompt of usual length.
    pub fn block_prefill(timing: &Timing, block_size: u32) -> Ps {
        /// Tokens before the block.
        const BEFORE: u32 = 4_096;
        Rates::new(timing, 1.0).chunk(BEFORE, BEFORE + block_size)
    }
}

/// A request, or what is left of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submission<'a> {
    /// Its number, handed back with its outputs.
    pub(crate) request: u32,
    /// Tokens to begin with.
    pub(crate) tokens: u32,
    /// Tokens to generate, at least 1.
    pub(crate) output: u32,
    /// Identities of its leading blocks; those behind `tokens` are filled by its output.
    pub(crate) blocks: &'a [BlockId],
    /// KV of all tokens but the last that are not here comes from elsewhere in so long a time.
    pub(crate) transfer: Option<Ps>,
    /// Whether its blocks stay until [`Engine::drop_parked`](super::Engine::drop_parked).
    pub(crate) park: bool,
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineOutput {
    /// Its first token here came; so many tokens were not computed but reused.
    First { request: u32, cached_tokens: u32 },
    /// Its last token came.
    Last { request: u32 },
}
