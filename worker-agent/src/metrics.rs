//! The agent's metrics, all of them. Counters end in `_total` where they are rendered.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stator_pins::PinOutcome;
use stator_protos::WorkerRank;
use stator_protos::load::Load;
use stator_protos::worker::ErrorKind;

/// Metrics of one agent process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentMetrics {
    requests: Family<RequestLabels, Counter>,
    running: Family<WorkerLabels, Gauge>,
    waiting: Family<WorkerLabels, Gauge>,
    used_blocks: Family<WorkerLabels, Gauge>,
    cached_blocks: Family<WorkerLabels, Gauge>,
    total_blocks: Family<WorkerLabels, Gauge>,
    /// Tokens of finished requests' prompts.
    pub(crate) prompt_tokens: Counter,
    /// Prompt tokens whose KV was already cached.
    pub(crate) cached_tokens: Counter,
    /// Tokens generated.
    pub(crate) generated_tokens: Counter,
    /// Event batches and load reports handed to subscribers' queues.
    pub(crate) messages_published: Counter,
    /// Messages that left the live feed because publishing fell behind.
    pub(crate) messages_dropped: Counter,
    /// Subscribers of the request plane.
    pub(crate) subscribers: Gauge,
    /// Subscribers of the request plane beyond those that may be.
    pub(crate) subscribers_refused: Counter,
    /// Replay requests answered.
    pub(crate) replay_requests: Counter,
    /// Replay requests that could not be read.
    pub(crate) replay_requests_malformed: Counter,
    /// Replay requests beyond those that may wait or run.
    pub(crate) replay_requests_refused: Counter,
    /// Blocks that clients wished to pin, and that were pinned.
    pinned_blocks: Counter,
    /// Blocks that clients wished to pin, and that were not: clients have pinned what they may.
    unpinned_blocks: Counter,
    /// Engines that failed.
    pub(crate) worker_failures: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerLabels {
    worker: String,
    rank: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    outcome: Outcome,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are label values")]
pub(crate) enum Outcome {
    /// With an answer.
    completed,
    /// By its client.
    cancelled,
    /// The request can never succeed.
    invalid,
    /// No room.
    overloaded,
    /// Sent to a worker that is not here.
    unknown_worker,
    /// Sent to an agent that drains.
    draining,
    /// Nobody computed its prompt.
    unprefilled,
    /// The engine failed.
    internal,
}

impl From<ErrorKind> for Outcome {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid => Self::invalid,
            ErrorKind::Overloaded => Self::overloaded,
            ErrorKind::UnknownWorker => Self::unknown_worker,
            ErrorKind::Draining => Self::draining,
            ErrorKind::Unprefilled => Self::unprefilled,
            ErrorKind::Internal | ErrorKind::Unspecified => Self::internal,
        }
    }
}

/// Prompts that prefill workers were named for, by who computed them. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefills(Family<PrefillLabels, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PrefillLabels {
    by: PrefilledBy,
}

/// Worker that computed a prompt assigned to a prefill worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are label values")]
pub(crate) enum PrefilledBy {
    /// The prefill worker.
    prefill_worker,
    /// The worker itself, because the request has several choices.
    itself_choices,
    /// The worker itself, because the prefill worker failed.
    itself_prefill_failed,
    /// The worker itself, because its engine did not take what was handed over.
    itself_engine_failed,
    /// The worker itself, because all of it took too long.
    itself_timeout,
    /// The worker itself, because it has all of it that could be moved.
    itself_nothing_to_move,
    /// The worker itself, because the prefill worker's KV is not like its own.
    itself_unlike,
    /// The worker itself, because discovery does not list the prefill worker.
    itself_unregistered,
    /// The worker itself, because nothing vouches for KV of other machines.
    itself_untrusted,
    /// The worker itself, because the prefill worker's agent has sent KV that is not genuine.
    itself_shunned,
    /// Nobody: the worker computes none itself.
    nobody,
}

impl Prefills {
    /// Makes the counter known to the agent's part of a registry.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Prompts of requests that named a prefill worker, by who computed them";
        registry.register("prefills", help, self.0.clone());
    }

    /// Counts a prompt.
    pub(crate) fn count(&self, by: PrefilledBy) {
        self.0.get_or_create(&PrefillLabels { by }).inc();
    }
}

/// Counters of engines of our own that share requests. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairMetrics {
    /// Prompts by who computed them.
    pub(crate) prefills: Prefills,
    /// KV blocks that came from prefill workers.
    pub(crate) blocks_fetched: Counter,
    /// Fetched KV blocks that came before their prompt was computed.
    pub(crate) blocks_early: Counter,
    /// KV blocks that were asked of them and did not come, or not as they should be.
    pub(crate) blocks_missed: Counter,
    /// KV blocks of them that were forged or damaged.
    pub(crate) blocks_forged: Counter,
}

