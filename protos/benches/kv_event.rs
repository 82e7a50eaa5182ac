//! Time to read a batch of 100,000 blocks, and to hash and to name a prompt of as many blocks.

use stator_protos::hash::{HashSeed, sequence_hashes};
use stator_protos::kv_event::{KvEvent, Medium, Stored, decode, encode};
use stator_protos::name::{NameKey, NameRoot};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

const BLOCKS: u64 = 100_000;
const BLOCK_SIZE: u32 = 16;
const ROUNDS: u32 = 20;

fn main() {
    let tokens: Vec<u32> = (0..BLOCKS as u32 * BLOCK_SIZE).map(|n| n * 7919 % 128_000).collect();
    let stored = Stored {
        hashes: (0..BLOCKS).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect(),
        parent: None,
        tokens: tokens.clone(),
        block_size: BLOCK_SIZE,
        medium: Medium::Device,
        lora_name: None,
    };
    let events = vec![KvEvent::Stored(stored)];
    let mut frame = Vec::new();
    encode(0.0, &events, Some(0), &mut frame);

    let encoded = fastest(|| {
        frame.clear();
        encode(0.0, &events, Some(0), &mut frame);
    });
    let decoded = fastest(|| drop(decode(&frame)));
    let block_size = NonZeroU32::new(BLOCK_SIZE).expect("16 is not 0");
    let mut hashes = Vec::new();
    let hashed = fastest(|| {
        hashes.clear();
        sequence_hashes(&tokens, block_size, HashSeed::default(), &mut hashes);
    });
    let named = fastest(|| {
        let root = NameRoot::new(&NameKey::default(), 0, None, None);
        let name = |parent, tokens: &[u32]| Some(root.next(parent, tokens));
        black_box(tokens.chunks_exact(BLOCK_SIZE as usize).fold(None, name));
    });
    println!("{BLOCKS} blocks of {BLOCK_SIZE} tokens, {} bytes", frame.len());
    println!("encode {encoded:?}, decode {decoded:?}, hash {hashed:?}, name {named:?}");
}

/// The fastest of some rounds.
fn fastest(mut run: impl FnMut()) -> Duration {
    let round = |_| {
        let started = Instant::now();
        run();
        started.elapsed()
    };
    (0..ROUNDS).map(round).min().unwrap_or_default()
}
