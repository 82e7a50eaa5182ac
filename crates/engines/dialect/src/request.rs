//! Requests to an engine, and its answers.

use serde_json::value::RawValue;
pub use stator_protos::logprobs::TokenLogprobs;
use stator_protos::worker::Sampling;
use std::sync::Arc;

/// One completion of one prompt.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Names the request in the engine and its logs: 1 to 64 of `A-Z a-z 0-9 . _ -`, unique.
    pub id: String,
    /// The prompt.
    pub tokens: Arc<[u32]>,
    /// Sampling and stop conditions; checked by [`Sampling::checked`].
    pub sampling: Arc<Sampling>,
    /// Separates this request's cached blocks from those of other salts.
    pub cache_salt: Option<String>,
    /// LoRA adapter, by the name it was loaded under.
    pub lora: Option<String>,
    /// Larger is more urgent; 0 is usual. Turned round for engines that see it the other way.
    pub priority: i32,
    /// Data-parallel rank that is to run it, where the engine has several.
    pub rank: Option<u16>,
    /// Trace that the request belongs to.
    pub trace: Option<Trace>,
    /// Number by which the agent's KV tiers know where else KV of the prompt may be, for engines that
    /// ask them for blocks. Told to an engine that computes the prompt by what it has itself.
    pub kv_hint: Option<u64>,
    /// This engine's share of the request.
    pub hand: Hand,
}

/// W3C trace context: the parent of the engine's own spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// `traceparent`.
    pub parent: String,
    /// `tracestate`, where there is one.
    pub state: Option<String>,
}

/// An engine's share of a request that two may serve together.
#[derive(Clone, Debug, Default)]
pub enum Hand {
    /// All of it.
    #[default]
    Whole,
    /// Compute the prompt for another engine, and one token; told what the [`Manner`] has for it.
    Prefill(Option<Box<RawValue>>),
    /// Answer, with the KV of the prompt that another computes.
    Decode(Box<RawValue>),
    /// Give a token of a prompt that nobody needs: proof that it serves, also of an engine that
    /// does one part of each request and never all of it.
    Canary,
}

/// A request that two engines are to do, as far as their manner depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRequest {
    /// Names it, and is unique.
    pub request: u64,
    /// The prefill engine's data-parallel rank that computes the prompt.
    pub rank: u16,
    /// Logprobs of its tokens are asked for.
    pub logprobs: bool,
}

/// Protocol by which two engines serve one request. Payloads are opaque JSON of their connector.
#[derive(Clone, Debug)]
pub enum Manner {
    /// First one, then the other: prefill's last [`Delta::handover`] is what decode is told.
    InTurn {
        /// For [`Hand::Prefill`], where the connector wants it to know who decodes.
        prefill: Option<Box<RawValue>>,
        /// Use of prefill's token.
        first: FirstToken,
    },
    /// Both at once.
    Together {
        /// For [`Hand::Prefill`].
        prefill: Box<RawValue>,
        /// For [`Hand::Decode`].
        decode: Box<RawValue>,
        /// Use of prefill's token; never [`FirstToken::Taken`].
        first: FirstToken,
        /// Whether the KV sets out when the prompt is computed and prefill has answered. Otherwise
        /// it is on its way before, and nobody outside can tell how long that takes.
        prompt_first: bool,
    },
}

/// Use of the token that a prefill gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstToken {
    /// Nothing: decode computes the last position of the prompt once more, and chooses itself.
    Dropped,
    /// The engines pass it on: decode's answer begins with it.
    Passed,
    /// They do so unless it ends the answer: then prefill's answer is all of it, and decode, which
    /// would wait for nothing, is to hear so.
    PassedUnlessLast,
    /// Decode goes on from it where it is told of it as the last token of its prompt, which then
    /// must neither begin a block of so many tokens nor fill one: there is no room for it in what
    /// is handed over, or a block would count as whole before it is.
    Taken {
        /// Tokens per KV block of both engines, at least 1.
        block_size: u32,
    },
}

impl FirstToken {
    /// Whether decode can go on from the token behind a prompt of so many tokens.
    pub fn is_taken_behind(self, prompt_tokens: usize) -> bool {
        match self {
            Self::Taken { block_size } => {
                let block_size = block_size.max(1) as usize;
                (1..block_size - 1).contains(&(prompt_tokens % block_size))
            }
            Self::Dropped | Self::Passed | Self::PassedUnlessLast => false,
        }
    }
}

/// One piece of an engine's answer.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// New tokens, in order; of a prefill the one that decode can go on from, if any.
    pub tokens: Vec<u32>,
    /// One entry per new token where logprobs were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// With the first delta, where prompt logprobs were asked for: one entry per prompt token from
    /// the second on.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Prompt tokens whose KV was already there, once the engine says so.
    pub cached_tokens: Option<u32>,
    /// The only thing that comes of a request for a vector, of any length: see [`Pooling`].
    pub pooled: Vec<f32>,
    /// Payload for decode, in the last delta of a prefill in turn.
    pub handover: Option<Box<RawValue>>,
    /// Why the answer ends; in its last delta.
    pub finish: Option<Finish>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-sequence or stop token, named where it is the last token of the answer.
    Stop(Option<u32>),
    /// `max_tokens` or the context length.
    Length,
}