impl PairMetrics {
    /// Makes the counters known to the process's registry.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("stator_agent");
        self.prefills.register(registry);
        let help = "KV blocks that came from prefill workers";
        registry.register("kv_blocks_fetched", help, self.blocks_fetched.clone());
        let help = "KV blocks that came from prefill workers while the prompt was still computed";
        registry.register("kv_blocks_early", help, self.blocks_early.clone());
        let help =
            "KV blocks asked of prefill workers that did not come, or were damaged or foreign";
        registry.register("kv_blocks_missed", help, self.blocks_missed.clone());
        let help = "KV blocks from prefill workers that were forged, damaged or of another secret";
        registry.register("kv_blocks_forged", help, self.blocks_forged.clone());
    }
}

/// Devices of the agent's machine. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceMetrics {
    /// Devices of the CUDA driver; 0 without a driver.
    pub(crate) cuda_devices: Gauge,
}

impl DeviceMetrics {
    /// Makes the gauge known to the process's registry.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("stator_agent");
        let help = "Devices of the CUDA driver, 0 without a driver";
        registry.register("cuda_devices", help, self.cuda_devices.clone());
    }
}

/// Gauges of one worker, looked up once.
#[derive(Clone, Debug)]
pub(crate) struct WorkerGauges {
    running: Gauge,
    waiting: Gauge,
    used_blocks: Gauge,
    cached_blocks: Gauge,
    total_blocks: Gauge,
}

impl WorkerGauges {
    pub(crate) fn set(&self, load: &Load) {
        self.running.set(load.running.into());
        self.waiting.set(load.waiting.into());
        self.used_blocks.set(load.used_blocks.into());
        self.cached_blocks.set(load.cached_blocks.into());
        self.total_blocks.set(load.total_blocks.into());
    }
}

impl AgentMetrics {
    /// Makes the metrics known to the process's registry.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("stator_agent");
        registry.register("requests", "Requests by how they ended", self.requests.clone());
        registry.register("requests_running", "Requests in the batch", self.running.clone());
        registry.register("requests_waiting", "Requests that wait", self.waiting.clone());
        let blocks = [
            ("kv_blocks_used", "KV blocks that running requests use", &self.used_blocks),
            ("kv_blocks_cached", "KV blocks kept for reuse, evictable", &self.cached_blocks),
            ("kv_blocks", "KV blocks in all", &self.total_blocks),
        ];
        for (name, help, family) in blocks {
            registry.register(name, help, family.clone());
        }
        let help = "Subscribers to events and load on the request plane";
        registry.register("subscribers", help, self.subscribers.clone());
        let counters = [
            ("prompt_tokens", "Prompt tokens of finished choices", &self.prompt_tokens),
            ("cached_tokens", "Prompt tokens whose KV was reused", &self.cached_tokens),
            ("generated_tokens", "Tokens generated", &self.generated_tokens),
            ("messages_published", "Event batches and load reports sent", &self.messages_published),
            ("messages_dropped", "Messages dropped from the live feed", &self.messages_dropped),
            (
                "subscribers_refused",
                "Subscribers refused because all places, or those of their address, were taken",
                &self.subscribers_refused,
            ),
            ("replay_requests", "Replay requests answered", &self.replay_requests),
            (
                "replay_requests_malformed",
                "Replay requests that could not be read",
                &self.replay_requests_malformed,
            ),
            (
                "replay_requests_refused",
                "Replay requests refused because too many waited or ran",
                &self.replay_requests_refused,
            ),
            ("pinned_blocks", "KV blocks that clients pinned", &self.pinned_blocks),
            (
                "pins_refused_blocks",
                "KV blocks that clients wished to pin beyond their share",
                &self.unpinned_blocks,
            ),
            ("worker_failures", "Engines that failed", &self.worker_failures),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }

    /// Counts the blocks of a client's wish.
    pub(crate) fn pins(&self, outcome: PinOutcome) {
        self.pinned_blocks.inc_by(outcome.pinned as u64);
        self.unpinned_blocks.inc_by(outcome.refused as u64);
    }

    /// Counts a request that ended.
    pub(crate) fn ended(&self, outcome: Outcome) {
        self.requests.get_or_create(&RequestLabels { outcome }).inc();
    }

    /// The gauges of one worker.
    pub(crate) fn worker(&self, worker: WorkerRank) -> WorkerGauges {
        let labels = WorkerLabels { worker: worker.worker.to_string(), rank: worker.rank.into() };
        WorkerGauges {
            running: self.running.get_or_create(&labels).clone(),
            waiting: self.waiting.get_or_create(&labels).clone(),
            used_blocks: self.used_blocks.get_or_create(&labels).clone(),
            cached_blocks: self.cached_blocks.get_or_create(&labels).clone(),
            total_blocks: self.total_blocks.get_or_create(&labels).clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_the_prefix_and_labels() {
        let metrics = AgentMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.ended(Outcome::completed);
        let worker = WorkerRank { worker: stator_protos::WorkerId(1), rank: 0 };
        metrics.worker(worker).set(&Load { running: 3, ..Load::default() });
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "stator_agent_requests_total{outcome=\"completed\"} 1",
            "stator_agent_requests_running{worker=\"0000000000000001\",rank=\"0\"} 3",
            "stator_agent_messages_dropped_total 0",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
