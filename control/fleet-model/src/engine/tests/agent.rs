//! The simulator's engine against the agent's simulated engine: both are one law, written once for
//! speed and once for tokens.

use super::*;
use stator_engine::options::{EngineOptions, ModelInfo};
use stator_engine::sim::{SimEngine, SimOptions};
use stator_engine::{AnswerRules, Engine as _, Request, RequestKey, Step};
use stator_protos::worker::Sampling;
use std::sync::Arc;

/// Tokens are below this; above all that [`tokens`] makes.
const VOCAB_SIZE: u32 = 1 << 20;
/// Blocks and tokens above this belong to one request alone.
const OWN: u32 = 1 << 19;

/// Rates in whole nanoseconds, to which the agent rounds its steps.
const TIMING: Timing =
    Timing { step_s: 5e-3, token_s: 3e-6, prefill_pair_s: 2e-9, decode_kv_token_s: 7e-9 };

/// A prompt that shares all but its last token with the longer ones of its family.
fn tokens(request: u32, asked: &Asked) -> Vec<u32> {
    let shared = (0..asked.tokens - 1).map(|place| asked.family * 1_000 + place);
    shared.chain([OWN + request]).collect()
}

/// Identities of the same prompt's blocks, and of those that its answer fills.
fn identities(request: u32, asked: &Asked) -> Vec<BlockId> {
    let shared = (asked.tokens - 1) / BLOCK;
    let all = (asked.tokens + asked.output) / BLOCK;
    let own = |place| OWN + request * 1_000 + place;
    (0..all).map(|at| if at < shared { asked.family * 1_000 + at } else { own(at) }).collect()
}

/// An engine that is driven, and the time of its next news.
trait Driven {
    fn submit(&mut self, request: u32, asked: &Asked);
    /// Starts to compute if there is anything to do and nothing under way.
    fn start(&mut self, now: Ps);
    fn ends(&self) -> Option<Ps>;
    /// Outputs of the step that ends now.
    fn finish(&mut self) -> Vec<EngineOutput>;
    fn load(&self) -> Load;
}

struct Simulated(Engine);

impl Driven for Simulated {
    fn submit(&mut self, request: u32, asked: &Asked) {
        let Asked { tokens, output, .. } = *asked;
        let blocks = &identities(request, asked);
        self.0.submit(&Submission { request, tokens, output, blocks, transfer: None, park: false });
    }

    fn start(&mut self, now: Ps) {
        self.0.interrupt(now);
        self.0.plan(now);
    }

    fn ends(&self) -> Option<Ps> {
        self.0.run_ends()
    }

    fn finish(&mut self) -> Vec<EngineOutput> {
        let mut outputs = Vec::new();
        self.0.finish(&mut outputs);
        outputs
    }

    fn load(&self) -> Load {
        self.0.load()
    }
}

struct Agent {
    engine: SimEngine,
    step: Step,
    ends: Option<Ps>,
}

impl Driven for Agent {
    fn submit(&mut self, request: u32, asked: &Asked) {
        let sampling = Sampling { max_tokens: asked.output, ..Sampling::neutral() };
        let request = Request {
            key: RequestKey(request.into()),
            tokens: tokens(request, asked),
            resumed: 0,
            first_choice: 0,
            choices: 1,
            sampling: Arc::new(sampling),
            cache_salt: None,
            named: None,
            rules: AnswerRules::default(),
        };
        self.engine.submit(request).expect("the request fits");
    }

    fn start(&mut self, now: Ps) {
        if self.ends.is_none() {
            self.step.clear();
            self.engine.step(&mut self.step);
            let span = self.step.duration.as_nanos() as Ps * 1_000;
            self.ends = self.step.ran.then_some(now + span);
        }
    }

    fn ends(&self) -> Option<Ps> {
        self.ends
    }

    fn finish(&mut self) -> Vec<EngineOutput> {
        self.ends = None;
        let outputs = self.step.outputs.iter().flat_map(|output| {
            let request = output.key.0 as u32;
            let first = output.cached_tokens;
            let first = first.map(|cached_tokens| EngineOutput::First { request, cached_tokens });
            first.into_iter().chain(output.finish.map(|_| EngineOutput::Last { request }))
        });
        outputs.collect()
    }

    fn load(&self) -> Load {
        self.engine.load()
    }
}

/// An agent's engine with the same limits.
fn agent(limits: EngineLimits) -> Agent {
    let model =
        ModelInfo { context_length: u32::MAX, vocab_size: VOCAB_SIZE, eos_token_ids: Vec::new() };
    let options = EngineOptions {
        block_size: limits.block_size,
        total_blocks: limits.total_blocks,
        max_running: limits.max_running,
        max_batched_tokens: limits.step_tokens,
        ..EngineOptions::default()
    };
    let sim = SimOptions { model, answer_tokens: Arc::new([]), timing: TIMING, speedup: 1.0 };
    let engine = stator_engine::sim::engine(sim, options).expect("the options are valid");
    Agent { engine, step: Step::default(), ends: None }
}

/// Outputs in an order that does not depend on which of two came first in one step, with the load
/// that was left after it.
type Log = Vec<(Ps, Vec<(u32, Option<u32>)>, Load)>;

fn driven(mut engine: impl Driven, requests: &[Asked]) -> Log {
    let (mut log, mut next) = (Log::new(), 0);
    loop {
        let arrival = requests.get(next).map_or(Ps::MAX, |asked| asked.at);
        match engine.ends() {
            // A request that comes when a step ends is in the next one.
            Some(end) if end < arrival => {
                let mut outputs: Vec<_> = engine.finish().iter().map(key).collect();
                outputs.sort_unstable();
                if !outputs.is_empty() {
                    log.push((end, outputs, engine.load()));
                }
                engine.start(end);
            }
            _ if arrival == Ps::MAX => return log,
            _ => {
                engine.submit(next as u32, &requests[next]);
                engine.start(arrival);
                next += 1;
            }
        }
    }
}

fn key(output: &EngineOutput) -> (u32, Option<u32>) {
    match *output {
        EngineOutput::First { request, cached_tokens } => (request, Some(cached_tokens)),
        EngineOutput::Last { request } => (request, None),
    }
}

proptest! {
    /// Both engines give equal outputs at equal times with equal load, however much is reused or
    /// preempted.
    #[test]
    fn the_agents_engine_obeys_the_same_law(requests in asked(), total in 20_u32..80) {
        let limits = limits(total);
        let simulated = Simulated(Engine::new(limits, Rates::new(&TIMING, 1.0), Bucket::default()));
        let (simulated, agents) = (driven(simulated, &requests), driven(agent(limits), &requests));
        for (ours, agents) in simulated.iter().zip(&agents) {
            prop_assert_eq!(ours, agents);
        }
        prop_assert_eq!(simulated.len(), agents.len());
    }
}
