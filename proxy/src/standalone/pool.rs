//! The workers that serve one model, and the placement that chooses among them.

use super::entrance::{Entrance, Prompt};
use super::place::{Payer, Place, PoolGate};
use super::pool_settings::PoolSettings;
use super::state::Answering;
use super::workers::PoolWorkers;
use stator_events::KvSink;
use stator_fleet::AgentClient;
use stator_fleet::Members;
use stator_gate::{Admission, AdmitError, Gate};
use stator_placement::{PickError, Placement, PlacementSettings, PlacementStats, Worker};
use stator_protos::discovery::ModelRecord;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};
use stator_queue::QueueEntry;
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The workers of one model, with the gate before them.
pub(crate) struct Pool {
    record: ModelRecord,
    block_size: NonZeroU32,
    workers: Arc<PoolWorkers>,
    /// Queue of requests that no worker can take yet.
    gate: Gate<Entrance>,
    /// Whether answers count for whose turn it is.
    charges_answers: bool,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("record", &self.record).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool without workers. `None` if the record's block size is 0.
    pub(super) fn new(record: ModelRecord, settings: &PoolSettings) -> Option<Arc<Self>> {
        let PoolSettings { placement, queue, seed, worker_wait, adapter_linger } = settings;
        let block_size = NonZeroU32::new(record.block_size)?;
        let placement = Placement::new(PlacementSettings { block_size, ..placement.clone() });
        let workers = PoolWorkers::new(record.name.clone(), placement, *adapter_linger, *seed);
        let workers = Arc::new(workers);
        let policies = queue.bands.iter().map(|band| band.policy);
        let charges_answers = policies
            .chain([queue.default_band, queue.default_negative_band])
            .any(|policy| policy.fairness.counts_answers());
        Some(Arc::new_cyclic(|pool: &Weak<Self>| {
            // The entrance stands behind the gate, and the places that it gives kick the gate.
            let entrance = Entrance {
                workers: workers.clone(),
                gate: pool.clone(),
                worker_wait: *worker_wait,
            };
            let gate = Gate::new(entrance, queue.clone());
            Self { record, block_size, workers, gate, charges_answers }
        }))
    }

    /// The workers, whatever waits for them.
    pub(crate) fn workers(&self) -> &PoolWorkers {
        &self.workers
    }

    /// The model, as all of its agents describe it.
    pub(crate) fn record(&self) -> &ModelRecord {
        &self.record
    }

    /// Tokens per KV block.
    pub(crate) fn block_size(&self) -> NonZeroU32 {
        self.block_size
    }

