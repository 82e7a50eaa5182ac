//! What a simulation is, checked.

use crate::engine::Limits;
use crate::policy::{Common, Kind, WorkerNumber};
use crate::time::Ps;
use stator_engine_timing::Timing;
use stator_placement::{BusyThresholds, Role};
use std::num::NonZeroU32;

/// One simulation but for its workload and policy. A value of this type is valid.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    /// Workers of each role, in the order in which a request meets them; one entry where every
    /// worker does all.
    pub(crate) sides: Vec<u32>,
    pub(crate) timing: Timing,
    pub(crate) limits: Limits,
    /// Bytes of KV per token.
    pub(crate) kv_token_bytes: f64,
    pub(crate) transfer: Transfer,
    /// How often workers report their load, and how late reports and KV events arrive.
    pub(crate) report_interval: Ps,
    pub(crate) event_delay: Ps,
    /// How requests wait for a worker, and how long.
    pub(crate) queue: stator_queue::Settings,
    pub(crate) queue_timeout: Ps,
    /// When a worker is busy.
    pub(crate) busy: BusyThresholds,
    /// Workers that may die under a request before it fails.
    pub(crate) migrations_max: u32,
    pub(crate) faults: Faults,
    pub(crate) slo: Slo,
    pub(crate) kinds: Vec<Kind>,
}

/// How KV goes from worker to worker.
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

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Faults {
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

/// What counts as good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slo {
    pub(crate) ttft: Ps,
    pub(crate) itl: Ps,
}

impl Settings {
    /// All workers.
    pub(crate) fn workers(&self) -> u32 {
        self.sides.iter().sum()
    }

    /// What a worker is for: those for prompts come first.
    pub(crate) fn role(&self, worker: WorkerNumber) -> Role {
        match self.sides[..] {
            [prefill, _] if worker < prefill => Role::Prefill,
            [_, _] => Role::Decode,
            _ => Role::Aggregated,
        }
    }

    /// What policies are built from.
    pub(crate) fn common(&self) -> Common {
        let block_size = NonZeroU32::new(self.limits.block_size);
        Common {
            block_size: block_size.expect("a block has at least one token"),
            split: self.sides.len() > 1,
            busy: self.busy,
        }
    }
}
