//! A prompt that was made to have the sequence hash of another.

use stator_protos::hash::{HashSeed, block_hash};

use super::tests::{engine, options, steady};
use super::*;
use crate::testkit::alone;

const VICTIM: [u32; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
/// A second preimage of the block hash of [`VICTIM`].
const FORGED: [u32; 16] = [19, 43, 51, 30, 85, 19, 19, 8, 96, 59, 75, 17, 52, 45, 72, 54];

/// All tokens of a request.
fn run(engine: &mut impl Engine, request: Request) -> Vec<u32> {
    engine.submit(request).unwrap();
    let (mut step, mut tokens) = (Step::default(), Vec::new());
    loop {
        step.clear();
        engine.step(&mut step);
        tokens.extend(step.outputs.drain(..).flat_map(|output| output.tokens));
        if !step.ran {
            return tokens;
        }
    }
}

#[test]
fn a_prompt_with_the_hash_of_another_changes_no_answer_and_finds_nothing_cached() {
    let seed = HashSeed::default();
    assert_eq!(block_hash(&VICTIM, seed), block_hash(&FORGED, seed));
    let options = || EngineOptions { block_size: 16, ..options(16) };
    let mut shared = engine(options());
    let request = |key, tokens: [u32; 16]| steady(key, [&tokens[..], &[7, 8, 9]].concat(), 20);
    for (key, tokens) in [(1, FORGED), (2, VICTIM), (3, FORGED), (4, VICTIM)] {
        let answer = run(&mut shared, request(key, tokens));
        let expected = alone(engine(options()), request(key, tokens));
        assert_eq!(answer, expected[&(key, 0)].tokens, "request {key}");
    }
    // Both prompts, whole blocks of 19 + 20 - 1 tokens.
    assert_eq!(shared.load().cached_blocks, 4);
}
