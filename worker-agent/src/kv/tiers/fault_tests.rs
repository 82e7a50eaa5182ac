//! The built-in engine over real tiers while everything around it fails. Its greedy answers are those
//! of an engine without tiers, to the last bit of their logprobs, and every request ends.
//!
//! Faults come from a seed; which of them meet is up to threads and disks.

mod damage;
mod faulty_tier;
mod relay;
mod world;

use stator_kv::SlotId;
use stator_kv::cipher::KvKey;
use std::time::Instant;
use world::{HOST_SLOTS, Life, Prompt, World};

/// Places of faults, as they are counted.
const KINDS: [&str; 9] = [
    "memory",
    "disk",
    "stale segment",
    "object store",
    "peer",
    "refused operation",
    "full tier",
    "slow tier",
    "death",
];

/// Injects faults until there are so many, half of them into encrypted tiers.
async fn inject(faults: usize, seed: u64) {
    for key in [None, Some(KvKey::of_secret(b"faults around an engine"))] {
        let (is_encrypted, began) = (key.is_some(), Instant::now());
        let mut world = World::new(seed, key).await;
        world.run(faults / 2).await;
        let (counts, met) = (world.faults(), world.met());
        println!(
            "encrypted: {is_encrypted}, {counts:?}: {} requests ended, 0 of {} tokens wrong, {} prompt \
             tokens from caches; {met:?}; {:?}",
            world.requests,
            world.tokens,
            world.cached_tokens,
            began.elapsed(),
        );
        assert!(met.values().sum::<u64>() > 0, "no fault was met");
        // A slow machine abandons loads, so any number will do.
        assert!(world.cached_tokens > 0, "nothing was found");
        for kind in KINDS.iter().filter(|_| faults >= 10_000) {
            assert!(counts.get(kind).is_some_and(|count| *count > 0), "no fault of the {kind}");
        }
        for (place, blocks) in met.iter().filter(|_| faults >= 10_000) {
            assert!(*blocks > 0, "no block was refused at {place}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_is_wrong_and_every_request_ends() {
    inject(400, 7).await;
}

/// `cargo test -p stator-worker-agent no_token_is_wrong_in -- --ignored --nocapture`, which takes
/// another number of faults from `STATOR_TEST_FAULTS`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn no_token_is_wrong_in_hundred_thousand_faults() {
    let faults = std::env::var("STATOR_TEST_FAULTS");
    inject(faults.map_or(100_000, |faults| faults.parse().expect("a number")), 22).await;
}

/// The comparison is worth something: without checks, one bit in a block makes another answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bit_that_nobody_checks_is_seen_in_the_answer() {
    let mut world = World::new(1, None).await;
    let prompt = Prompt { session: 3, tokens: 112 };
    let expected = world.expected(prompt);
    for is_verified in [true, false] {
        let mut life: Life = world.begin_with(is_verified);
        assert_eq!(world.answer(&mut life, prompt).await, expected);
        for slot in 0..HOST_SLOTS {
            life.flip(SlotId(slot), 64 * 8 + 30);
        }
        life.forget_device();
        let again = world.answer(&mut life, prompt).await;
        assert_eq!(again == expected, is_verified, "verified: {is_verified}");
    }
}
