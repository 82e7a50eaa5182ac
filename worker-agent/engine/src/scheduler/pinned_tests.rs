//! Tests of prompts that clients pin in the engine's own memory.

use super::tests::{Ledger, driver, options, prompt, steady};
use super::*;
use crate::testkit::Driver;
use stator_pins::{PinLimits, PinOutcome};

const MINUTE: Duration = Duration::from_secs(60);

/// An engine of 20 blocks of four tokens, of which one client may pin eight.
fn pinning() -> Driver<Scheduler<Ledger>> {
    let pins = PinLimits { share_percent: 80, ..PinLimits::default() };
    driver(EngineOptions { pins, ..options(20) })
}

/// Answers a prompt; tokens of it that were cached.
fn cached(driver: &mut Driver<Scheduler<Ledger>>, key: u64, start: u32, length: usize) -> u32 {
    driver.submit(steady(key, prompt(start, length), 1));
    while driver.step() {}
    driver.answer(key).cached_tokens()
}

/// Answers prompts that fill the memory several times.
fn flood(driver: &mut Driver<Scheduler<Ledger>>, key: u64) {
    for n in 0..8 {
        cached(driver, key + n, 1000 + 100 * (key + n) as u32, 41);
    }
}

#[test]
fn a_pinned_prompt_outlives_a_flood_until_its_time_is_over() {
    let mut driver = pinning();
    let mut request = steady(1, prompt(0, 33), 1);
    let outcome = driver.engine.pin(&mut request, MINUTE, MINUTE);
    assert_eq!(outcome, PinOutcome { pinned: 8, refused: 0 });
    driver.submit(request);
    while driver.step() {}
    assert_eq!(cached(&mut driver, 2, 500, 33), 0);
    flood(&mut driver, 10);
    let load = driver.engine.load();
    assert!(load.used_blocks == 0 && load.cached_blocks >= 18, "{load:?}");
    assert_eq!(cached(&mut driver, 3, 0, 33), 32);
    assert_eq!(cached(&mut driver, 4, 500, 33), 0, "nobody pinned it");
    driver.engine.unpin(2 * MINUTE);
    flood(&mut driver, 20);
    assert_eq!(cached(&mut driver, 5, 0, 33), 0);
    driver.run();
}

#[test]
fn what_is_pinned_goes_when_the_last_request_has_no_room_beside_it() {
    let mut driver = pinning();
    let mut request = steady(1, prompt(0, 33), 1);
    driver.engine.pin(&mut request, MINUTE, MINUTE);
    driver.submit(request);
    while driver.step() {}
    // It fits the memory alone, and no smaller one: first as a prompt, then by its answer.
    assert_eq!(cached(&mut driver, 2, 500, 56), 0);
    assert!(cached(&mut driver, 3, 0, 33) < 32, "the end of the prompt is gone");
    let mut request = steady(4, prompt(700, 33), 1);
    driver.engine.pin(&mut request, MINUTE, MINUTE);
    driver.submit(request);
    driver.submit(steady(5, prompt(800, 33), 27));
    while driver.step() {}
    assert_eq!(driver.answer(5).tokens.len(), 27);
    driver.run();
}

#[test]
fn a_reset_ends_all_pins() {
    let mut driver = pinning();
    let mut request = steady(1, prompt(0, 33), 1);
    driver.engine.pin(&mut request, MINUTE, MINUTE);
    driver.submit(request);
    while driver.step() {}
    driver.engine.reset_cache();
    assert_eq!(driver.engine.load().cached_blocks, 0);
    assert_eq!(cached(&mut driver, 2, 0, 33), 0);
    driver.run();
}
