//! Scaling by thresholds, one worker at a time: Dynamo's targets `throughput`, `latency` and `load`.
//!
//! Prefill workers are measured by queued prompt tokens over the context length, others by the KV
//! blocks of running and queued requests over all blocks. One worker above the upper threshold
//! adds a worker; all below the lower one take a worker away, unless the others would then pass the
//! upper threshold.

use crate::observation::{RequestSizes, WorkerSignal};
use stator_protos::discovery::Role;

/// Loads at which a role grows and shrinks, as shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Queued prompt tokens over the context length: grows from here on.
    pub prefill_up: f64,
    /// The fleet shrinks below this.
    pub prefill_down: f64,
    /// KV blocks in use and queued over all blocks: grows above this.
    pub decode_up: f64,
    /// The fleet shrinks below this.
    pub decode_down: f64,
}

impl Thresholds {
    /// Full batches.
    pub const THROUGHPUT: Self =
        Self { prefill_up: 1.0, prefill_down: 0.1, decode_up: 1.0, decode_down: 0.6 };
    /// Short queues.
    pub const LATENCY: Self =
        Self { prefill_up: 0.1, prefill_down: 0.0, decode_up: 0.4, decode_down: 0.1 };
}

/// Next step of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThresholdStep {
    /// One worker more.
    Up,
    /// One worker fewer.
    Down,
    /// One worker fewer would overload the others.
    Refused,
    /// The load is between the thresholds.
    Hold,
}

/// The next step of a role whose workers are these.
pub(crate) fn decide<'a>(
    role: Role,
    thresholds: &Thresholds,
    sizes: RequestSizes,
    workers: impl Iterator<Item = &'a WorkerSignal>,
) -> ThresholdStep {
    let loads: Vec<f64> = workers.map(|worker| load(role, sizes, worker)).collect();
    let most = loads.iter().fold(0.0_f64, |most, load| most.max(*load));
    let (up, down, grows) = match role {
        Role::Prefill => {
            (thresholds.prefill_up, thresholds.prefill_down, most >= thresholds.prefill_up)
        }
        _ => (thresholds.decode_up, thresholds.decode_down, most > thresholds.decode_up),
    };
    let count = loads.len() as f64;
    // A worker without any load is below every threshold, 0 included.
    let shrinks = loads.iter().all(|load| *load < down || *load == 0.0);
    match (grows, shrinks) {
        _ if loads.is_empty() => ThresholdStep::Hold,
        (true, _) => ThresholdStep::Up,
        (false, false) => ThresholdStep::Hold,
        (false, true) if count > 1.0 && most * count / (count - 1.0) >= up => {
            ThresholdStep::Refused
        }
        (false, true) => ThresholdStep::Down,
    }
}

fn load(role: Role, sizes: RequestSizes, worker: &WorkerSignal) -> f64 {
    let load = &worker.load;
    let pending = load.pending_prefill_tokens as f64;
    if role == Role::Prefill {
        return pending / sizes.context_tokens.max(1.0);
    }
    let used = f64::from(load.used_blocks);
    let queued = match role {
        Role::Aggregated => pending / sizes.block_tokens.max(1.0),
        // Requests that wait are taken to need what those that run have.
        _ => used / f64::from(load.running.max(1)) * f64::from(load.waiting),
    };
    (used + queued) / f64::from(load.total_blocks.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::load::Load;

    const SIZES: RequestSizes = RequestSizes { context_tokens: 8_000.0, block_tokens: 16.0 };

    fn worker(role: Role, used: u32, waiting: u32, pending: u64) -> WorkerSignal {
        let load = Load {
            running: 10,
            waiting,
            used_blocks: used,
            total_blocks: 1_000,
            pending_prefill_tokens: pending,
            ..Load::default()
        };
        WorkerSignal { role, up_s: 100.0, draining: false, load }
    }

    #[track_caller]
    fn check(thresholds: &Thresholds, workers: &[WorkerSignal], expected: ThresholdStep) {
        let role = workers[0].role;
        assert_eq!(decide(role, thresholds, SIZES, workers.iter()), expected);
    }

    #[test]
    fn any_worker_above_adds_and_all_below_take_away() {
        let decode = |used, waiting| worker(Role::Decode, used, waiting, 0);
        let throughput = &Thresholds::THROUGHPUT;
        check(throughput, &[decode(200, 0), decode(900, 3)], ThresholdStep::Up);
        check(throughput, &[decode(200, 0), decode(700, 0)], ThresholdStep::Hold);
        check(throughput, &[decode(200, 0), decode(300, 0)], ThresholdStep::Down);
        check(&Thresholds::LATENCY, &[decode(50, 0), decode(300, 4)], ThresholdStep::Up);
        let prefill = |pending| worker(Role::Prefill, 0, 0, pending);
        check(throughput, &[prefill(100), prefill(8_000)], ThresholdStep::Up);
        check(throughput, &[prefill(100), prefill(700)], ThresholdStep::Down);
        check(&Thresholds::LATENCY, &[prefill(0), prefill(700)], ThresholdStep::Hold);
        check(&Thresholds::LATENCY, &[prefill(0), prefill(0)], ThresholdStep::Down);
    }

    #[test]
    fn a_worker_is_not_taken_away_if_the_others_cannot_take_its_load() {
        let decode = |used| worker(Role::Decode, used, 0, 0);
        check(&Thresholds::THROUGHPUT, &[decode(550), decode(510)], ThresholdStep::Refused);
        let four = [decode(550), decode(510), decode(550), decode(500)];
        check(&Thresholds::THROUGHPUT, &four, ThresholdStep::Down);
    }

    #[test]
    fn prompts_that_wait_count_for_workers_that_do_both() {
        let busy = worker(Role::Aggregated, 500, 0, 9_000);
        check(&Thresholds::THROUGHPUT, &[busy], ThresholdStep::Up);
    }

    #[test]
    fn kv_that_waits_for_export_is_no_prefill_demand() {
        // Blocks of a prefill worker are full of prompts that decode workers did not fetch yet.
        let prefill = worker(Role::Prefill, 1_000, 0, 0);
        check(&Thresholds::THROUGHPUT, &[prefill, prefill], ThresholdStep::Down);
    }
}