/// Why an engine did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It can never do it: the request is at fault.
    #[error("{0}")]
    Invalid(String),
    /// It has no room now: others may have.
    #[error("{0}")]
    Overloaded(String),
    /// It does a part of requests, and was asked for all of one: others do the other part, or both.
    #[error("{0}")]
    Half(String),
    /// It ended the request on its own account: it was paused, reset or told to.
    #[error("the engine aborted the request: {0}")]
    Aborted(String),
    /// It has no such operation.
    #[error("{0}")]
    Unsupported(String),
    /// It could not be reached, or the connection broke.
    #[error("{0}")]
    Unreachable(String),
    /// It failed, or said something that it must not.
    #[error("{0}")]
    Failed(String),
}

/// An operation on an engine as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Forget all cached prefixes.
    ResetCache,
    /// Stop taking steps; what runs stays.
    Pause,
    /// Go on after a pause.
    Resume,
    /// Give device memory back; 1 keeps the weights in host memory, 2 drops them.
    Sleep {
        /// 0 to 2.
        level: u8,
    },
    /// Take device memory again.
    Wake,
    /// Load a LoRA adapter.
    LoadAdapter {
        /// Name that requests ask for.
        name: String,
        /// Path at which the engine finds it.
        path: String,
    },
    /// Unload a LoRA adapter.
    UnloadAdapter {
        /// Its name.
        name: String,
    },
    /// Begin to record a profile.
    StartProfile,
    /// End the profile.
    StopProfile,
    /// Take new weights, as the engine's own interface describes them.
    UpdateWeights {
        /// Its request, opaque.
        request: Box<str>,
    },
}

impl Operation {
    /// Whether an engine usually holds no cached prefix any more once this was done to it.
    pub fn forgets(&self) -> bool {
        matches!(
            self,
            Self::ResetCache | Self::Pause | Self::Sleep { .. } | Self::UpdateWeights { .. }
        )
    }
}

/// Values that an engine makes of a prompt in place of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// A vector of the text.
    Vector,
    /// The probability of each class of the model's head.
    Classes,
}

/// The refusal of a request whose prefixes an engine cannot keep apart. It is read by an operator
/// who gave a proxy API keys.
pub(crate) const UNSALTED: &str = "cache_salt: this version of the engine has none, so that API \
     keys and tenants would share prefixes; a proxy for one owner has --shared-prefixes";

/// An engine's properties and model. `None` means that the engine does not tell.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// `vllm 0.32.0`, for people.
    pub version: String,
    /// Name of the model it serves.
    pub model: String,
    /// Most tokens of prompt and answer together.
    pub context_length: Option<u32>,
    /// Tokens per KV block.
    pub block_size: Option<u32>,
    /// KV blocks of each data-parallel rank.
    pub total_blocks: Option<u32>,
    /// Tokens computed in one step at most.
    pub batch_tokens: Option<u32>,
    /// Data-parallel ranks, at least 1.
    pub ranks: u16,
    /// KV event publisher of each rank, in order; empty if the engine publishes none.
    pub events: Vec<EventSource>,
    /// LoRA adapters that are loaded.
    pub adapters: Vec<String>,
    /// Payload for engines that decode after this one's prefill: opaque JSON that names the
    /// connector and its needs. `None` without a connector.
    pub handover: Option<Box<RawValue>>,
    /// It goes on from prompts that others computed, and computes none itself.
    pub needs_prefill: bool,
    /// Whether the engine is known to end thoughts that are too long.
    pub bounds_thoughts: bool,
    /// Values that the engine makes of prompts, if it answers none.
    pub pooling: Option<Pooling>,
    /// Whether the server of a client's own words keeps prefixes apart by the field `cache_salt`.
    pub takes_cache_salt: bool,
}

/// One rank's publisher of KV events, as ZMQ endpoints that others can connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSource {
    /// Publisher: `tcp://host:port` or `ipc:///path`.
    pub endpoint: String,
    /// Replay, where it is on.
    pub replay: Option<String>,
    /// Topic that is published under.
    pub topic: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_taken_only_into_the_middle_of_a_block() {
        let taken = FirstToken::Taken { block_size: 4 };
        let lengths = |first: FirstToken| -> Vec<usize> {
            (1..10).filter(|tokens| first.is_taken_behind(*tokens)).collect()
        };
        // Four tokens leave no room; behind seven, the eighth would fill the block.
        assert_eq!(lengths(taken), [1, 2, 5, 6, 9]);
        assert_eq!(lengths(FirstToken::Taken { block_size: 2 }), [0; 0]);
        assert_eq!(lengths(FirstToken::Taken { block_size: 0 }), [0; 0]);
        assert_eq!(lengths(FirstToken::Dropped), [0; 0]);
        assert_eq!(lengths(FirstToken::Passed), [0; 0]);
    }
}
