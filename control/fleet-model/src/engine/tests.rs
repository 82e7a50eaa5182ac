//! The engine against itself one step at a time, and against an obvious slow scheduler.

mod agent;

use super::*;
use proptest::{collection::vec, prelude::*};
use stator_timing::Timing;

const BLOCK: u32 = 4;

fn limits(total_blocks: u32) -> EngineLimits {
    EngineLimits {
        block_size: BLOCK,
        total_blocks,
        tiers: TierLimits::NONE,
        max_running: 6,
        step_tokens: 16,
        block_prefill: 0,
        stride: 1 << 16,
    }
}

fn rates() -> Rates {
    Rates::new(&Timing::preset("h100-llama-8b").expect("a known preset"), 1.0)
}

/// A request of a test: when, tokens, output, and the family that its leading blocks belong to.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Ps,
    tokens: u32,
    output: u32,
    family: u32,
}

fn asked() -> impl Strategy<Value = Vec<Asked>> {
    let one = (1_u64..400_000_000_000, 1_u32..40, 1_u32..30, 0_u32..3);
    let one = one.prop_map(|(at, tokens, output, family)| Asked { at, tokens, output, family });
    vec(one, 1..24).prop_map(|mut all| {
        all.sort_by_key(|asked| asked.at);
        all
    })
}

fn blocks(asked: &Asked) -> Vec<BlockId> {
    let all = (asked.tokens + asked.output) / BLOCK;
    (0..all).map(|place| asked.family * 1_000 + place).collect()
}

/// Runs the requests through an engine; when each had its first and its last token.
fn drive(
    limits: EngineLimits,
    requests: &[Asked],
    share: bool,
) -> (Vec<(EngineOutput, Ps)>, Engine) {
    let mut engine = Engine::new(limits, rates(), Bucket::default());
    let (mut log, mut outputs, mut next) = (Vec::new(), Vec::new(), 0);
    loop {
        let arrival = requests.get(next).map_or(Ps::MAX, |asked| asked.at);
        match engine.run_ends() {
            Some(end) if end <= arrival => {
                engine.finish(&mut outputs);
                log.extend(outputs.drain(..).map(|output| (output, end)));
                engine.plan(end);
            }
            _ if arrival == Ps::MAX => break,
            _ => {
                let asked = requests[next];
                let ids = if share { blocks(&asked) } else { Vec::new() };
                engine.submit(&Submission {
                    request: next as u32,
                    tokens: asked.tokens,
                    output: asked.output,
                    blocks: &ids,
                    transfer: None,
                    park: false,
                });
                next += 1;
                engine.interrupt(asked.at);
                engine.plan(asked.at);
            }
        }
        engine.pool().check().expect("every block is counted once");
    }
    (log, engine)
}

/// The scheduler as it is told, one sequence and one token at a time, without a prefix cache.
struct Literal<'a> {
    limits: EngineLimits,
    requests: &'a [Asked],
    waiting: VecDeque<Told>,
    running: Vec<Told>,
    log: Vec<(EngineOutput, Ps)>,
}

/// A sequence of the literal scheduler.
struct Told {
    request: u32,
    tokens: u32,
    computed: u32,
    left: u32,
    blocks: u32,
    started: bool,
}

impl Literal<'_> {
    fn free(&self) -> u32 {
        self.limits.total_blocks - self.running.iter().map(|told| told.blocks).sum::<u32>()
    }

    fn arrive(&mut self, request: u32) {
        let Asked { tokens, output: left, .. } = self.requests[request as usize];
        let (computed, blocks, started) = (0, 0, false);
        self.waiting.push_back(Told { request, tokens, computed, left, blocks, started });
    }

    /// Every decoding sequence gets its block; true if one was preempted for it.
    fn grow(&mut self) -> bool {
        let (mut preempted, mut place) = (false, 0);
        while place < self.running.len() {
            let told = &self.running[place];
            let grows = told.started && told.tokens.div_ceil(BLOCK) > told.blocks;
            if grows && self.free() == 0 {
                let mut youngest = self.running.pop().expect("one runs");
                (youngest.computed, youngest.blocks, youngest.started) = (0, 0, false);
                self.waiting.push_front(youngest);
                preempted = true;
            } else {
                self.running[place].blocks += u32::from(grows);
                place += 1;
            }
        }
        preempted
    }

    /// How many tokens of each running sequence the next step computes.
    fn plan(&mut self) -> Vec<u32> {
        let preempted = self.grow();
        let decoding = self.running.iter().filter(|told| told.started).count() as u32;
        let mut budget = self.limits.step_tokens - decoding;
        let mut plan = Vec::new();
        for told in &self.running {
            let tokens = (told.tokens - told.computed).min(budget);
            plan.push(if told.started { 1 } else { tokens });
            budget -= if told.started { 0 } else { tokens };
        }
        while !preempted && budget > 0 && self.running.len() < self.limits.max_running as usize {
            let Some(first) = self.waiting.front() else { break };
            let missing = first.tokens.div_ceil(BLOCK);
            if missing + self.running.len() as u32 > self.free() {
                break;
            }
            let mut told = self.waiting.pop_front().expect("it was just seen");
            told.blocks = missing;
            plan.push(told.tokens.min(budget));
            budget -= told.tokens.min(budget);
            self.running.push(told);
        }
        plan
    }

    /// Computes a step that begins at `now`; returns when it ends.
    fn step(&mut self, mut now: Ps, plan: &[u32]) -> Ps {
        let base = rates().decode(Batch::default(), 1);
        now += base;
        for (told, planned) in self.running.iter().zip(plan).filter(|pair| *pair.1 > 0) {
            let end = told.computed + planned;
            let alone = Batch { sequences: 1, context: u64::from(end) };
            now += match planned {
                1 => rates().decode(alone, 1) - base,
                _ => rates().chunk(told.computed, end),
            };
        }
        for (told, planned) in self.running.iter_mut().zip(plan) {
            told.computed += planned;
            if told.computed < told.tokens {
                continue;
            }
            let request = told.request;
            if told.tokens == self.requests[request as usize].tokens {
                self.log.push((EngineOutput::First { request, cached_tokens: 0 }, now));
            }
            (told.tokens, told.left, told.started) = (told.tokens + 1, told.left - 1, true);
            if told.left == 0 {
                self.log.push((EngineOutput::Last { request }, now));
            }
        }
        self.running.retain(|told| told.left > 0);
        now
    }
}

