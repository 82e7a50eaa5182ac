//! A request's place at its workers, and why it has them.

use super::pool::{Pool, SUSPICION};
use stator_fleet::AgentClient;
use stator_placement::{Decision, SplitReason, Time};
use stator_protos::WorkerRank;
use stator_protos::worker::PrefillPeer;
use stator_queue::FlowId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A request's place at a worker, and at another that computes its prompt first, if any. Dropping
/// it gives all of it back.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) pool: Arc<Pool>,
    pub(crate) decision: Decision,
    pub(crate) client: Arc<AgentClient>,
    /// Client of the worker that computes the prompt, if that is another.
    pub(crate) prefill: Option<Arc<AgentClient>>,
    pub(crate) kept: Option<Kept>,
    /// Payer of the answer: priority of the band, and flow.
    pub(crate) payer: Option<(i32, FlowId)>,
}

/// Why the worker that answers computes the prompt too, in a pool where others could do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kept {
    /// No worker for prompts takes requests, or none that may take this one.
    NoPrefillWorker,
    /// None of the workers for prompts says how others get the KV.
    NoHandover,
    /// The policy, or the request, wants it so.
    Policy,
    /// It has most of the prompt.
    Cached,
    /// The worker for prompts has too much to compute.
    PrefillLoad,
    /// That is predicted to be faster.
    Measured,
}

impl Kept {
    /// The reason of a decision; `mute` if there are workers for prompts, and none says how others
    /// get the KV.
    pub(crate) fn new(reason: SplitReason, mute: bool) -> Self {
        match reason {
            SplitReason::NoPrefillWorkers if mute => Self::NoHandover,
            SplitReason::NoPrefillWorkers | SplitReason::NobodyAlone => Self::NoPrefillWorker,
            SplitReason::Policy => Self::Policy,
            SplitReason::Uncached => Self::Cached,
            SplitReason::PrefillLoad => Self::PrefillLoad,
            SplitReason::Measured => Self::Measured,
        }
    }

    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoPrefillWorker => "no_prefill_worker",
            Self::NoHandover => "no_handover",
            Self::Policy => "policy",
            Self::Cached => "cached",
            Self::PrefillLoad => "prefill_load",
            Self::Measured => "measured",
        }
    }
}

impl Place {
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

    /// Why the worker computes the prompt itself, in a pool where others could do so.
    pub(crate) fn kept(&self) -> Option<Kept> {
        self.kept
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
        let now = self.pool.now();
        self.pool.state.lock().placement.handed_over(&self.decision, took, now)
    }

    /// Records that the first token came although the prefill worker did not compute the prompt.
    /// The worker gets no new requests for a moment, and its speed is not learnt from this prompt.
    pub(crate) fn prefill_failed(&self) {
        self.prefilled(None);
    }

    /// Releases the prefill worker: `as_planned` is how long ago prefill ended, `None` if it failed.
    fn prefilled(&self, as_planned: Option<Duration>) {
        let now = self.pool.now();
        let mut state = self.pool.state.lock();
        if let Some(leg) = &self.decision.prefill {
            if let Some(ago) = as_planned {
                let done = Time(now.0.saturating_sub(ago));
                state.placement.prefill_done(leg.booking, done);
            } else {
                let now = Instant::now();
                state.suspect(leg.worker, now, now + SUSPICION);
            }
            state.placement.release(leg.booking);
        }
        state.placement.prefill_done(self.decision.booking, now);
        drop(state);
        self.pool.changed();
        self.pool.gate.kick();
    }

    /// The answer filled one more block.
    pub(crate) fn output_block(&self) {
        self.pool.state.lock().placement.output_block(self.decision.booking, self.pool.now());
        self.pool.changed();
        if let (Some((band, flow)), true) = (self.payer, self.pool.charges_answers) {
            self.pool.gate.charge(band, flow, self.pool.block_size.get().into());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pool.state.lock().placement.release_all(&self.decision);
        self.pool.changed();
        self.pool.gate.kick();
    }
}
