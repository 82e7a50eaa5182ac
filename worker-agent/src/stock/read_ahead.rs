//! Reads from the tiers for requests that have just come.
//!
//! An engine takes new requests between two of its steps, and asks the agent for their blocks then at
//! the earliest. A step that computes long prompts takes a good part of a second, in which disk and
//! object store can work: the agent knows the blocks by the tokens that came with the request.

use super::sink::LifeSink;
use crate::kv::tiers::TierBoard;
use futures::future::{self, Either};
use stator_engine::Request;
use stator_protos::hash::{HashSeed, sequence_hashes};
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;

/// The tiers below the host memory of a rank's engine.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    board: Arc<TierBoard>,
    /// Tokens of a block.
    block_size: NonZeroU32,
}

impl ReadAhead {
    /// Reads for an engine with blocks of so many tokens.
    pub(super) fn new(board: Arc<TierBoard>, block_size: NonZeroU32) -> Self {
        Self { board, block_size }
    }

    /// Has the tiers read the blocks of a prompt that are behind those in the engine's memory and in
    /// the agent's, as far as that is faster than to compute them. The engine asks for them as always.
    /// If anything is read, the call never returns: dropping it ends the reads.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future says that the request has ended: reads that still wait are dropped.
    pub(super) async fn begin(&self, request: &Request, lora: Option<&str>, sink: Arc<LifeSink>) {
        if !self.board.can_read_ahead(self.block_size.get()) {
            return;
        }
        let seed = HashSeed::new(lora, request.cache_salt.as_deref());
        let mut hashes = Vec::new();
        sequence_hashes(&request.tokens, self.block_size, seed, &mut hashes);
        let hashes = sink.behind_memory(hashes).await;
        if hashes.is_empty() {
            return;
        }
        if let Some(_reads) = self.board.read_ahead(self.block_size.get(), &hashes) {
            future::pending::<()>().await;
        }
    }
}

/// The result of `work`, with `other` beside it for as long as it takes.
pub(super) async fn beside<T>(other: impl Future<Output = ()>, work: impl Future<Output = T>) -> T {
    match future::select(pin!(work), pin!(other)).await {
        Either::Left((done, _)) => done,
        Either::Right(((), work)) => work.await,
    }
}

#[cfg(test)]
mod tests;
