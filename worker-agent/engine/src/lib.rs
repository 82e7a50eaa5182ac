//! The agent's own engines, built-in and simulated: token ids in, token ids out.
//!
//! [`Engine`] is all that the rest of the agent knows of one. An engine is synchronous, owns its
//! state and does no I/O; the agent drives it, one step at a time. It is a crate of its own because
//! it is compiled for speed in debug builds too. Start reading at [`scheduler`].

pub mod compute;
pub mod cpu;
mod math;
pub mod memory;
pub mod model_files;
pub mod named;
pub mod options;
pub mod pool;
pub mod sampling;
pub mod scheduler;
pub mod sim;
#[cfg(test)]
mod testkit;
pub mod tiers;
pub mod transfer;

use std::sync::Arc;
use std::time::Duration;

use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::KvEvent;
use stator_protos::load::Load;
use stator_protos::name::BlockName;

use named::NamedBlocks;
use stator_pins::{Now, PinOutcome};
use transfer::{ArrivedBlocks, KvForm};

pub use options::{EngineOptions, InvalidOption, ModelInfo, Pooling};
pub use stator_guide::AnswerRules;
pub use stator_protos::logprobs::TokenLogprobs;
use stator_protos::worker::Sampling;

/// A model server's heart: takes requests, computes them in steps, keeps their KV in blocks.
pub trait Engine: Send {
    /// Takes a request, to be answered through [`Engine::step`].
    ///
    /// # Errors
    ///
    /// [`Refusal`] when it can never run here or there is no room to queue it; nothing of it is
    /// kept then.
    fn submit(&mut self, request: Request) -> Result<(), Refusal>;

    /// Forgets a request and frees its blocks; blocks that hold reusable prefixes stay cached.
    /// Unknown keys are ignored: the request may have just finished.
    fn cancel(&mut self, key: RequestKey);

    /// Forgets all cached prefixes; the next step reports it. Running requests are computed again.
    fn reset_cache(&mut self);

    /// Computes in steps, or nothing from now on: what runs stays, and goes on with the same tokens
    /// after it. One that sleeps has forgotten all cached prefixes too, as after
    /// [`Engine::reset_cache`].
    fn rest(&mut self, rest: Rest);

    /// Runs one step over what is admitted and writes what happened to `step`, which the caller
    /// has cleared. Leaves it empty when there is nothing to do.
    fn step(&mut self, step: &mut Step);

    /// Its KV, to be shared with another engine.
    fn kv(&mut self) -> &mut dyn SharedKv;

    /// Load as of now.
    fn load(&self) -> Load;

    /// Sequence hashes of all blocks held, each after the one before it in its prompt.
    fn blocks(&self) -> Vec<SequenceHash>;
}

/// KV that one engine computes and another one goes on from.
pub trait SharedKv {
    /// Form of the KV, which must be equal on both sides.
    fn form(&self) -> KvForm;

    /// Has the whole blocks of a request that was just submitted, with one choice, stay held when
    /// it ends, until it is cancelled or the cache is reset.
    fn keep(&mut self, key: RequestKey);

    /// Number of its leading whole blocks that are computed and held, while it runs and when it has
    /// ended; 0 too where there was no room to keep them.
    fn kept(&self, key: RequestKey) -> usize;

    /// The KV of one of these blocks, counted from the prompt's start.
    fn export(&self, key: RequestKey, block: usize) -> Option<&[u8]>;

    /// The blocks that a request would find of its prompt, before it is submitted. The blocks'
    /// names stay with the request, so that they are computed once.
    fn reusable(&self, request: &mut Request) -> Reusable;

    /// Has the blocks of a request's prompt stay cached for a time, also those that are still to be
    /// computed, before the request is submitted; `now` is the time since an origin of the caller's.
    /// The blocks' names stay with the request, so that they are computed once.
    fn pin(&mut self, request: &mut Request, time: Duration, now: Now) -> PinOutcome;

    /// Ends the pins whose time is over.
    fn unpin(&mut self, now: Now);

