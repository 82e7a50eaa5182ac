//! What naming a prompt's blocks costs: a step before every lookup.

use super::Values;
use crate::random::Random;
use crate::stats::percentile;
use dynamo_kv_router::protocols::{
    BlockHashOptions, compute_block_hash_for_seq, compute_seq_hash_for_block,
};
use stator_protos::hash::{HashSeed, SequenceHash, block_hash, sequence_hashes};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Instant;

/// Tokens per block.
const BLOCK_SIZE: NonZeroU32 = NonZeroU32::new(16).expect("not zero");
/// Tokens of a prompt: the mean of the conversation trace.
const TOKENS: usize = 12_032;
/// Tokens at the end of a prompt that its conversation had not before.
const NEW_TOKENS: usize = 256;
/// Prompts that are hashed; each has tokens of its own.
const PROMPTS: usize = 500;

/// Hashes prompts in our way.
pub fn ours(values: &mut Values) {
    let prompts = prompts();
    let mut out: Vec<SequenceHash> = Vec::new();
    let fresh = time(&prompts, |tokens| {
        out.clear();
        sequence_hashes(tokens, BLOCK_SIZE, HashSeed::default(), &mut out);
        black_box(&out);
    });
    enter(values, "hash a prompt, chained", fresh);
    let blocks = time(&prompts, |tokens| {
        for block in tokens.chunks_exact(BLOCK_SIZE.get() as usize) {
            black_box(block_hash(block, HashSeed::default()));
        }
    });
    enter(values, "hash a prompt, blocks alone", blocks);
    let known = (TOKENS - NEW_TOKENS) / BLOCK_SIZE.get() as usize;
    let tail = time(&prompts, |tokens| {
        // Made up, but what is known is not looked at beyond its last hash.
        out.resize(known, SequenceHash(1));
        sequence_hashes(tokens, BLOCK_SIZE, HashSeed::default(), &mut out);
        black_box(&out);
    });
    values.insert("hash the last 256 tokens of 12,032, µs".into(), tail / 1e3);
}

/// Hashes prompts in Dynamo's way, which begins anew with every prompt.
pub fn dynamo(values: &mut Values) {
    let prompts = prompts();
    let hash_blocks = |tokens: &[u32]| {
        compute_block_hash_for_seq(tokens, BLOCK_SIZE.get(), BlockHashOptions::default())
    };
    let chained = time(&prompts, |tokens| {
        black_box(compute_seq_hash_for_block(&hash_blocks(tokens)));
    });
    enter(values, "hash a prompt, chained", chained);
    let blocks = time(&prompts, |tokens| _ = black_box(hash_blocks(tokens)));
    enter(values, "hash a prompt, blocks alone", blocks);
    values.insert("hash the last 256 tokens of 12,032, µs".into(), chained / 1e3);
}

fn enter(values: &mut Values, name: &str, ns: f64) {
    let blocks = (TOKENS / BLOCK_SIZE.get() as usize) as f64;
    values.insert(format!("{name}, ns/block"), ns / blocks);
}

fn prompts() -> Vec<Vec<u32>> {
    let mut random = Random::new(16);
    let mut prompt = || (0..TOKENS).map(|_| random.below(150_000) as u32).collect();
    (0..PROMPTS).map(|_| prompt()).collect()
}

/// Median time of `call` with each prompt, in nanoseconds.
fn time(prompts: &[Vec<u32>], mut call: impl FnMut(&[u32])) -> f64 {
    let mut times: Vec<f64> = prompts
        .iter()
        .map(|tokens| {
            let start = Instant::now();
            call(tokens);
            start.elapsed().as_nanos() as f64
        })
        .collect();
    percentile(&mut times, 0.5)
}
