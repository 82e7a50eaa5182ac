use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::FinishReason;
use crate::TokenLogprobs;
use crate::memory::BlockMemory;
use crate::pool::BlockId;
use crate::testkit::{Answer, Driver, alone, request, request_with};
use crate::tiers::KvCopies;
use crate::transfer::KvForm;
use stator_protos::worker::Sampling;

const VOCAB: u32 = 100;
const EOS: u32 = 0;

/// Arithmetic whose KV is a checksum of the tokens up to a slot: it notices when a sequence reads
/// a slot that was never written for it, or that another has overwritten.
pub(super) struct Ledger {
    block_size: usize,
    slots: Vec<u64>,
}

impl Ledger {
    fn place(&self, item: &Item<'_>, position: usize) -> usize {
        let block = item.blocks[position / self.block_size];
        block.0 as usize * self.block_size + position % self.block_size
    }
}

fn checksum(before: u64, token: u32) -> u64 {
    (before ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

impl Compute for Ledger {
    fn run(
        &mut self,
        items: &[Item<'_>],
        mut copies: KvCopies<'_>,
        results: &mut Vec<ItemResult>,
    ) -> Duration {
        // In parts, as a model's layers are.
        copies.load(0..8, self);
        copies.load(8..self.block_size * 8, self);
        while copies.leaving() > 0 {
            copies.store(1, self);
        }
        for item in items {
            assert!(item.start < item.end && item.end <= item.tokens.len());
            let mut sum = 0;
            for (position, &token) in item.tokens[..item.end].iter().enumerate() {
                sum = checksum(sum, token);
                let place = self.place(item, position);
                if position < item.start {
                    assert_eq!(self.slots[place], sum, "position {position} has foreign KV");
                } else {
                    self.slots[place] = sum;
                }
            }
            // Sampled requests depend on seed and choice as well; one token in 64 is the end.
            let token = item.draw.map(|draw| {
                assert_eq!(item.end, item.tokens.len());
                let stream = draw.sampling.seed + u64::from(draw.choice);
                let stream = if draw.sampling.temperature > 0.0 { stream as u32 } else { 0 };
                let random = checksum(sum, stream) >> 32;
                if random.is_multiple_of(64) { EOS } else { 1 + (random % 99) as u32 }
            });
            let first = item.start + 1;
            let told = item.tokens[first..item.tokens.len().min(item.end + 1)].iter();
            let entry = |token| TokenLogprobs { token, logprob: -1.0, top: Vec::new() };
            let wanted = item.prompt_logprobs.is_some();
            let prompt_logprobs = told.filter(|_| wanted).map(|&token| entry(token)).collect();
            results.push(ItemResult { token, prompt_logprobs, ..ItemResult::default() });
        }
        Duration::ZERO
    }

    /// What is read after it without being written is noticed.
    fn release(&mut self) {
        self.slots.fill(0);
    }

    fn form(&self) -> KvForm {
        KvForm { fingerprint: 7, block_bytes: self.block_size * 8 }
    }
}

impl BlockMemory for Ledger {
    fn kv(&self, block: BlockId) -> &[u8] {
        let start = block.0 as usize * self.block_size;
        bytemuck::cast_slice(&self.slots[start..][..self.block_size])
    }

    fn kv_mut(&mut self, block: BlockId) -> &mut [u8] {
        let start = block.0 as usize * self.block_size;
        bytemuck::cast_slice_mut(&mut self.slots[start..][..self.block_size])
    }
}

pub(super) fn options(total_blocks: u32) -> EngineOptions {
    EngineOptions { block_size: 4, total_blocks, ..EngineOptions::default() }
}

pub(super) fn engine(options: EngineOptions) -> Scheduler<Ledger> {
    let block_size = options.block_size as usize;
    let slots = vec![0; options.total_blocks as usize * block_size];
    let model = ModelInfo { context_length: 64, vocab_size: VOCAB, eos_token_ids: vec![EOS] };
    Scheduler::new(Ledger { block_size, slots }, model, options).unwrap()
}

pub(super) fn driver(options: EngineOptions) -> Driver<Scheduler<Ledger>> {
    Driver::new(engine(options))
}

pub(super) fn prompt(start: u32, len: usize) -> Vec<u32> {
    (start..).map(|i| 1 + i % 99).take(len).collect()
}

/// Generates exactly `max_tokens`.
pub(super) fn steady(key: u64, tokens: Vec<u32>, max_tokens: u32) -> Request {
    let sampling = Sampling { max_tokens, ignore_eos: true, ..Sampling::neutral() };
    request_with(key, tokens, sampling)
}

#[track_caller]
fn check_refused(request: Request, expected: &str) {
    let mut engine = engine(options(10));
    let refusal = engine.submit(request).unwrap_err();
    assert_eq!(refusal, Refusal::Invalid(expected.into()));
    assert_eq!(engine.load(), Load { total_blocks: 10, ..Load::default() });
}

#[test]
fn what_can_never_run_is_refused() {
    check_refused(
        request(1, prompt(0, 40), 5),
        "prompt of 40 tokens and an answer do not fit the KV pool of 10 blocks of 4 tokens",
    );
    check_refused(request(1, vec![1, 100], 5), "token id 100 is not below the vocabulary size 100");
    check_refused(request(1, vec![], 5), "the prompt has no tokens");
    check_refused(Request { resumed: 2, ..request(1, vec![1, 2], 5) }, "the prompt has no tokens");
    check_refused(
        Request { resumed: 2, ..request(1, vec![1, 2, 3], 2) },
        "max_tokens: 2 is not above the 2 tokens generated already",
    );
    check_refused(
        Request { choices: 0, ..request(1, vec![1], 2) },
        "number of choices: 0 is not in 1..=4096",
    );
    let biased = Sampling {
        logit_bias: vec![LogitBias { token_id: 100, bias: 1.0 }],
        ..Sampling::neutral()
    };
    check_refused(
        request_with(1, vec![1], biased),
        "logit_bias: token id 100 is not below the vocabulary size 100",
    );
    let long = engine(options(1000)).submit(request(1, prompt(0, 64), 5)).unwrap_err();
    let expected = "prompt of 64 tokens leaves no room for an answer in a context of 64";
    assert_eq!(long.to_string(), expected);
}

#[test]
fn a_full_queue_refuses_and_keeps_nothing() {
    let mut engine = engine(EngineOptions { max_waiting: 2, ..options(10) });
    engine.submit(Request { choices: 2, ..request(1, vec![1], 5) }).unwrap();
    let refusal = engine.submit(request(2, vec![1], 5)).unwrap_err();
    assert_eq!(refusal, Refusal::QueueFull { waiting: 2, limit: 2 });
    engine.cancel(RequestKey(1));
    engine.submit(request(2, vec![1], 5)).unwrap();
    assert_eq!(engine.load().waiting, 1);
}

#[test]
fn an_answer_ends_at_its_length_or_the_context() {
    let mut driver = driver(options(100));
    driver.submit(steady(1, prompt(0, 10), 5));
    driver.submit(steady(2, prompt(7, 60), 50));
    driver.run();
    assert_eq!(driver.answer(1).tokens.len(), 5);
    assert_eq!(driver.answer(2).tokens.len(), 4);
    let finish = driver.answer(2).finish.unwrap();
    assert_eq!(finish.reason, FinishReason::Length);
    assert_eq!((finish.prompt_tokens, finish.completion_tokens), (60, 4));
}

#[test]
fn an_answer_ends_at_the_tokens_that_end_it_but_not_too_early() {
    let full = alone(engine(options(100)), steady(1, prompt(0, 10), 40))[&(1, 0)].clone();
    let stop = full.tokens[5];
    let first = full.tokens.iter().position(|token| *token == stop).unwrap();
    let run = |min_tokens| {
        let stop_token_ids = vec![stop];
        let ignore_eos = true;
        let max_tokens = 40;
        let sampling =
            Sampling { min_tokens, max_tokens, stop_token_ids, ignore_eos, ..Sampling::neutral() };
        let request = request_with(1, prompt(0, 10), sampling);
        alone(engine(options(100)), request)[&(1, 0)].clone()
    };
    let stopped = run(0);
    assert_eq!(stopped.tokens, full.tokens[..=first]);
    assert_eq!(stopped.reason(), FinishReason::Stop(stop));
    assert!(run(first as u32 + 2).tokens.len() > first + 1);
}

#[test]
fn a_second_request_reuses_the_first_ones_blocks() {
    let mut driver = driver(options(100));
    driver.submit(steady(1, prompt(0, 16), 5));
    driver.run();
    let conversation = [prompt(0, 16), driver.answer(1).tokens.clone()].concat();
    driver.submit(steady(2, prompt(0, 16), 5));
    driver.submit(steady(3, conversation.clone(), 5));
    driver.submit(Request { cache_salt: Some("x".into()), ..steady(4, prompt(0, 16), 5) });
    driver.run();
    assert_eq!(driver.answer(1).cached_tokens(), 0);
    // The last block is computed again, because its last token's logits are needed.
    assert_eq!(driver.answer(2).cached_tokens(), 12);
    assert_eq!(driver.answer(2).tokens, driver.answer(1).tokens);
    // 16 of the prompt and 4 generated; the fifth token's KV was never computed.
    assert_eq!(driver.answer(3).cached_tokens(), 20);
    assert_eq!(driver.answer(4).cached_tokens(), 0);
}

#[test]
fn equal_prompts_computed_together_share_their_blocks_afterwards() {
    let mut driver = driver(options(100));
    driver.submit(steady(1, prompt(0, 16), 5));
    driver.submit(steady(2, prompt(0, 16), 5));
    driver.step();
    // Four shared blocks; each has yet to take a block for its answer.
    assert_eq!(driver.engine.load().used_blocks, 4);
    driver.step();
    assert_eq!(driver.engine.load().used_blocks, 6);
    driver.run();
    assert_eq!(driver.answer(1).tokens, driver.answer(2).tokens);
}

#[test]
fn further_choices_wait_for_the_first_and_reuse_its_prompt() {
    let mut driver = driver(EngineOptions { max_batched_tokens: 64, ..options(100) });
    let sampling = Sampling { temperature: 1.0, ignore_eos: true, ..Sampling::neutral() };
    let request = request_with(1, prompt(0, 18), sampling.clone());
    driver.submit(Request { choices: 3, first_choice: 4, ..request });
    driver.step();
    assert_eq!(driver.engine.load().waiting, 2);
    driver.run();
    let cached: Vec<_> = (4..7).map(|n| driver.answers[&(1, n)].cached_tokens()).collect();
    assert_eq!(cached, [0, 16, 16]);
    for number in 4..7 {
        let request = request_with(1, prompt(0, 18), sampling.clone());
        let single = Request { first_choice: number, ..request };
        let expected = &alone(engine(options(100)), single)[&(1, number)];
        assert_eq!(driver.answers[&(1, number)].tokens, expected.tokens);
    }
    assert_ne!(driver.answers[&(1, 4)].tokens, driver.answers[&(1, 5)].tokens);
}

#[test]
fn a_resumed_request_goes_on_where_it_was() {
    let whole = alone(engine(options(100)), steady(1, prompt(0, 10), 20))[&(1, 0)].clone();
    for resumed in [1, 7, 19] {
        let tokens = [prompt(0, 10), whole.tokens[..resumed].to_vec()].concat();
        let request = Request { resumed, ..steady(1, tokens, 20) };
        let rest = alone(engine(options(100)), request)[&(1, 0)].clone();
        assert_eq!(rest.tokens, whole.tokens[resumed..]);
        let finish = rest.finish.unwrap();
        assert_eq!((finish.prompt_tokens, finish.completion_tokens), (10, 20));
    }
}

#[test]
fn decode_goes_on_while_a_long_prompt_is_computed() {
    let mut driver =
        driver(EngineOptions { max_batched_tokens: 8, max_running: 4, ..options(100) });
    driver.submit(steady(1, prompt(0, 4), 20));
    driver.step();
    driver.submit(steady(2, prompt(50, 40), 5));
    for step in 0..5 {
        driver.step();
        assert_eq!(driver.answer(1).tokens.len(), step + 2);
    }
    assert!(!driver.answers.contains_key(&(2, 0)));
    assert_eq!(driver.engine.load().pending_prefill_tokens, 5);
    driver.step();
    assert_eq!(driver.answer(2).tokens.len(), 1);
}

#[test]
fn the_youngest_is_preempted_and_nobody_notices() {
    let requests = || (0..4).map(|key| steady(key, prompt(20 * key as u32, 9), 20));
    let mut driver = driver(options(14));
    requests().for_each(|request| driver.submit(request));
    let mut most_waiting = 0;
    while driver.step() {
        most_waiting = most_waiting.max(driver.engine.load().waiting);
    }
    assert!(most_waiting > 0, "the pool is small enough to preempt");
    for request in requests() {
        let key = request.key.0;
        let expected = alone(engine(options(100)), request)[&(key, 0)].clone();
        assert_eq!(driver.answer(key), &expected);
    }
}

#[test]
fn cancelling_frees_everything_at_once() {
    let mut driver = driver(EngineOptions { max_running: 2, ..options(100) });
    driver.submit(Request { choices: 2, ..steady(1, prompt(0, 9), 20) });
    driver.submit(steady(2, prompt(30, 9), 20));
    driver.submit(steady(3, prompt(60, 9), 20));
    driver.step();
    for key in 1..4 {
        driver.engine.cancel(RequestKey(key));
    }
    let load = driver.engine.load();
    assert_eq!((load.running, load.waiting, load.used_blocks), (0, 0, 0));
    assert_eq!(load.pending_prefill_tokens, 0);
    // The prompts' full blocks can be reused.
    assert_eq!(load.cached_blocks, 4);
    assert!(!driver.step());
}

#[test]
fn resetting_the_cache_is_reported_and_loses_no_request() {
    let mut driver = driver(options(100));
    driver.submit(steady(1, prompt(0, 9), 20));
    driver.step();
    driver.step();
    driver.engine.reset_cache();
    assert_eq!(driver.engine.blocks(), []);
    driver.run();
    let expected = alone(engine(options(100)), steady(1, prompt(0, 9), 20));
    assert_eq!(driver.answers, expected);
}

#[test]
fn an_engine_that_rests_computes_nothing_and_goes_on_as_if_it_had_not() {
    for (rest, held) in [(Rest::Paused, 2), (Rest::Asleep, 0)] {
        let mut driver = driver(options(100));
        driver.submit(steady(1, prompt(0, 9), 20));
        driver.step();
        driver.engine.rest(rest);
        driver.submit(steady(2, prompt(3, 30), 20));
        assert!(!driver.step());
        assert_eq!((driver.engine.blocks().len(), driver.answers.len()), (held, 1));
        driver.engine.rest(Rest::Awake);
        driver.run();
        for (key, start, len) in [(1, 0, 9), (2, 3, 30)] {
            let expected = alone(engine(options(100)), steady(key, prompt(start, len), 20));
            assert_eq!(driver.answer(key).tokens, expected[&(key, 0)].tokens, "{rest:?}");
        }
    }
}

#[test]
fn prompt_logprobs_tell_of_every_prompt_token_but_the_first() {
    let mut driver = driver(options(100));
    let sampling = Sampling { prompt_logprobs: Some(0), ..Sampling::neutral() };
    driver.submit(request(1, prompt(0, 30), 3));
    driver.run();
    driver.submit(Request { choices: 2, ..request_with(2, prompt(0, 30), sampling) });
    driver.run();
    let first = driver.answer(2);
    let told: Vec<_> = first.prompt_logprobs.iter().map(|entry| entry.token).collect();
    assert_eq!(told, prompt(0, 30)[1..]);
    assert_eq!(first.cached_tokens(), 0);
    let second = &driver.answers[&(2, 1)];
    assert_eq!((second.prompt_logprobs.len(), second.cached_tokens()), (0, 28));
}

/// A request and when it is cancelled, if at all, in steps after it was submitted.
fn any_request() -> impl Strategy<Value = (Request, Option<usize>, usize)> {
    let shape = (0..3_u32, 1..40_usize, 1..25_u32, 1..4_u32);
    let how = (any::<bool>(), any::<bool>(), 0..4_u64, any::<bool>());
    let when = (prop::option::weighted(0.25, 0..30_usize), 0..6_usize);
    (shape, how, when).prop_map(|((start, len, max_tokens, choices), how, (cancel, pause))| {
        let (sampled, prompt_logprobs, seed, salted) = how;
        let sampling = Sampling {
            temperature: if sampled { 1.0 } else { 0.0 },
            prompt_logprobs: (prompt_logprobs && len % 3 == 0).then_some(0),
            seed,
            max_tokens,
            ..Sampling::neutral()
        };
        let request = request_with(0, prompt(start * 7, len), sampling);
        let cache_salt = salted.then(|| "salt".to_owned());
        (Request { choices, cache_salt, ..request }, cancel, pause)
    })
}

type Essence<'a> = (&'a [u32], &'a [TokenLogprobs], Option<(FinishReason, u32, u32)>);

/// Everything but how much was cached, which depends on what ran before.
fn essence(answer: &Answer) -> Essence<'_> {
    let finish = answer.finish.map(|f| (f.reason, f.prompt_tokens, f.completion_tokens));
    (&answer.tokens, &answer.prompt_logprobs, finish)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever arrives and is cancelled, in whatever pool: every request that is left ends with
    /// the answer that it gets alone, and all blocks come back.
    #[test]
    fn any_mix_of_requests_gets_the_answers_of_lone_ones(
        requests in prop::collection::vec(any_request(), 1..12),
        total_blocks in 10..40_u32,
        max_batched_tokens in prop::sample::select(vec![1, 3, 8, 512]),
        max_running in 1..6_u32,
    ) {
        let small = EngineOptions { max_batched_tokens, max_running, ..options(total_blocks) };
        let mut driver = driver(small);
        let mut cancels = Vec::new();
        let mut kept = Vec::new();
        for (key, (mut request, cancel, pause)) in requests.into_iter().enumerate() {
            request.key = RequestKey(key as u64);
            if driver.engine.submit(request.clone()).is_err() {
                prop_assert!(request.tokens.len() >= total_blocks as usize * 4);
                continue;
            }
            match cancel {
                Some(after) => cancels.push((driver.steps + after, request.key)),
                None => kept.push(request),
            }
            for _ in 0..pause {
                driver.step();
                cancel_due(&mut driver, &mut cancels);
            }
        }
        while driver.step() {
            prop_assert!(driver.steps < 50_000);
            cancel_due(&mut driver, &mut cancels);
        }
        driver.run();
        for request in kept {
            // The same context, but room enough never to be preempted.
            let context_length = Some(total_blocks * 4);
            let ample = EngineOptions { context_length, ..options(1000) };
            for (place, expected) in alone(engine(ample), request) {
                let answer = &driver.answers[&place];
                prop_assert_eq!(essence(answer), essence(&expected));
            }
        }
    }
}

fn cancel_due(driver: &mut Driver<Scheduler<Ledger>>, cancels: &mut Vec<(usize, RequestKey)>) {
    for (_, key) in cancels.extract_if(.., |(due, _)| *due <= driver.steps) {
        driver.engine.cancel(key);
        driver.answers.retain(|(other, _), _| *other != key.0);
    }
}
