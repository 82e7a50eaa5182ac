//! Dialects of engines: token ids in, token ids out, whichever engine it is.
//!
//! [`Dialect`] is all that the agent knows of a stock engine. Each engine has one module, which
//! turns an [`Ask`] into that engine's words and its answer back into [`Delta`]s; nothing outside
//! of it knows a path, a field or a status of that engine. The agent alone writes requests to an
//! engine: no field of a client's body ever reaches one.
//!
//! All dialects use HTTP. The engines' gRPC servers take token ids too, and can less. vLLM's and
//! TensorRT-LLM's run in place of the HTTP server and can neither pause nor sleep nor take weights;
//! a request to vLLM's has no priority, adapter or cache salt. One of SGLang's two is of that kind,
//! with rooms of 32 bits; the other runs beside HTTP, hands requests to the same Python objects,
//! and can neither sleep nor load adapters. Source: vLLM 0.32.0, SGLang 0.5.23, `smg-grpc-proto`
//! 0.4.28, the options of `trtllm-serve`.
//!
//! Start reading at [`Dialect`], then at the engine you care for.

mod answer;
mod connect;
mod connector;
mod events;
mod guide;
mod http;
mod json;
mod logprobs;
mod openai;
mod options;
mod pooled;
mod replay;
mod request;
mod sampling;
mod sglang;
mod sse;
#[cfg(test)]
mod testkit;
mod trace;
mod trtllm;
mod vllm;

pub use connect::connect;
pub use connector::{Connector, Role};
pub use options::{ApiKey, Kind, Options, OptionsError};
pub use replay::{replay, replay_http, replay_pooled};
pub use request::{
    Ask, Delta, Description, EventSource, Fault, Finish, FirstToken, Hand, Manner, Operation,
    Pooling, SharedRequest, TokenLogprobs, Trace,
};

use async_trait::async_trait;
use serde_json::value::RawValue;
use std::fmt::Debug;
use std::future::poll_fn;
use std::task::{Context, Poll};

/// One running engine, as the agent talks to it.
#[async_trait]
pub trait Dialect: Debug + Send + Sync + 'static {
    /// Whether the engine could serve a request now.
    ///
    /// # Errors
    ///
    /// [`Fault`] says why not.
    async fn healthy(&self) -> Result<(), Fault>;

    /// Describes the engine and the model it serves; called once the engine is healthy.
    ///
    /// # Errors
    ///
    /// [`Fault`] where the engine does not tell.
    async fn describe(&self) -> Result<Description, Fault>;

    /// Starts a request and returns its answer.
    ///
    /// # Errors
    ///
    /// [`Fault`] where the engine refused the request or could not be reached.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future, or the answer, aborts the request in the engine.
    async fn generate(&self, ask: Ask) -> Result<Box<dyn Answer>, Fault>;

    /// Runs an operation on the engine as a whole.
    ///
    /// # Errors
    ///
    /// [`Fault::Unsupported`] where this engine has no such operation.
    async fn operate(&self, operation: &Operation) -> Result<(), Fault>;

    /// Whether `operation` empties the engine's prefix cache.
    fn forgets(&self, operation: &Operation) -> bool {
        operation.forgets()
    }

    /// Plans a request that this engine decodes after a prefill elsewhere. `prefill` is the other
    /// engine's [`Description::handover`].
    ///
    /// # Errors
    ///
    /// [`Fault::Unsupported`] where the two cannot work together.
    fn pair(&self, shared: &SharedRequest, prefill: &RawValue) -> Result<Manner, Fault>;
}

/// The answer to one request, as it comes.
pub trait Answer: Send {
    /// Waits for the next delta; `None` after the [`Finish`].
    ///
    /// # Errors
    ///
    /// [`Fault`] where the answer broke off; nothing follows it.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delta>, Fault>>;
}

impl dyn Answer {
    /// Waits for [`Answer::poll_next`].
    ///
    /// # Errors
    ///
    /// The errors of [`Answer::poll_next`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Delta>, Fault> {
        poll_fn(|context| self.poll_next(context)).await
    }
}
