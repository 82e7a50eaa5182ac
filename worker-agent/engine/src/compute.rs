//! The arithmetic that a scheduler needs: the narrow side of a model.

use std::time::Duration;

use super::TokenLogprobs;
use super::memory::BlockMemory;
use super::options::Pooling;
use super::pool::BlockId;
use super::tiers::KvCopies;
use super::transfer::KvForm;
use stator_guide::Guide;
use stator_protos::worker::Sampling;

/// Computes tokens: real arithmetic, or a model of its timing.
///
/// The result for one item must not depend on the other items of the step, nor on how the item's
/// tokens were divided into steps.
pub trait Compute: BlockMemory + Send {
    /// Computes the items of one step and writes one result per item, in order, to `results`,
    /// which is empty. Does the copies meanwhile: a block that comes is there before it is read.
    /// Returns how long the step is to take where time is simulated, zero where it took its time.
    fn run(
        &mut self,
        items: &[Item<'_>],
        copies: KvCopies<'_>,
        results: &mut Vec<ItemResult>,
    ) -> Duration;

    /// Gives the memory of all KV back until the next step. No block holds any.
    fn release(&mut self);

    /// Form of the KV, apart from the tokens of a block.
    fn form(&self) -> KvForm;
}

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// All its tokens: prompt, resumed and generated.
    pub tokens: &'a [u32],
    /// Tokens whose KV is in `blocks` already; below `end`.
    pub start: usize,
    /// Tokens whose KV is to be there after the step; at most `tokens.len()`.
    pub end: usize,
    /// Blocks with its KV: token `i` stands in `blocks[i / block_size]`. Blocks from `start /
    /// block_size` on are its own and may be written.
    pub blocks: &'a [BlockId],
    /// The draw of the next token; set when `end` is `tokens.len()`.
    pub draw: Option<Draw<'a>>,
    /// Logprobs wanted of the prompt, with this many alternatives: one entry for each token in
    /// `start + 1..=end` that exists.
    pub prompt_logprobs: Option<u32>,
    /// The vector that is made of the prompt in the place of a token.
    pub pool: Option<PoolItem<'a>>,
}

/// The share of an item in the vector of its prompt.
#[derive(Clone, Copy, Debug)]
pub struct PoolItem<'a> {
    /// How the vector is made.
    pub pooling: Pooling,
    /// With [`Pooling::Mean`], the sum over the tokens before `start`; empty before the first.
    pub sum: &'a [f32],
}

/// The inputs that decide a token, apart from its logits. The draw is a pure function of them, so
/// that a sequence that is preempted or moved to another engine continues unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// The request's parameters.
    pub sampling: &'a Sampling,
    /// Number of the choice.
    pub choice: u32,
    /// Prompt, then the answer so far.
    pub tokens: &'a [u32],
    /// Start of the answer in `tokens`.
    pub prompt: usize,
    /// The model's end-of-sequence tokens.
    pub eos_token_ids: &'a [u32],
    /// The answer's form, where it has one: what may come next.
    pub guide: Option<&'a Guide>,
    /// The token that comes next whatever the logits are.
    pub forced: Option<u32>,
}

impl Draw<'_> {
    /// Place of the token to choose in the answer, from 0.
    pub fn position(&self) -> usize {
        self.tokens.len() - self.prompt
    }
}

/// Results of a step for one item.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ItemResult {
    /// The next token, where the item asked to draw one.
    pub token: Option<u32>,
    /// With the token, where the request asked for logprobs.
    pub logprobs: Option<TokenLogprobs>,
    /// Logprobs of the prompt, if the item asked for them.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// If the item has a share in a vector: with [`Pooling::Mean`] the sum over all tokens before
    /// `end`, added one after the other; with [`Pooling::Last`] the values of the last token, and
    /// nothing before that is computed.
    pub pooled: Vec<f32>,
}