    /// Imports blocks as cached prefix, after the first `first` blocks of the prompt of a request
    /// that [`SharedKv::reusable`] has looked at; returns the number imported. The import ends at
    /// the first block with another name or without its KV, and when room runs out. The caller
    /// vouches for the blocks' origin.
    fn import(&mut self, request: &Request, first: usize, blocks: &mut dyn ArrivedBlocks) -> usize;
}

/// Leading blocks of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reusable {
    /// Blocks that are here.
    pub held: usize,
    /// Names of the blocks that need not be computed where they are here, the held ones first.
    pub names: Vec<BlockName>,
}

/// Whether an engine computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rest {
    /// The engine works.
    #[default]
    Awake,
    /// The engine stands still; all KV stays.
    Paused,
    /// The engine stands still, and the memory of its KV is given back until it wakes.
    Asleep,
}

/// Names a request towards its engine; the driver makes it unique per engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey(pub u64);

/// A request in tokens.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its name.
    pub key: RequestKey,
    /// The prompt, and behind it what an earlier attempt generated.
    pub tokens: Vec<u32>,
    /// Number of the last `tokens` that an earlier attempt generated; less than `tokens.len()`.
    pub resumed: usize,
    /// Number of the first choice; a choice's random stream depends on its number.
    pub first_choice: u32,
    /// Independent completions of the prompt, at least 1.
    pub choices: u32,
    /// Sampling and stop conditions.
    pub sampling: Arc<Sampling>,
    /// Separates this request's cached blocks from those of other salts.
    pub cache_salt: Option<String>,
    /// Names of its leading blocks, where [`SharedKv::reusable`] has computed them.
    pub named: Option<NamedBlocks>,
    /// Rules of the answer, which stand at its beginning: at least those that `sampling` asks for.
    pub rules: AnswerRules,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The engine can never run the request.
    #[error("{0}")]
    Invalid(String),
    /// No room to queue it now.
    #[error("queue is full: {waiting} requests waiting, limit {limit}")]
    QueueFull {
        /// Requests waiting.
        waiting: u32,
        /// Most that may wait.
        limit: u32,
    },
}

/// Results of one step. The driver reuses it from step to step.
#[derive(Debug, Default)]
pub struct Step {
    /// Tokens and endings, in order; at most one entry per request and choice.
    pub outputs: Vec<Output>,
    /// Changes of the KV cache, in order.
    pub events: Vec<KvEvent>,
    /// Duration of a simulated step; zero where the step took its real time.
    pub duration: Duration,
    /// Whether anything ran, or is left to do at once.
    pub ran: bool,
    /// Tokens of prompts that were computed, those of answers that began anew included.
    pub prefill_tokens: u32,
}

impl Step {
    /// Empties it for the next step.
    pub fn clear(&mut self) {
        self.outputs.clear();
        self.events.clear();
        self.duration = Duration::ZERO;
        self.ran = false;
        self.prefill_tokens = 0;
    }
}

/// Output of a step for one choice of one request.
#[derive(Clone, Debug)]
pub struct Output {
    /// The request.
    pub key: RequestKey,
    /// The choice's number.
    pub choice: u32,
    /// New tokens, in order.
    pub tokens: Vec<u32>,
    /// One entry per new token where logprobs were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// With the first output of the first choice where prompt logprobs were asked for: one entry
    /// per prompt token from the second on.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// With the choice's first output: prompt tokens whose KV was already there.
    pub cached_tokens: Option<u32>,
    /// The prompt's vector, where one was asked for in the place of tokens; empty otherwise.
    pub pooled: Vec<f32>,
    /// Set on the choice's last output.
    pub finish: Option<Finish>,
}

/// End of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// Tokens of the prompt, without resumed ones.
    pub prompt_tokens: u32,
    /// Tokens generated, resumed ones included.
    pub completion_tokens: u32,
    /// Prompt tokens whose KV was already there when the choice was admitted.
    pub cached_tokens: u32,
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// This end-of-sequence or stop token, the last of the output.
    Stop(u32),
    /// `max_tokens` or the context length.
    Length,
    /// The prompt's vector is there.
    Pooled,
}
