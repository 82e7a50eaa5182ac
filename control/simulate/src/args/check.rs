//! From what was written to what can be used.

use super::surroundings::TierSurroundings;
use super::{FairnessArg, FaultArgs, FleetArgs, OrderingArg, SimulateArgs, WorkloadArgs};
use stator_fleet_model::time::{MS, Ps, from_seconds};
use stator_fleet_model::{
    EngineLimits, FaultSettings, FleetSettings, Replay, Sides, Slo, TRACE_BLOCK, TierLimits,
    Transfer, one_policy_queue,
};
use stator_placement::BusyThresholds;
use stator_queue::{CheckedSettings, Fairness, Ordering};
use stator_timing::{PRESETS, Timing};

/// Settings that cannot be used, one a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct InvalidArgs(pub Vec<String>);

/// Collects every fault.
#[derive(Default)]
pub(super) struct Faulty(Vec<String>);

impl Faulty {
    pub(super) fn fault(&mut self, fault: String) {
        self.0.push(fault);
    }

    pub(super) fn number(&mut self, name: &str, value: f64, least: f64, most: f64) -> f64 {
        if !(least..=most).contains(&value) {
            self.0.push(format!("{name}: {value} is not in {least}..={most}"));
        }
        value
    }

    pub(super) fn count(&mut self, name: &str, value: u32, least: u32, most: u32) -> u32 {
        if !(least..=most).contains(&value) {
            self.0.push(format!("{name}: {value} is not in {least}..={most}"));
        }
        value
    }

    pub(super) fn ms(&mut self, name: &str, value: f64, least: f64, most: f64) -> Ps {
        (self.number(name, value, least, most) * MS as f64) as Ps
    }
}

impl SimulateArgs {
    /// The checked settings; of a sweep, those of its first seed.
    ///
    /// # Errors
    ///
    /// [`InvalidArgs`] names everything that is out of its range.
    pub(crate) fn settings(&self) -> Result<FleetSettings, InvalidArgs> {
        let mut faulty = Faulty::default();
        let preset = PRESETS.iter().find(|preset| preset.name == self.fleet.timing);
        if preset.is_none() {
            let known: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            let (got, known) = (&self.fleet.timing, known.join(", "));
            faulty.0.push(format!("timing: {got:?} is none of {known}"));
        }
        // An unknown preset is named already: the rest is checked with any that works.
        let kv_token_bytes = preset.map_or(1.0, |preset| preset.kv_token_bytes());
        let timing = preset.map_or(Timing::NONE, |preset| preset.timing());
        let sides = self.fleet.sides(&mut faulty);
        let transfer = self.fleet.transfer(&mut faulty);
        let mut limits = self.fleet.limits(&timing, &mut faulty);
        let workers = sides.prefill + sides.decode + sides.aggregated;
        let block_size = limits.block_size;
        let block_bytes = f64::from(block_size) * kv_token_bytes;
        let around = TierSurroundings { block_size, block_bytes, transfer, workers };
        limits.tiers = self.tiers.limits(&around, &mut faulty);
        let settings = FleetSettings {
            seed: self.seed,
            sides,
            edges: self.edges.edges(&mut faulty),
            split: self.split.check(&mut faulty),
            sessions: self.edges.sessions(),
            adapters: self.edges.adapters(self.workload.trace.is_some(), &mut faulty),
            timing,
            limits,
            prefill_engine: None,
            kv_token_bytes,
            transfer,
            report_interval: faulty.ms(
                "report_interval_ms",
                self.fleet.report_interval_ms,
                1.0,
                60_000.0,
            ),
            event_delay: faulty.ms("event_delay_ms", self.fleet.event_delay_ms, 0.0, 60_000.0),
            queue: self.fleet.queue(&mut faulty),
            busy: self.fleet.busy(&mut faulty),
            queue_timeout: faulty.ms(
                "queue_timeout_ms",
                self.fleet.queue_timeout_ms,
                1.0,
                86_400_000.0,
            ),
            migrations_max: faulty.count("migrations_max", self.faults.migrations_max, 0, 100),
            faults: self.faults.check(&mut faulty),
            slo: Slo {
                ttft: faulty.ms("slo_ttft_ms", self.output.slo_ttft_ms, 0.0, 1e9),
                itl: faulty.ms("slo_itl_ms", self.output.slo_itl_ms, 0.0, 1e9),
            },
        };
        faulty.count("seeds", self.seeds, 1, 1_000_000);
        self.workload.check(self.fleet.block_size, &mut faulty);
        if faulty.0.is_empty() { Ok(settings) } else { Err(InvalidArgs(faulty.0)) }
    }
}

impl WorkloadArgs {
    /// Requests of a synthetic workload, or most of a trace.
    pub(crate) fn count(&self) -> u32 {
        self.requests.unwrap_or(if self.trace.is_some() { u32::MAX } else { 20_000 })
    }

    /// The replay of a trace that the flags ask for.
    pub(crate) fn replay(&self) -> Replay {
        Replay { speed: self.speed, repeat: self.repeat, limit: self.count() }
    }

