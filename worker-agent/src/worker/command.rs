//! Commands to a driver.

use crate::request_plane::in_flight::Ticket;
use crate::request_plane::metadata::RequestMetadata;
use crate::request_plane::outbox::Outbox;
use serde_json::value::RawValue;
use stator_dialect::{Delta, Fault, Operation};
use stator_engine::{Request, RequestKey};
use stator_protos::Generation;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::worker::ErrorKind;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// A command to a driver.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run a request.
    Submit(Submission),
    /// Stop these; those that are not known have just ended.
    Cancel(Vec<RequestKey>),
    /// Say which blocks there are.
    Snapshot(oneshot::Sender<Snapshot>),
    /// Compute a prompt for another engine.
    Prefill(PrefillOrder),
    /// Do something to the engine as a whole.
    Operate(OperationOrder),
}

/// A prompt to compute for another engine. Dropping the receiver of `answer` cancels it.
#[derive(Debug)]
pub(crate) struct PrefillOrder {
    /// The prompt.
    pub(crate) request: Request,
    /// Parts of the request for stock engines only.
    pub(crate) metadata: RequestMetadata,
    /// The connector's parameters for both engines, if they work at once.
    pub(crate) handover: Option<Box<RawValue>>,
    /// Leading blocks that can be read already, while the prompt is computed.
    pub(crate) ready: watch::Sender<usize>,
    /// Channel for the answer.
    pub(crate) answer: oneshot::Sender<Result<PrefillResult, (ErrorKind, String)>>,
    /// Counts it among what runs until it ends.
    pub(crate) ticket: Ticket,
}

/// A prompt that was computed for another engine.
#[derive(Debug)]
pub(crate) struct PrefillResult {
    /// The connector's parameters for decode, if the engines work in turn.
    pub(crate) handover: Option<Box<RawValue>>,
    /// Prompt tokens whose KV was already there.
    pub(crate) cached_tokens: u32,
    /// The token that came of the prompt, with the end of the answer where it is one, and its
    /// logprobs where they were asked for; nothing where decode cannot go on from it.
    pub(crate) first: Option<Delta>,
}

/// A request and where its answer goes.
#[derive(Debug)]
pub(crate) struct Submission {
    /// The request; its key is unique in the agent.
    pub(crate) request: Request,
    /// Its name on the client's stream.
    pub(crate) request_id: u64,
    /// Parts of the request for stock engines only.
    pub(crate) metadata: RequestMetadata,
    /// The client's stream.
    pub(crate) outbox: Arc<Outbox>,
    /// Counts it among what runs until it ends.
    pub(crate) ticket: Ticket,
}

/// An operation, and who waits for it.
#[derive(Debug)]
pub(crate) struct OperationOrder {
    /// The operation.
    pub(crate) operation: Operation,
    /// Channel for the result.
    pub(crate) answer: oneshot::Sender<Result<(), Fault>>,
}

/// The blocks of a worker after event `next_sequence - 1`.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The worker's life.
    pub(crate) generation: Generation,
    /// Number of the first event that is not in it.
    pub(crate) next_sequence: u64,
    /// Each block once, and where it is at the nearest.
    pub(crate) blocks: Vec<(SequenceHash, Medium)>,
}
