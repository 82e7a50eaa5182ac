//! Capacity of workers: latencies of a demand on a number of workers, in closed form.
//!
//! A request brings seconds of arithmetic with it: those of its prompt, and those that each of its
//! tokens adds to a step. With `rho` seconds of it a second on one worker, the rest of the time is
//! left for the fixed part of steps, so that the time between tokens is `step / (1 - rho)`. Prompts
//! queue before the workers together, as Sakasegawa's approximation of a queue with many servers
//! says; the wait of those that wait is exponential.
//!
//! Source: Sakasegawa, "An approximation formula L_q = a rho^b / (1 - rho)", 1977.

use stator_protos::discovery::Role;
use stator_timing::Timing;

/// Utilisation above which no number of workers is taken, whatever the targets.
const UTILISATION_MAX: f64 = 0.95;
/// Share of the KV blocks and of the batch that may be in use.
const ROOM_MAX: f64 = 0.9;

/// Requests of one graph, as means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Requests a second.
    pub rate: f64,
    /// Tokens of a prompt that are computed.
    pub computed_tokens: f64,
    /// Tokens of a prompt that are reused.
    pub cached_tokens: f64,
    /// Mean square of the prompts' lengths over the square of their mean, at least 1.
    pub prompt_spread: f64,
    /// Tokens of an answer.
    pub output_tokens: f64,
}

/// Latency targets, and the share of requests that must be within both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlaTargets {
    /// Longest time to the first token, seconds.
    pub ttft_s: f64,
    /// Longest mean time between tokens, seconds.
    pub itl_s: f64,
    /// Share of requests within both targets, below 1.
    pub attainment: f64,
}

/// An engine: the time of its steps and its limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerModel {
    /// Time of a step.
    pub timing: Timing,
    /// Tokens of KV.
    pub kv_tokens: f64,
    /// Most sequences of a step.
    pub batch_max: f64,
    /// Most tokens of a step.
    pub step_tokens: f64,
}

/// Latencies of a demand on a number of workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyEstimate {
    /// Share of the time that goes into requests, and not into the fixed part of steps.
    pub utilisation: f64,
    /// Mean time between tokens, seconds; infinite if the demand is too large.
    pub itl_s: f64,
    /// Mean time to the first token, seconds; infinite if the demand is too large.
    pub ttft_s: f64,
    /// Share of requests within both targets.
    pub attained: f64,
}

/// A number of workers that holds the targets, or the reason why none does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Workers. Without a number that holds the targets: those that merely keep up.
    pub workers: u32,
    /// Whether no number of workers holds the targets: a request alone is too slow.
    pub infeasible: bool,
}

impl WorkerModel {
    /// Seconds of arithmetic of a mean prompt.
    pub fn prompt_s(&self, demand: &Demand) -> f64 {
        let (own, cached) = (demand.computed_tokens, demand.cached_tokens);
        let pairs = own * (cached + own * demand.prompt_spread / 2.0);
        self.timing.token_s * own + self.timing.prefill_pair_s * pairs
    }

    /// Seconds that one sequence adds to a step.
    fn sequence_s(&self, demand: &Demand) -> f64 {
        self.timing.token_s + self.timing.decode_kv_token_s * context(demand)
    }

    /// Seconds of arithmetic that a mean request brings to a role.
    pub fn request_s(&self, role: Role, demand: &Demand) -> f64 {
        let answer = demand.output_tokens * self.sequence_s(demand);
        match role {
            Role::Prefill => self.prompt_s(demand),
            Role::Decode => answer,
            _ => self.prompt_s(demand) + answer,
        }
    }

    /// Latencies of a demand on so many workers of a role.
    pub fn estimate(
        &self,
        role: Role,
        demand: &Demand,
        workers: u32,
        targets: &SlaTargets,
    ) -> LatencyEstimate {
        let rate = demand.rate / f64::from(workers.max(1));
        let utilisation = rate * self.request_s(role, demand);
        let overload = LatencyEstimate {
            utilisation,
            itl_s: f64::INFINITY,
            ttft_s: f64::INFINITY,
            attained: 0.0,
        };
        if utilisation >= UTILISATION_MAX {
            return overload;
        }
        let mut attained = 1.0;
        let (mut itl_s, mut decoding) = (0.0, 0.0);
        if role != Role::Prefill {
            itl_s = self.timing.step_s / (1.0 - utilisation);
            decoding = rate * demand.output_tokens * itl_s;
            attained *= self.answers_in_time(role, demand, itl_s, rate, targets);
            let blocks = decoding * context(demand) / self.kv_tokens;
            let batch = decoding / self.batch_max;
            attained *= room(blocks) * room(batch);
        }
        let mut ttft_s = 0.0;
        if role != Role::Decode {
            let step_s = self.timing.step_s + decoding * self.sequence_s(demand);
            let Some((mean_s, share)) = self.first_tokens(demand, workers, step_s, targets) else {
                return overload;
            };
            ttft_s = mean_s;
            attained *= share;
        }
        LatencyEstimate { utilisation, itl_s, ttft_s, attained }
    }

