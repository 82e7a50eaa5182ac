//! Checked settings of a fleet.

use crate::engine::{EngineLimits, TierLimits};
use crate::policy::{Common, WorkerNumber};
use crate::time::{MS, Ps, SECOND, from_seconds};
use stator_placement::{BusyThresholds, Role, SessionSettings, Split};
use stator_queue::{
    BandPolicy, BandSettings, Bounds, CheckedSettings, Fairness, Ordering, QueueSettings,
};
use stator_timing::{Preset, Timing};
use std::num::NonZeroU32;
use std::time::Duration;

/// A fleet, its network and its faults: all of a run but its workload and policy.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSettings {
    /// Seed of everything that is random.
    pub seed: u64,
    /// Workers at the start.
    pub sides: Sides,
    /// Edges that place requests, and their exchange of load.
    pub edges: Edges,
    /// Rule for computing prompts on prefill workers; `None` leaves it to the policy.
    pub split: Option<Split>,
    /// Binding of sessions to workers, if any.
    pub sessions: Option<SessionSettings>,
    /// LoRA adapters, and where they are loaded.
    pub adapters: Adapters,
    /// Time of an engine's steps.
    pub timing: Timing,
    /// Capacities of each engine.
    pub limits: EngineLimits,
    /// Engines of workers that only compute prompts, if they are others.
    pub prefill_engine: Option<RoleEngine>,
    /// Bytes of KV per token.
    pub kv_token_bytes: f64,
    /// Time that KV takes from worker to worker.
    pub transfer: Transfer,
    /// Interval of workers' load reports, above 0.
    pub report_interval: Ps,
    /// Delay of load reports and KV events.
    pub event_delay: Ps,
    /// Queue of requests without a worker. All its bands have one policy, see
    /// [`one_policy_queue`].
    pub queue: CheckedSettings,
    /// Longest wait in that queue.
    pub queue_timeout: Ps,
    /// Load from which on a worker counts as busy.
    pub busy: BusyThresholds,
    /// Workers that may die under a request before it fails.
    pub migrations_max: u32,
    /// Failures and slowness.
    pub faults: FaultSettings,
    /// Latency objectives.
    pub slo: Slo,
}

/// Engines of one role.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleEngine {
    /// Time of their steps.
    pub timing: Timing,
    /// Their capacities, with the blocks of all others.
    pub limits: EngineLimits,
}

/// Workers of each role, in the order of their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides {
    /// Workers that only compute prompts.
    pub prefill: u32,
    /// Workers that answer from prompts that others computed.
    pub decode: u32,
    /// Workers that do both.
    pub aggregated: u32,
}

/// Edges place requests: each sees its own share of the requests, and all KV events and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edges {
    /// Number of edges, 1 to 64.
    pub count: u32,
    /// Exchange of load in flight between edges; `None` without one.
    pub exchange: Option<Exchange>,
}

/// Exchange of load in flight between edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The shortest time from one telling to the next.
    pub interval: Ps,
    /// Delay from sending to arrival.
    pub delay: Ps,
}

/// LoRA adapters, and where they are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// Number of adapters.
    pub count: u32,
    /// Workers of each role that have a given one.
    pub copies: u32,
}

/// Time that KV takes from worker to worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Before the first byte.
    pub latency: Ps,
    /// Bandwidth between workers of one host, gigabytes per second.
    pub local_gb_s: f64,
    /// Bandwidth between workers of different hosts, gigabytes per second.
    pub remote_gb_s: f64,
    /// Workers on a host.
    pub host_workers: u32,
}

/// Failures and slowness that a run injects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultSettings {
    /// Deaths of each worker per hour, on average.
    pub deaths_per_hour: f64,
    /// Time from a death until it is known.
    pub detection: Ps,
    /// Time from a death until the worker is back, longer than `detection`.
    pub restart: Ps,
    /// Share of workers that are slow.
    pub stragglers: f64,
    /// The time of a slow worker's step, as a multiple of the others'.
    pub straggler_slowdown: f64,
    /// Share of batches of KV events that are lost.
    pub event_loss: f64,
    /// Share of load reports that are lost.
    pub report_loss: f64,
    /// From a gap in the events to the snapshot.
    pub resync: Ps,
}

