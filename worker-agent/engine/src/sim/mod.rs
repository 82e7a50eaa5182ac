//! The simulated engine: the real scheduler and block pool around a timing model.
//!
//! It holds no KV and does no arithmetic, so that one machine can act as a fleet of hundreds of
//! workers. Its tokens are made up, and the same every time.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use stator_protos::hash::{HashSeed, block_hash};

use super::TokenLogprobs;
use super::compute::{Compute, Draw, Item, ItemResult};
use super::memory::BlockMemory;
use super::options::{EngineOptions, InvalidOption, ModelInfo};
use super::pool::BlockId;
use super::scheduler::Scheduler;
use super::tiers::KvCopies;
use super::transfer::KvForm;
use stator_timing::Timing;

/// Tokens at the end of the prompt that decide the answer.
const DECIDING_TOKENS: usize = 32;
/// Values of a prompt's vector.
const VECTOR_LENGTH: u64 = 32;

/// Settings of the simulation.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// The model it stands for. Its end-of-sequence tokens are never generated.
    pub model: ModelInfo,
    /// Tokens that answers are made of, below the vocabulary size; empty for all. Readable tokens
    /// make readable answers.
    pub answer_tokens: Arc<[u32]>,
    /// Timing of steps.
    pub timing: Timing,
    /// Divides every duration; above 0, and 1 is real time.
    pub speedup: f64,
}

/// Why a simulated engine was not made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// A limit is out of its range.
    #[error(transparent)]
    Option(#[from] InvalidOption),
    /// Durations cannot be divided by this.
    #[error("speedup: {0} is not a number above 0")]
    Speedup(f64),
    /// An answer token does not exist.
    #[error("answer_tokens: {token} is not below the vocabulary size {vocab_size}")]
    AnswerToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: u32,
    },
    /// No token is left to answer with.
    #[error("no token of the vocabulary of {vocab_size} is left to answer with")]
    NoAnswerTokens {
        /// Size of the vocabulary.
        vocab_size: u32,
    },
}

/// An engine whose time is simulated.
pub type SimEngine = Scheduler<SimCompute>;

/// An idle simulated engine.
///
/// # Errors
///
/// [`SimError`] names the option that is out of its range.
pub fn engine(sim: SimOptions, options: EngineOptions) -> Result<SimEngine, SimError> {
    let model = sim.model.clone();
    Ok(Scheduler::new(SimCompute::new(sim)?, model, options)?)
}

/// Takes time and makes up tokens.
pub struct SimCompute {
    /// Empty for the whole vocabulary without `eos_token_ids`.
    answer_tokens: Arc<[u32]>,
    vocab_size: u32,
    /// In order, without repetitions, below the vocabulary size.
    eos_token_ids: Vec<u32>,
    timing: Timing,
    speedup: f64,
}

impl SimCompute {
    fn new(sim: SimOptions) -> Result<Self, SimError> {
        let SimOptions { model, mut answer_tokens, timing, speedup } = sim;
        let vocab_size = model.vocab_size;
        if !(speedup > 0.0 && speedup.is_finite()) {
            return Err(SimError::Speedup(speedup));
        }
        if let Some(&token) = answer_tokens.iter().find(|token| **token >= vocab_size) {
            return Err(SimError::AnswerToken { token, vocab_size });
        }
        let mut eos_token_ids = model.eos_token_ids;
        eos_token_ids.retain(|token| *token < vocab_size);
        eos_token_ids.sort_unstable();
        eos_token_ids.dedup();
        let all = answer_tokens.is_empty();
        let ends = |token: &u32| eos_token_ids.binary_search(token).is_ok();
        // Hundreds of workers share the caller's list where nothing has to be taken out.
        if answer_tokens.iter().any(ends) {
            answer_tokens = answer_tokens.iter().copied().filter(|token| !ends(token)).collect();
        }
        let none =
            if all { eos_token_ids.len() == vocab_size as usize } else { answer_tokens.is_empty() };
        if none {
            return Err(SimError::NoAnswerTokens { vocab_size });
        }
        Ok(Self { answer_tokens, vocab_size, eos_token_ids, timing, speedup })
    }