fn literal(limits: EngineLimits, requests: &[Asked]) -> Vec<(EngineOutput, Ps)> {
    let (waiting, running, log) = Default::default();
    let mut literal = Literal { limits, requests, waiting, running, log };
    let (mut now, mut next) = (0, 0);
    loop {
        while requests.get(next).is_some_and(|asked| asked.at <= now) {
            literal.arrive(next as u32);
            next += 1;
        }
        let plan = literal.plan();
        now = match requests.get(next) {
            _ if plan.iter().any(|tokens| *tokens > 0) => literal.step(now, &plan),
            Some(asked) => asked.at,
            None => return literal.log,
        };
    }
}

/// The log in an order that does not depend on which of two came first in one step.
fn sorted(mut log: Vec<(EngineOutput, Ps)>) -> Vec<(Ps, u32, bool)> {
    let key = |(output, at): (EngineOutput, Ps)| match output {
        EngineOutput::First { request, .. } => (at, request, false),
        EngineOutput::Last { request } => (at, request, true),
    };
    let mut keys: Vec<_> = log.drain(..).map(key).collect();
    keys.sort_unstable();
    keys
}

proptest! {
    #[test]
    fn many_steps_at_once_are_the_same_as_one_by_one(requests in asked(), total in 20_u32..80) {
        let (log, engine) = drive(limits(total), &requests, true);
        let (single, other) = drive(EngineLimits { stride: 1, ..limits(total) }, &requests, true);
        prop_assert_eq!(log, single);
        prop_assert_eq!(engine.busy(), other.busy());
        prop_assert_eq!(engine.preemptions(), other.preemptions());
        prop_assert_eq!(engine.pool().snapshot(), other.pool().snapshot());
    }

    #[test]
    fn agrees_with_the_literal_scheduler(requests in asked(), total in 20_u32..60) {
        let (log, engine) = drive(limits(total), &requests, false);
        prop_assert_eq!(engine.pool().used(), 0);
        prop_assert_eq!(sorted(log), sorted(literal(limits(total), &requests)));
    }
}

#[test]
fn a_later_turn_reuses_the_answer_of_the_one_before() {
    let first = Asked { at: 1, tokens: 10, output: 7, family: 0 };
    let second = Asked { at: 399_000_000_000, tokens: 20, output: 2, family: 0 };
    let (log, _) = drive(limits(40), &[first, second], true);
    // The first turn computed 16 of its 17 tokens: 4 blocks.
    assert!(
        log.iter().any(|(output, _)| {
            *output == EngineOutput::First { request: 1, cached_tokens: 16 }
        })
    );
}

#[test]
fn transferred_kv_is_not_computed_and_a_parked_prompt_keeps_its_blocks() {
    let mut engine = Engine::new(limits(40), rates(), Bucket::default());
    let mut outputs = Vec::new();
    let submission = Submission {
        request: 1,
        tokens: 9,
        output: 1,
        blocks: &[1, 2],
        transfer: None,
        park: true,
    };
    let parked = engine.submit(&submission);
    engine.plan(0).expect("there is a prompt");
    engine.finish(&mut outputs);
    assert_eq!(outputs.len(), 2);
    assert_eq!((engine.len(), engine.pool().used()), (0, 3));
    engine.drop_parked(parked);
    assert_eq!((engine.pool().used(), engine.pool().cached()), (0, 2));

    let transfer = Some(1_000_000);
    let submission = Submission { request: 2, tokens: 10, output: 1, transfer, ..submission };
    engine.submit(&Submission { park: false, blocks: &[7, 8], ..submission });
    assert_eq!(engine.plan(50), None);
    assert_eq!(engine.next_ready(50), Some(1_000_050));
    let end = engine.plan(1_000_050).expect("the KV is there");
    assert_eq!(end - 1_000_050, rates().decode(Batch { sequences: 1, context: 10 }, 1));
}

#[test]
fn cancelling_gives_everything_back() {
    let mut engine = Engine::new(limits(40), rates(), Bucket::default());
    let submission =
        Submission { request: 1, tokens: 6, output: 9, blocks: &[], transfer: None, park: false };
    let ids = [1, 2].map(|request| engine.submit(&Submission { request, ..submission }));
    let end = engine.plan(0).expect("there are prompts");
    engine.finish(&mut Vec::new());
    engine.plan(end);
    let waiting = engine.submit(&submission);
    for id in [ids[0], waiting, ids[1]] {
        engine.cancel(id, end + 1);
    }
    assert_eq!((engine.len(), engine.pool().used()), (0, 0));
    assert_eq!(engine.load().pending_prefill_tokens, 0);
}
