//! Checked settings of a simulation.

use crate::engine::EngineLimits;
use crate::policy::{Common, PolicyKind, WorkerNumber};
use crate::time::Ps;
use stator_placement::{BusyThresholds, Role, SessionSettings, Split};
use stator_timing::Timing;
use std::num::NonZeroU32;

/// One simulation but for its workload and policy. A value of this type is valid.
#[derive(Clone, Debug)]
pub(crate) struct SimulationSettings {
    pub(crate) seed: u64,
    pub(crate) sides: Sides,
    /// Edges that place requests, and their exchange of load.
    pub(crate) edges: Edges,
    /// Rule for computing prompts on prefill workers; `None` leaves it to the policy.
    pub(crate) split: Option<Split>,
    /// Binding of sessions to workers, if any.
    pub(crate) sessions: Option<SessionSettings>,
    /// LoRA adapters, and where they are loaded.
    pub(crate) adapters: Adapters,
    pub(crate) timing: Timing,
    pub(crate) limits: EngineLimits,
    /// Bytes of KV per token.
    pub(crate) kv_token_bytes: f64,
    pub(crate) transfer: Transfer,
    /// Interval of workers' load reports, and delay of reports and KV events.
    pub(crate) report_interval: Ps,
    pub(crate) event_delay: Ps,
    /// Queue of requests without a worker, and the longest wait in it.
    pub(crate) queue: stator_queue::CheckedSettings,
    pub(crate) queue_timeout: Ps,
    /// Load from which on a worker counts as busy.
    pub(crate) busy: BusyThresholds,
    /// Workers that may die under a request before it fails.
    pub(crate) migrations_max: u32,
    pub(crate) faults: FaultSettings,
    pub(crate) slo: Slo,
    pub(crate) kinds: Vec<PolicyKind>,
}

/// Workers of each role, in the order of their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sides {
    pub(crate) prefill: u32,
    pub(crate) decode: u32,
    pub(crate) aggregated: u32,
}

/// Edges place requests: each sees its own share of the requests, and all KV events and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edges {
    pub(crate) count: u32,
    /// Exchange of load in flight between edges; `None` without one.
    pub(crate) exchange: Option<Exchange>,
}

/// Exchange of load in flight between edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// The shortest time from one telling to the next.
    pub(crate) interval: Ps,
    /// Delay from sending to arrival.
    pub(crate) delay: Ps,
}

/// LoRA adapters, and where they are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Adapters {
    pub(crate) count: u32,
    /// Workers of each role that have a given one.
    pub(crate) copies: u32,
}

/// Time that KV takes from worker to worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Transfer {
    /// Before the first byte.
    pub(crate) latency: Ps,
    /// Between workers of one host, and of different ones; gigabytes per second.
    pub(crate) local_gb_s: f64,
    pub(crate) remote_gb_s: f64,
    /// Workers on a host.
    pub(crate) host_workers: u32,
}

/// Failures and slowness that a run injects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FaultSettings {
    /// Deaths of each worker per hour, on average.
    pub(crate) deaths_per_hour: f64,
    /// From a death until it is known, and until the worker is back.
    pub(crate) detection: Ps,
    pub(crate) restart: Ps,
    /// Share of workers that are slow, and how many times as slow.
    pub(crate) stragglers: f64,
    pub(crate) straggler_slowdown: f64,
    /// Shares of batches of KV events and of load reports that are lost.
    pub(crate) event_loss: f64,
    pub(crate) report_loss: f64,
    /// From a gap in the events to the snapshot.
    pub(crate) resync: Ps,
}

/// Latency objectives for goodput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slo {
    pub(crate) ttft: Ps,
    pub(crate) itl: Ps,
}

impl Sides {
    /// A worker's role, its number within the role, and the number of workers of that role.
    fn place(&self, worker: WorkerNumber) -> (Role, u32, u32) {
        let Self { prefill, decode, aggregated } = *self;
        match worker {
            _ if worker < prefill => (Role::Prefill, worker, prefill),
            _ if worker < prefill + decode => (Role::Decode, worker - prefill, decode),
            _ => (Role::Aggregated, worker - prefill - decode, aggregated),
        }
    }
}

impl Adapters {
    /// Whether the worker with this number of so many alike has an adapter loaded: each is loaded
    /// on some in a row.
    fn on(&self, adapter: u32, number: u32, workers: u32) -> bool {
        let first = adapter * self.copies % workers;
        (number + workers - first) % workers < self.copies
    }
}

impl SimulationSettings {
    /// All workers.
    pub(crate) fn workers(&self) -> u32 {
        self.sides.prefill + self.sides.decode + self.sides.aggregated
    }

    /// Role of a worker; prefill workers have the lowest numbers.
    pub(crate) fn role(&self, worker: WorkerNumber) -> Role {
        self.sides.place(worker).0
    }

    /// The first worker that answers.
    pub(crate) fn first_answering(&self) -> WorkerNumber {
        self.sides.prefill
    }

    /// Adapters that a worker has loaded.
    pub(crate) fn adapters_of(&self, worker: WorkerNumber) -> Vec<u32> {
        let (_, number, workers) = self.sides.place(worker);
        let has = |adapter: &u32| self.adapters.on(*adapter, number, workers);
        (0..self.adapters.count).filter(has).collect()
    }

    /// Settings common to all policies.
    pub(crate) fn common(&self) -> Common {
        let block_size = NonZeroU32::new(self.limits.block_size);
        Common {
            block_size: block_size.expect("a block has at least one token"),
            paired: self.sides.prefill > 0,
            split: self.split,
            busy: self.busy,
            sessions: self.sessions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_numbered_by_role() {
        let sides = Sides { prefill: 2, decode: 1, aggregated: 3 };
        let roles = [0, 1, 2, 3, 5].map(|worker| sides.place(worker));
        let (prefill, decode, all) = (Role::Prefill, Role::Decode, Role::Aggregated);
        assert_eq!(
            roles,
            [(prefill, 0, 2), (prefill, 1, 2), (decode, 0, 1), (all, 0, 3), (all, 2, 3)]
        );
    }

    #[test]
    fn each_adapter_is_on_as_many_workers_and_loads_are_even() {
        let adapters = Adapters { count: 6, copies: 2 };
        let on = |adapter| (0..4).filter(move |number| adapters.on(adapter, *number, 4));
        assert!((0..6).all(|adapter| on(adapter).count() == 2));
        for number in 0..4 {
            assert_eq!((0..6).filter(|adapter| adapters.on(*adapter, number, 4)).count(), 3);
        }
        // More copies than workers are one on each.
        assert!((0..4).all(|number| Adapters { count: 1, copies: 9 }.on(0, number, 4)));
    }
}