    /// Gets a request its place: at once where nobody waits and a worker takes it, else when its
    /// turn has come. Where no worker is there, the request waits for one that comes back.
    ///
    /// # Errors
    ///
    /// [`AdmitError`]: it may not wait, has waited too long, or can never be placed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait, or the place if that was granted meanwhile.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        entry: QueueEntry<Prompt>,
    ) -> Result<Admission<Place>, AdmitError<PickError>> {
        let flow = entry.flow;
        let mut admitted = self.gate.admit(entry).await?;
        admitted.place.payer = Some(Payer { band: admitted.band, flow });
        Ok(admitted)
    }

    /// The deadline of an entry that may wait so long from now on.
    pub(crate) fn deadline(&self, ttl: Duration) -> Duration {
        self.gate.now().saturating_add(ttl)
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.gate.waiting()
    }

    /// A request was lost at this worker: it gets no new ones for a moment.
    pub(crate) fn suspect(&self, worker: WorkerRank) {
        self.workers.suspect(worker);
    }

    /// Whether a worker that answers requests has this LoRA adapter loaded, or had until it left a
    /// moment ago.
    pub(crate) fn has_adapter(&self, name: &str) -> bool {
        self.workers.has_adapter(name)
    }

    /// Names of all such adapters, in order.
    pub(crate) fn adapters(&self) -> Vec<Arc<str>> {
        self.workers.adapters()
    }

    /// Whether a worker that answers requests makes vectors of prompts.
    pub(crate) fn embeds(&self) -> bool {
        self.workers.embeds()
    }

    /// Whether a worker that answers requests makes the probabilities of classes of prompts.
    pub(crate) fn classifies(&self) -> bool {
        self.workers.classifies()
    }

    /// Whether the workers' engines answer prompts.
    pub(crate) fn answering(&self) -> Answering {
        self.workers.answering()
    }

    /// All workers at a glance, in order.
    pub(super) fn glance(&self) -> Vec<serde_json::Value> {
        self.workers.glance()
    }

    /// Whether a worker that answers ends thoughts that are too long.
    pub(crate) fn bounds_thoughts(&self) -> bool {
        self.workers.bounds_thoughts()
    }

    /// Whether a worker that answers keeps prompts cached for a time.
    pub(crate) fn pins(&self) -> bool {
        self.workers.pins()
    }

    /// Workers that take requests now.
    pub(crate) fn accepting(&self) -> usize {
        self.workers.accepting()
    }

    /// Counts for metrics.
    pub(crate) fn stats(&self) -> PlacementStats {
        self.workers.stats()
    }

    /// Sends all requests away that wait: the model is forgotten, or is another one now.
    pub(crate) fn close(&self) {
        self.gate.close();
    }

    /// A place at once, whoever waits.
    #[cfg(test)]
    pub(super) fn place(
        self: &Arc<Self>,
        request: &stator_placement::PlacementRequest<'_>,
    ) -> Result<Place, PickError> {
        let booked = self.workers.book(request)?;
        Ok(Place::new(self.workers.clone(), self.clone(), booked))
    }

    /// Blocks of the prompt's start that a worker is known to hold.
    #[cfg(test)]
    pub(super) fn overlap(self: &Arc<Self>, worker: WorkerRank, sequence: &[SequenceHash]) -> u32 {
        let request = stator_placement::PlacementRequest {
            sequence,
            pinned: Some(worker),
            ..stator_placement::PlacementRequest::default()
        };
        self.place(&request).map_or(0, |place| place.decision().overlap_blocks)
    }

    /// Blocks that a worker reported, in no order.
    #[cfg(test)]
    pub(super) fn held(&self, worker: WorkerRank) -> Vec<(SequenceHash, Medium)> {
        let held = self.workers.state.lock().placement.index().held_by(&[worker]);
        held.into_iter().flatten().flat_map(|held| held.blocks).collect()
    }

    /// Keeps what is known of the workers' blocks in order, for as long as it runs.
    pub(crate) async fn maintain(self: Arc<Self>) {
        self.workers.clone().maintain().await;
    }
}

impl PoolGate for Pool {
    fn kick(&self) {
        self.gate.kick();
    }

    fn charge_block(&self, payer: Payer) {
        if self.charges_answers {
            self.gate.charge(payer.band, payer.flow, self.block_size.get().into());
        }
    }
}

impl Members for Pool {
    fn join(&self, worker: Worker, client: &Arc<AgentClient>) -> bool {
        let entered = self.workers.join(worker, client);
        if entered {
            self.gate.kick();
        }
        entered
    }

    fn leave(&self, worker: WorkerRank, client: &Arc<AgentClient>) {
        self.workers.leave(worker, client);
        // Whoever waited for this worker goes elsewhere.
        self.gate.kick();
    }

    fn refresh(&self, workers: &mut dyn Iterator<Item = WorkerRank>) {
        self.workers.refresh(workers);
        self.gate.kick();
    }

    fn load(&self, worker: WorkerRank, generation: Generation, load: Load) {
        self.workers.state.lock().placement.report_load(worker, generation, load);
        self.gate.kick();
    }
}

impl KvSink for Pool {
    fn apply(&self, worker: WorkerRank, generation: Generation, events: &[KvEvent]) {
        self.workers.blocks.apply(worker, generation, events);
    }

    fn replace(
        &self,
        worker: WorkerRank,
        generation: Generation,
        blocks: Vec<(SequenceHash, Medium)>,
    ) {
        self.workers.blocks.replace(worker, generation, blocks);
    }

    fn unknown(&self, worker: WorkerRank) {
        self.workers.blocks.unknown(worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_whose_blocks_have_no_tokens_has_no_pool() {
        let settings = PoolSettings::default();
        let pool = |block_size| {
            let (name, context_length, vocab_size) = ("m".into(), 4096, 1000);
            let record = ModelRecord { name, context_length, block_size, vocab_size };
            Pool::new(record, &settings).map(|pool| pool.block_size().get())
        };
        assert_eq!((pool(0), pool(16)), (None, Some(16)));
    }
}
