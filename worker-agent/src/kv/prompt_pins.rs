//! Prompts that clients pin in the tiers of an engine in another process.

use super::tiers::TierBoard;
use crate::metrics::AgentMetrics;
use crate::request_plane::metadata::RequestMetadata;
use stator_engine::Request;
use stator_pins::PinWish;
use stator_protos::hash::{HashSeed, sequence_hashes};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Pins prompts by the hashes of their blocks, which the engine's modules tell the tiers, too.
#[derive(Clone, Debug)]
pub(crate) struct PromptPins {
    board: Arc<TierBoard>,
    block_size: NonZeroU32,
}

impl PromptPins {
    /// Pins in the tiers of a board, for an engine with blocks of so many tokens.
    pub(crate) fn new(board: Arc<TierBoard>, block_size: NonZeroU32) -> Self {
        Self { board, block_size }
    }

    /// Pins the blocks of a prompt, if its client wishes it. Returns the tokens that are pinned.
    pub(crate) fn pin(
        &self,
        request: &Request,
        metadata: &RequestMetadata,
        metrics: &AgentMetrics,
    ) -> Option<u32> {
        let time = metadata.pin?;
        let seed = HashSeed::new(metadata.lora.as_deref(), request.cache_salt.as_deref());
        let mut hashes = Vec::new();
        let prompt = &request.tokens[..request.tokens.len() - request.resumed];
        sequence_hashes(prompt, self.block_size, seed, &mut hashes);
        let wish = PinWish { tenant: seed.number(), time };
        let cache = self.board.cache(self.block_size.get());
        let pinned = cache.map(|cache| cache.pin_prompt(&hashes, wish)).unwrap_or_default();
        metrics.pins(pinned);
        Some(pinned.pinned as u32 * self.block_size.get())
    }
}