/// Latency objectives for goodput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Longest TTFT.
    pub ttft: Ps,
    /// Longest ITL.
    pub itl: Ps,
}

/// Settings of a queue of at most `requests` requests whose bands all have one policy; the default
/// settings if the bounds are out of range.
pub fn one_policy_queue(requests: u32, fairness: Fairness, ordering: Ordering) -> CheckedSettings {
    let bounds = Bounds { requests, ..Bounds::MAX };
    let policy = BandPolicy { bounds, fairness, ordering, ..BandPolicy::default() };
    let settings = QueueSettings {
        bands: vec![BandSettings { priority: 0, policy }],
        default_band: policy,
        default_negative_band: policy,
        total: bounds,
        ttl_max: Duration::from_secs(86_400),
        ..QueueSettings::default()
    };
    CheckedSettings::new(settings).unwrap_or_default()
}

impl FaultSettings {
    /// Nothing fails, and nothing is slow.
    pub const NONE: Self = Self {
        deaths_per_hour: 0.0,
        detection: SECOND / 2,
        restart: 30 * SECOND,
        stragglers: 0.0,
        straggler_slowdown: 2.0,
        event_loss: 0.0,
        report_loss: 0.0,
        resync: 50 * MS,
    };
}

impl Sides {
    /// The number of workers of a role.
    pub fn of(&self, role: Role) -> u32 {
        match role {
            Role::Prefill => self.prefill,
            Role::Decode => self.decode,
            Role::Aggregated => self.aggregated,
            Role::DecodeOnly | Role::Encode => 0,
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

impl FleetSettings {
    /// A fleet of a preset's engines in which nothing fails, with the defaults of
    /// `stator simulate`: 400,000 tokens of KV in blocks of 128, one edge, reports every 100 ms.
    pub fn new(preset: &Preset, sides: Sides) -> Self {
        let block_size = 128;
        let kv_token_bytes = preset.kv_token_bytes();
        // Blocks come from host memory at 50 GB/s.
        let block_bytes = f64::from(block_size) * kv_token_bytes;
        Self {
            seed: 1,
            sides,
            edges: Edges { count: 1, exchange: None },
            split: None,
            sessions: None,
            adapters: Adapters { count: 0, copies: 2 },
            timing: preset.timing(),
            limits: EngineLimits {
                block_size,
                total_blocks: 400_000 / block_size,
                tiers: TierLimits {
                    onboard_block: from_seconds(block_bytes / 50e9),
                    ..TierLimits::NONE
                },
                max_running: 256,
                step_tokens: 8_192,
                block_prefill: EngineLimits::block_prefill(&preset.timing(), block_size),
                stride: 1 << 16,
            },
            prefill_engine: None,
            kv_token_bytes,
            transfer: Transfer {
                latency: MS,
                local_gb_s: 200.0,
                remote_gb_s: 40.0,
                host_workers: 8,
            },
            report_interval: 100 * MS,
            event_delay: 2 * MS,
            queue: one_policy_queue(100_000, Fairness::GlobalStrict, Ordering::Fcfs),
            queue_timeout: 60 * SECOND,
            busy: BusyThresholds::default(),
            migrations_max: 3,
            faults: FaultSettings::NONE,
            slo: Slo { ttft: 2 * SECOND, itl: 50 * MS },
        }
    }

    /// The engine of a role's workers.
    pub(crate) fn engine_of(&self, role: Role) -> RoleEngine {
        let every = RoleEngine { timing: self.timing, limits: self.limits };
        self.prefill_engine.filter(|_| role == Role::Prefill).unwrap_or(every)
    }

    /// All workers at the start.
    pub fn workers(&self) -> u32 {
        self.sides.prefill + self.sides.decode + self.sides.aggregated
    }

    /// The first worker that answers.
    pub(crate) fn first_answering(&self) -> WorkerNumber {
        self.sides.prefill
    }

    /// Adapters that a worker has loaded, by its number among those of its role. Workers beyond
    /// those of the start have what these have, in turn.
    pub(crate) fn adapters_of(&self, role: Role, number: u32) -> Vec<u32> {
        let workers = self.sides.of(role).max(1);
        let has = |adapter: &u32| self.adapters.on(*adapter, number % workers, workers);
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