    /// The token that this prompt's answer has at this position.
    fn token(&self, draw: &Draw<'_>) -> u32 {
        let prompt = &draw.tokens[..draw.prompt];
        let end = &prompt[prompt.len().saturating_sub(DECIDING_TOKENS)..];
        let mut state = block_hash(end, HashSeed::default()).0 ^ prompt.len() as u64;
        if draw.sampling.temperature > 0.0 {
            state = mix(state ^ draw.sampling.seed).wrapping_add(u64::from(draw.choice));
        }
        let random = mix(state.wrapping_add(mix(draw.position() as u64)));
        if !self.answer_tokens.is_empty() {
            return self.answer_tokens[below(random, self.answer_tokens.len() as u64) as usize];
        }
        let choices = u64::from(self.vocab_size) - self.eos_token_ids.len() as u64;
        // Counts past the tokens that would end the answer.
        let skip = |token, eos: &u32| token + u32::from(token >= *eos);
        self.eos_token_ids.iter().fold(below(random, choices) as u32, skip)
    }

    fn computed(&self, item: &Item<'_>) -> ItemResult {
        let sure = |token, wanted: u32| TokenLogprobs {
            token,
            logprob: 0.0,
            top: std::iter::repeat_n((token, 0.0), wanted.min(1) as usize).collect(),
        };
        let token = item.draw.as_ref().map(|draw| draw.forced.unwrap_or_else(|| self.token(draw)));
        let wanted = item.draw.and_then(|draw| draw.sampling.logprobs);
        let prompt_logprobs = item.prompt_logprobs.map_or_else(Vec::new, |wanted| {
            let following = &item.tokens[item.start + 1..item.tokens.len().min(item.end + 1)];
            following.iter().map(|&token| sure(token, wanted)).collect()
        });
        ItemResult {
            token,
            logprobs: token.zip(wanted).map(|(token, wanted)| sure(token, wanted)),
            prompt_logprobs,
            pooled: match item.pool {
                Some(_) if item.end == item.tokens.len() => vector(item.tokens),
                _ => Vec::new(),
            },
        }
    }
}

/// A prompt's vector, which means nothing.
fn vector(prompt: &[u32]) -> Vec<f32> {
    let seed = block_hash(prompt, HashSeed::default()).0;
    let value = |place| below(mix(seed ^ place), 2001) as f32 / 1000.0 - 1.0;
    (0..VECTOR_LENGTH).map(value).collect()
}

impl Compute for SimCompute {
    fn run(
        &mut self,
        items: &[Item<'_>],
        mut copies: KvCopies<'_>,
        results: &mut Vec<ItemResult>,
    ) -> Duration {
        copies.load(0..0, self);
        copies.store(usize::MAX, self);
        results.extend(items.iter().map(|item| self.computed(item)));
        self.timing.step(items.iter().map(|item| item.start..item.end)).div_f64(self.speedup)
    }

    /// There is none.
    fn release(&mut self) {}

    /// Blocks have no KV, and those of all simulated engines are alike.
    fn form(&self) -> KvForm {
        KvForm { fingerprint: u64::from(self.vocab_size), block_bytes: 0 }
    }
}

impl BlockMemory for SimCompute {
    fn kv(&self, _: BlockId) -> &[u8] {
        &[]
    }

    fn kv_mut(&mut self, _: BlockId) -> &mut [u8] {
        &mut []
    }
}

/// Scrambles a number so that neighbours have nothing in common.
///
/// Source: the output function of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Maps a random number evenly to `0..limit`.
fn below(random: u64, limit: u64) -> u64 {
    ((u128::from(random) * u128::from(limit)) >> 64) as u64
}