    fn check(&self, block_size: u32, faulty: &mut Faulty) {
        faulty.number("speed", self.speed, 0.001, 1e6);
        faulty.count("repeat", self.repeat, 1, 10_000);
        faulty.number("rate", self.rate, 0.001, 1e6);
        faulty.count("requests", self.requests.unwrap_or(1), 1, 100_000_000);
        if self.trace.is_some() && !TRACE_BLOCK.is_multiple_of(block_size) {
            faulty.0.push(format!("block_size: {block_size} does not divide {TRACE_BLOCK}"));
        }
    }
}

impl FleetArgs {
    fn sides(&self, faulty: &mut Faulty) -> Sides {
        let Some((prefill, decode)) = self.prefill.zip(self.decode) else {
            let workers = self.workers.unwrap_or(8);
            let aggregated = faulty.count("workers", workers, 1, 100_000);
            return Sides { aggregated, ..Sides::default() };
        };
        Sides {
            prefill: faulty.count("prefill", prefill, 1, 100_000),
            decode: faulty.count("decode", decode, 1, 100_000),
            aggregated: faulty.count("workers", self.workers.unwrap_or(0), 0, 100_000),
        }
    }

    /// Capacities of an engine without tiers.
    fn limits(&self, timing: &Timing, faulty: &mut Faulty) -> EngineLimits {
        let block_size = faulty.count("block_size", self.block_size, 1, 65_536).max(1);
        let max_running = faulty.count("max_running", self.max_running, 1, 65_536);
        let (least, most) = (block_size, 1 << 30);
        EngineLimits {
            block_size,
            total_blocks: faulty.count("kv_tokens", self.kv_tokens, least, most) / block_size,
            tiers: TierLimits::NONE,
            max_running,
            step_tokens: faulty.count(
                "max_batched_tokens",
                self.max_batched_tokens,
                max_running,
                1 << 20,
            ),
            block_prefill: EngineLimits::block_prefill(timing, block_size),
            stride: 1 << 16,
        }
    }

    fn busy(&self, faulty: &mut Faulty) -> BusyThresholds {
        let blocks = self.active_decode_blocks_threshold;
        let busy = BusyThresholds::new(blocks, self.active_prefill_tokens_threshold);
        busy.unwrap_or_else(|error| {
            faulty.0.push(error.to_string());
            BusyThresholds::default()
        })
    }

    fn queue(&self, faulty: &mut Faulty) -> CheckedSettings {
        let requests = faulty.count("queue_max", self.queue_max, 1, 1_000_000);
        // Wrong bounds are named already.
        one_policy_queue(requests, self.fairness.policy(), self.ordering.policy())
    }

    fn transfer(&self, faulty: &mut Faulty) -> Transfer {
        Transfer {
            latency: MS,
            local_gb_s: faulty.number("local_gb_s", self.local_gb_s, 0.001, 1e6),
            remote_gb_s: faulty.number("remote_gb_s", self.remote_gb_s, 0.001, 1e6),
            host_workers: faulty.count("host_workers", self.host_workers, 1, 100_000).max(1),
        }
    }
}

impl FaultArgs {
    fn check(&self, faulty: &mut Faulty) -> FaultSettings {
        let detection = faulty.number("detection_s", self.detection_s, 0.0, 600.0);
        if self.restart_s <= detection {
            let restart = self.restart_s;
            faulty.0.push(format!("restart_s: {restart} is not above detection_s {detection}"));
        }
        let slowdown = self.straggler_slowdown;
        FaultSettings {
            deaths_per_hour: faulty.number("deaths_per_hour", self.deaths_per_hour, 0.0, 3_600.0),
            detection: from_seconds(detection),
            restart: from_seconds(faulty.number("restart_s", self.restart_s, 0.001, 86_400.0)),
            stragglers: faulty.number("stragglers", self.stragglers, 0.0, 1.0),
            straggler_slowdown: faulty.number("straggler_slowdown", slowdown, 1.0, 1_000.0),
            event_loss: faulty.number("event_loss", self.event_loss, 0.0, 1.0),
            report_loss: faulty.number("report_loss", self.report_loss, 0.0, 1.0),
            resync: faulty.ms("resync_ms", self.resync_ms, 0.0, 60_000.0),
        }
    }
}

impl FairnessArg {
    fn policy(self) -> Fairness {
        match self {
            Self::GlobalStrict => Fairness::GlobalStrict,
            Self::RoundRobin => Fairness::RoundRobin,
            Self::Drr => Fairness::Drr { quantum_tokens: 8_192 },
            Self::Vtc => Fairness::Vtc { input_weight: 1, output_weight: 2 },
        }
    }
}

impl OrderingArg {
    fn policy(self) -> Ordering {
        match self {
            Self::Fcfs => Ordering::Fcfs,
            Self::ShortestPrompt => Ordering::ShortestPrompt { ageing_tokens_per_s: 4_096 },
            Self::SloDeadline => Ordering::SloDeadline,
        }
    }
}
