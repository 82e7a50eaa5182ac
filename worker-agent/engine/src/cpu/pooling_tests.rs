//! Vectors of prompts: the values, and what they must not depend on.

use super::tests::{MODELS, model, tokens};
use super::*;
use crate::testkit::{Driver, alone, request, request_with};
use crate::{Engine, FinishReason, Request};
use stator_protos::worker::Sampling;

/// A request for the vector of a prompt.
fn pooled(key: u64, tokens: Vec<u32>) -> Request {
    request_with(key, tokens, Sampling { pooled: true, max_tokens: 1, ..Sampling::neutral() })
}

fn options(pooling: Pooling, max_batched_tokens: u32) -> EngineOptions {
    EngineOptions { total_blocks: 64, max_batched_tokens, pooling, ..EngineOptions::default() }
}

fn bits(vector: &[f32]) -> Vec<u32> {
    vector.iter().map(|value| value.to_bits()).collect()
}

/// The vector that a fresh engine makes of one prompt alone, in one step.
fn expected(model: &Arc<Model>, pooling: Pooling, prompt: Vec<u32>) -> Vec<f32> {
    let engine = engine(model.clone(), options(pooling, 512)).unwrap();
    alone(engine, pooled(1, prompt))[&(1, 0)].pooled.clone()
}

#[test]
fn vectors_do_not_depend_on_chunks_batch_or_reuse() {
    for name in MODELS {
        let model = Arc::new(model(name));
        for pooling in [Pooling::Last, Pooling::Mean] {
            // 33 tokens are two whole steps of 16 and a token alone.
            let mut driver = Driver::new(engine(model.clone(), options(pooling, 16)).unwrap());
            let prompts = [tokens(1, 70), tokens(9, 33), tokens(1, 70), tokens(4, 1)];
            driver.submit(request(9, tokens(5, 40), 20));
            for (key, prompt) in (0..).zip(&prompts) {
                driver.submit(pooled(key, prompt.clone()));
                if key == 1 {
                    // What comes later finds blocks of what came before.
                    driver.run();
                }
            }
            driver.run();
            for (key, prompt) in (0..).zip(prompts) {
                let answer = driver.answer(key);
                assert!(answer.tokens.is_empty());
                let finish = answer.finish.unwrap();
                assert_eq!(finish.reason, FinishReason::Pooled);
                assert_eq!(finish.prompt_tokens as usize, prompt.len());
                let whole = expected(&model, pooling, prompt);
                assert_eq!(bits(&answer.pooled), bits(&whole), "{name} {pooling:?} {key}");
            }
            let reused = driver.answer(2).cached_tokens();
            assert_eq!(reused > 0, pooling == Pooling::Last, "the mean needs every token");
        }
    }
}

#[test]
fn answers_do_not_depend_on_vectors_beside_them() {
    let model = Arc::new(model("llama"));
    let answer = |beside: &[Vec<u32>]| {
        let mut driver = Driver::new(engine(model.clone(), options(Pooling::Mean, 16)).unwrap());
        driver.submit(request(1, tokens(3, 40), 30));
        for (key, prompt) in (10..).zip(beside) {
            driver.submit(pooled(key, prompt.clone()));
        }
        driver.run();
        driver.answer(1).tokens.clone()
    };
    assert_eq!(answer(&[tokens(3, 60), tokens(7, 21)]), answer(&[]));
}

#[test]
fn the_mean_is_that_of_the_vectors_of_all_beginnings() {
    let model = Arc::new(model("qwen3"));
    let prompt = tokens(2, 20);
    let beginnings =
        (1..=prompt.len()).map(|length| expected(&model, Pooling::Last, prompt[..length].to_vec()));
    let mut mean = vec![0.0; 24];
    for vector in beginnings {
        mean.iter_mut().zip(&vector).for_each(|(mean, value)| *mean += value / 20.0);
    }
    let vector = expected(&model, Pooling::Mean, prompt);
    for (value, expected) in vector.iter().zip(&mean) {
        assert!((value - expected).abs() < 1e-5, "{value} {expected}");
    }
}

#[test]
fn a_prompt_may_fill_the_context_and_no_more() {
    let model = Arc::new(model("llama"));
    let mut engine = engine(model, options(Pooling::Last, 64)).unwrap();
    engine.submit(pooled(1, vec![3; 256])).expect("no room for an answer is needed");
    engine.submit(pooled(2, vec![3; 257])).expect_err("it is longer than the context");
    let two = Request { choices: 2, ..pooled(3, vec![3; 4]) };
    let refusal = engine.submit(two).expect_err("a prompt has one vector");
    assert!(refusal.to_string().starts_with("pooled: 2 choices"), "{refusal}");
}
