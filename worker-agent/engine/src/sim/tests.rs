use super::*;
use crate::testkit::{Driver, alone, request, request_with};
use crate::{Engine, FinishReason, Request, Step};
use stator_protos::worker::Sampling;

fn model() -> ModelInfo {
    ModelInfo { context_length: 4096, vocab_size: 1000, eos_token_ids: vec![3, 4] }
}

fn options(answer_tokens: &[u32], timing: Timing) -> SimOptions {
    SimOptions { model: model(), answer_tokens: answer_tokens.into(), timing, speedup: 1.0 }
}

fn start(answer_tokens: &[u32]) -> SimEngine {
    engine(options(answer_tokens, Timing::NONE), EngineOptions::default()).unwrap()
}

fn answer(engine: SimEngine, request: Request) -> Vec<u32> {
    alone(engine, request)[&(1, 0)].tokens.clone()
}

#[test]
fn an_answer_is_decided_by_its_prompt_and_as_long_as_asked() {
    let ask = |tokens: Vec<u32>| answer(start(&[]), request(1, tokens, 200));
    let first = ask((0..100).collect());
    assert_eq!(first.len(), 200);
    assert_eq!(first, ask((0..100).collect()));
    assert_ne!(first, ask((1..101).collect()));
    assert!(first.iter().all(|token| *token < 1000 && ![3, 4].contains(token)));
}

#[test]
fn answers_are_made_of_the_given_tokens() {
    let tokens = answer(start(&[10, 20, 3, 30]), request(1, vec![5; 40], 100));
    for token in [10, 20, 30] {
        assert!(tokens.contains(&token));
    }
    assert!(tokens.iter().all(|token| [10, 20, 30].contains(token)));
}

#[test]
fn sampled_answers_depend_on_seed_and_choice_greedy_ones_do_not() {
    let ask = |temperature, seed, choice| {
        let sampling = Sampling { temperature, seed, max_tokens: 20, ..Sampling::neutral() };
        let request = Request { first_choice: choice, ..request_with(1, vec![5; 40], sampling) };
        alone(start(&[]), request)[&(1, choice)].tokens.clone()
    };
    assert_eq!(ask(0.0, 1, 0), ask(0.0, 2, 1));
    assert_eq!(ask(1.0, 1, 0), ask(1.0, 1, 0));
    assert_ne!(ask(1.0, 1, 0), ask(1.0, 2, 0));
    assert_ne!(ask(1.0, 1, 0), ask(1.0, 1, 1));
}

#[test]
fn stop_tokens_end_a_simulated_answer() {
    let whole = answer(start(&[]), request(1, vec![5; 40], 20));
    let sampling = Sampling { stop_token_ids: vec![whole[0]], ..Sampling::neutral() };
    let ended = &alone(start(&[]), request_with(1, vec![5; 40], sampling))[&(1, 0)];
    assert_eq!(ended.tokens, whole[..1]);
    assert_eq!(ended.reason(), FinishReason::Stop(whole[0]));
}

#[test]
fn logprobs_are_certain_and_complete() {
    let sampling = Sampling {
        logprobs: Some(5),
        prompt_logprobs: Some(0),
        max_tokens: 3,
        ..Sampling::neutral()
    };
    let answer = &alone(start(&[]), request_with(1, vec![5; 100], sampling))[&(1, 0)];
    assert_eq!((answer.logprobs.len(), answer.prompt_logprobs.len()), (3, 99));
    let certain = |token| TokenLogprobs { token, logprob: 0.0, top: vec![(token, 0.0)] };
    let expected: Vec<_> = answer.tokens.iter().map(|token| certain(*token)).collect();
    assert_eq!(answer.logprobs, expected);
}

#[test]
fn a_step_reports_its_time_divided_by_the_speedup() {
    let second = Duration::from_secs(1);
    let options = SimOptions { speedup: 4.0, ..options(&[], Timing::fixed(second)) };
    let mut engine = engine(options, EngineOptions::default()).unwrap();
    engine.submit(request(1, vec![5; 40], 3)).unwrap();
    let mut step = Step::default();
    engine.step(&mut step);
    assert_eq!(step.duration, second / 4);
}

#[test]
fn a_reused_prefix_takes_no_time() {
    let timing = Timing { token_s: 1.0, ..Timing::NONE };
    let engine = engine(options(&[], timing), EngineOptions::default()).unwrap();
    let mut driver = Driver::new(engine);
    driver.submit(request(1, (0..100).collect(), 1));
    driver.run();
    driver.submit(request(2, (0..100).collect(), 1));
    let mut step = Step::default();
    driver.engine.step(&mut step);
    // Of 100 tokens, six full blocks of 16 were cached.
    assert_eq!(step.duration, Duration::from_secs(4));
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let check = |sim: SimOptions, expected: &str| {
        let error = engine(sim, EngineOptions::default()).err().expect("refused");
        assert_eq!(error.to_string(), expected);
    };
    let good = || options(&[], Timing::NONE);
    check(SimOptions { speedup: 0.0, ..good() }, "speedup: 0 is not a number above 0");
    check(
        options(&[1000], Timing::NONE),
        "answer_tokens: 1000 is not below the vocabulary size 1000",
    );
    check(
        options(&[3, 4], Timing::NONE),
        "no token of the vocabulary of 1000 is left to answer with",
    );
    let limits = EngineOptions { total_blocks: 0, ..EngineOptions::default() };
    let error = engine(good(), limits).err().expect("refused");
    assert_eq!(error.to_string(), "total_blocks: 0 is not in 1..=16777216");
}
