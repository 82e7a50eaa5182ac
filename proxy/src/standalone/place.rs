//! A request's place at its workers.

use super::no_split::NoSplitReason;
use super::workers::{BookedWorkers, PoolWorkers};
use stator_fleet::AgentClient;
use stator_placement::Decision;
use stator_protos::WorkerRank;
use stator_protos::worker::{KvHolder, PrefillPeer};
use stator_queue::FlowId;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// The gate before a pool, as the places behind it need it.
pub(crate) trait PoolGate: Debug + Send + Sync {
    /// Room may have come free.
    fn kick(&self);

    /// Charges a block of an answer to its flow.
    fn charge_block(&self, payer: Payer);
}

/// The flow that pays for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payer {
    /// Priority of the band.
    pub(crate) band: i32,
    pub(crate) flow: FlowId,
}

/// A request's place at a worker, and at another that computes its prompt first, if any. Dropping
/// it gives all of it back.
#[derive(Debug)]
pub(crate) struct Place {
    workers: Arc<PoolWorkers>,
    gate: Arc<dyn PoolGate>,
    decision: Decision,
    client: Arc<AgentClient>,
    /// Client of the worker that computes the prompt, if that is another.
    prefill: Option<Arc<AgentClient>>,
    holders: Vec<KvHolder>,
    no_split: Option<NoSplitReason>,
    pub(crate) payer: Option<Payer>,
}

impl Place {
    /// The place of a request that was booked at these workers.
    pub(crate) fn new(
        workers: Arc<PoolWorkers>,
        gate: Arc<dyn PoolGate>,
        booked: BookedWorkers,
    ) -> Self {
        let BookedWorkers { decision, client, prefill, holders, no_split } = booked;
        Self { workers, gate, decision, client, prefill, holders, no_split, payer: None }
    }

    /// The worker.
    pub(crate) fn worker(&self) -> WorkerRank {
        self.decision.worker
    }

    /// The placement decision.
    pub(crate) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Client of the worker's agent.
    pub(crate) fn client(&self) -> &AgentClient {
        &self.client
    }

    /// The prefill worker as described to this worker's agent, if another one computes the prompt.
    pub(crate) fn prefill_peer(&self) -> Option<PrefillPeer> {
        let (leg, client) = self.decision.prefill.as_ref().zip(self.prefill.as_ref())?;
        Some(PrefillPeer {
            endpoint: client.endpoint().to_owned(),
            worker_id: leg.worker.worker.0,
            rank: leg.worker.rank.into(),
            handover_json: client.profile().handover.clone()?,
        })
    }

    /// Agents from which the worker's agent may fetch leading blocks of the prompt.
    pub(crate) fn holders(&self) -> &[KvHolder] {
        &self.holders
    }

    /// Why the worker computes the prompt itself, in a pool where others could do so.
    pub(crate) fn no_split(&self) -> Option<NoSplitReason> {
        self.no_split
    }

    /// Records that the prompt is computed, when the first token comes. The prefill worker's share
    /// of the load is released.
    ///
    /// `way` is how long the KV travelled: prefill ended that long ago. Without `way`, prefill is
    /// assumed to have ended only now.
    pub(crate) fn prefill_done(&self, way: Option<Duration>) {
        self.prefilled(Some(way.unwrap_or_default()));
    }

    /// Records that the first token came `took` after the prefill worker had computed the prompt.
    /// Returns the part of `took` that the KV travelled; `None` if no other worker computed the
    /// prompt, or one of the two workers has gone.
    ///
    /// Must be called after [`Place::prefill_done`].
    pub(crate) fn handed_over(&self, took: Duration) -> Option<Duration> {
        self.workers.handed_over(&self.decision, took)
    }

    /// Records that the first token came although the prefill worker did not compute the prompt.
    /// The worker gets no new requests for a moment, and its speed is not learnt from this prompt.
    pub(crate) fn prefill_failed(&self) {
        self.prefilled(None);
    }

    /// Releases the prefill worker: `as_planned` is how long ago prefill ended, `None` if it failed.
    fn prefilled(&self, as_planned: Option<Duration>) {
        self.workers.prefilled(&self.decision, as_planned);
        self.gate.kick();
    }

    /// The answer filled one more block.
    pub(crate) fn output_block(&self) {
        self.workers.output_block(&self.decision);
        if let Some(payer) = self.payer {
            self.gate.charge_block(payer);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.workers.release(&self.decision);
        self.gate.kick();
    }
}
