//! How engines are spoken to: token ids in, token ids out, whichever engine it is.
//!
//! [`Dialect`] is all that the agent knows of an engine that is not its own. Each engine has one
//! module, which turns an [`Ask`] into that engine's words and its answer back into [`Delta`]s;
//! nothing outside of it knows a path, a field or a status of that engine. Requests go to an
//! engine as the agent makes them: no field of a client's body ever reaches one.
//!
//! All of them are spoken to over HTTP. Their gRPC servers take token ids too, and can less. vLLM's
//! and TensorRT-LLM's run in place of the HTTP server and can neither pause nor sleep nor take
//! weights; a request to vLLM's has no priority, adapter or cache salt. One of SGLang's two is of
//! that kind, with rooms of 32 bits; the other runs beside HTTP, hands requests to the same Python
//! objects, and can neither sleep nor load adapters. Source: vLLM 0.32.0, SGLang 0.5.23,
//! `smg-grpc-proto` 0.4.28, the options of `trtllm-serve`.
//!
//! Start reading at [`Dialect`], then at the engine you care for.

mod answer;
mod connect;
mod events;
mod guide;
mod http;
mod json;
mod logprobs;
mod openai;
mod replay;
mod request;
mod sglang;
mod sse;
#[cfg(test)]
mod testkit;
mod trace;
mod trtllm;
mod vllm;

pub use connect::{ApiKey, Connector, Kind, Options, OptionsError, Role, connect};
pub use guide::Guide;
pub use replay::{replay, replay_http};
pub use request::{
    Ask, Delta, Description, EventSource, Fault, Finish, First, Hand, Manner, Operation, Sampling,
    Shared, TokenLogprobs,
};
pub use trace::Trace;

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

    /// What the engine is and what it serves; asked once it is healthy.
    ///
    /// # Errors
    ///
    /// [`Fault`] where it cannot be found out.
    async fn describe(&self) -> Result<Description, Fault>;

    /// Starts a request; its answer is read from what is returned.
    ///
    /// # Errors
    ///
    /// [`Fault`] where the engine refused it or could not be reached.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future, or the answer, aborts the request in the engine.
    async fn generate(&self, ask: Ask) -> Result<Box<dyn Answer>, Fault>;

    /// Does something to the engine as a whole.
    ///
    /// # Errors
    ///
    /// [`Fault::Unsupported`] where this engine has no such operation.
    async fn operate(&self, operation: &Operation) -> Result<(), Fault>;

    /// Whether the engine holds no cached prefix any more once this was done to it.
    fn forgets(&self, operation: &Operation) -> bool {
        operation.forgets()
    }

    /// How this engine, as the one that decodes, and `prefill`, which another agent says of its
    /// engine ([`Description::handover`]), do a request together.
    ///
    /// # Errors
    ///
    /// [`Fault::Unsupported`] where they cannot.
    fn pair(&self, shared: &Shared, prefill: &RawValue) -> Result<Manner, Fault>;
}

/// The answer to one request, as it comes.
pub trait Answer: Send {
    /// What came next; `None` after the [`Finish`].
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
    /// The same.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<Delta>, Fault> {
        poll_fn(|context| self.poll_next(context)).await
    }
}