    /// Share of requests whose mean time between tokens is in time. Prompts of others pause an
    /// answer: the shorter the answer, the more of its mean one pause makes.
    fn answers_in_time(
        &self,
        role: Role,
        demand: &Demand,
        itl_s: f64,
        rate: f64,
        targets: &SlaTargets,
    ) -> f64 {
        let gaps = (demand.output_tokens - 1.0).max(1.0);
        let pause = match role {
            Role::Decode => 0.0,
            _ => self.prompt_s(demand).powi(2) * demand.prompt_spread * rate * itl_s / gaps,
        };
        // The number of sequences of a worker varies as a Poisson number does.
        let batch = rate * demand.output_tokens * itl_s * self.sequence_s(demand).powi(2);
        let deviation = (pause + batch).sqrt().max(1e-9);
        normal_share((targets.itl_s - itl_s) / deviation)
    }

    /// Mean time to the first token, and the share of requests for which it is in time; none if
    /// prompts come faster than they are computed. `step_s` is a step's time without prompts.
    fn first_tokens(
        &self,
        demand: &Demand,
        workers: u32,
        step_s: f64,
        targets: &SlaTargets,
    ) -> Option<(f64, f64)> {
        let servers = f64::from(workers.max(1));
        let prompt_s = self.prompt_s(demand);
        let steps = demand.computed_tokens / self.step_tokens;
        // A prompt waits for the end of the step that is under way.
        let own_s = prompt_s + (steps.ceil().max(1.0) + 0.5) * step_s;
        let served_s = prompt_s + steps * step_s;
        let busy = demand.rate * served_s / servers;
        if busy >= UTILISATION_MAX {
            return None;
        }
        let waits = busy.powf((2.0 * (servers + 1.0)).sqrt() - 1.0);
        // The mean wait of a prompt that waits.
        let wait_s = demand.prompt_spread.max(1.0) / 2.0 * served_s / (servers * (1.0 - busy));
        let slack_s = targets.ttft_s - own_s;
        // A prompt that alone is too slow is late on any number of workers.
        let late = match slack_s > 0.0 {
            true => waits * (-slack_s / wait_s.max(1e-9)).exp(),
            false => 1.0,
        };
        Some((own_s + waits * wait_s, 1.0 - late))
    }

    /// The fewest workers of a role that hold the targets.
    pub fn size(&self, role: Role, demand: &Demand, targets: &SlaTargets) -> Sizing {
        let work = demand.rate * self.request_s(role, demand);
        if demand.rate <= 0.0 || work <= 0.0 {
            return Sizing { workers: 0, infeasible: false };
        }
        let least = (work / UTILISATION_MAX).ceil().max(1.0) as u32;
        // More than this many times the workers that keep up change latencies no more.
        let most = least.saturating_mul(8).saturating_add(8);
        let holds = |workers: &u32| {
            self.estimate(role, demand, *workers, targets).attained >= targets.attainment
        };
        match (least..=most).find(holds) {
            Some(workers) => Sizing { workers, infeasible: false },
            None => Sizing { workers: (work / 0.8).ceil().max(1.0) as u32, infeasible: true },
        }
    }
}

/// Tokens that a sequence attends to, on average over its answer.
fn context(demand: &Demand) -> f64 {
    demand.computed_tokens + demand.cached_tokens + demand.output_tokens / 2.0
}

/// Share of requests that find room where `used` of it is in use on average.
fn room(used: f64) -> f64 {
    if used <= ROOM_MAX { 1.0 } else { 0.0 }
}

/// Share of a normal distribution below so many deviations over its mean; within 0.01.
fn normal_share(deviations: f64) -> f64 {
    1.0 / (1.0 + (-1.702 * deviations).exp())
}

#[cfg(test)]
#[path = "capacity_tests.rs"]
mod tests;
