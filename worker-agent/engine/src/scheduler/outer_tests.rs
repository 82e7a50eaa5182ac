use proptest::prelude::*;

use super::tests::{Ledger, engine, options, prompt, steady};
use super::*;
use crate::testkit::tiers::{FakeTiers, SharedStore, Store, Temper};
use crate::testkit::{Cargo, Driver, alone};

type Tiered = Driver<Scheduler<Ledger>>;

fn tiered(options: EngineOptions, store: &SharedStore) -> Tiered {
    Driver::new(engine(options).with_tiers(Box::new(FakeTiers(store.clone()))))
}

/// Steps until nothing waits and nothing runs: lookups take steps, too.
fn finish(driver: &mut Tiered) {
    for _ in 0..10_000 {
        let ran = driver.step();
        let Load { running, waiting, .. } = driver.engine.load();
        if !ran && running == 0 && waiting == 0 {
            return driver.run();
        }
    }
    panic!("the engine does not come to an end: {:?}", driver.engine.load());
}

fn answer(driver: &mut Tiered, request: &Request) -> (Vec<u32>, u32) {
    let key = request.key.0;
    driver.submit(request.clone());
    finish(driver);
    let answer = driver.answer(key);
    (answer.tokens.clone(), answer.cached_tokens())
}

fn lone(request: &Request) -> Vec<u32> {
    alone(engine(options(100)), request.clone())[&(request.key.0, 0)].tokens.clone()
}

#[test]
fn an_evicted_prefix_comes_back_and_nothing_else_changes() {
    let store = SharedStore::default();
    let mut driver = tiered(options(8), &store);
    let first = steady(1, prompt(0, 18), 9);
    assert_eq!(answer(&mut driver, &first), (lone(&first), 0));
    // 26 tokens have their KV: the last is never computed.
    assert_eq!(store.lock().unwrap().blocks.len(), 6);
    let other = steady(2, prompt(50, 25), 6);
    assert_eq!(answer(&mut driver, &other), (lone(&other), 0));
    // The second turn goes on from the whole of the first, generated blocks included.
    let mut tokens = [first.tokens.clone(), lone(&first)].concat();
    tokens.truncate(26);
    let second = steady(3, tokens, 4);
    assert_eq!(answer(&mut driver, &second), (lone(&second), 24));
}

#[test]
fn an_engine_goes_on_from_what_another_has_stored() {
    let store = SharedStore::default();
    let request = steady(1, prompt(0, 18), 9);
    let cached: Vec<_> = (0..2)
        .map(|_| {
            let (tokens, cached) = answer(&mut tiered(options(8), &store), &request);
            assert_eq!(tokens, lone(&request));
            cached
        })
        .collect();
    assert_eq!(cached, [0, 16]);
}

#[test]
fn blocks_of_who_runs_leave_beside_the_next_step_and_of_who_ends_at_once() {
    let store = SharedStore::default();
    let mut driver = tiered(options(20), &store);
    driver.submit(steady(1, prompt(0, 18), 3));
    let stored = [0, 4, 5].map(|expected| {
        driver.step();
        (store.lock().unwrap().blocks.len(), expected)
    });
    assert!(stored.iter().all(|(stored, expected)| stored == expected), "{stored:?}");
}

#[test]
fn who_waits_for_kv_is_passed() {
    let store = SharedStore::default();
    let slow = steady(1, prompt(0, 18), 5);
    answer(&mut tiered(options(20), &store), &slow);
    store.lock().unwrap().temper.delay = 9;
    let mut driver = tiered(options(20), &store);
    driver.submit(slow.clone());
    let quick = steady(2, prompt(50, 10), 3);
    driver.submit(quick.clone());
    while driver.step() {}
    assert_eq!(driver.answer(2).tokens, lone(&quick));
    assert!(!driver.answers.contains_key(&(1, 0)));
    finish(&mut driver);
    assert_eq!(
        (driver.answer(1).tokens.clone(), driver.answer(1).cached_tokens()),
        (lone(&slow), 16)
    );
}

#[test]
fn a_cancelled_request_gives_up_its_search() {
    let store = SharedStore::default();
    let request = steady(1, prompt(0, 18), 5);
    answer(&mut tiered(options(20), &store), &request);
    store.lock().unwrap().temper.delay = 1000;
    let mut driver = tiered(options(20), &store);
    driver.submit(request.clone());
    driver.step();
    assert_eq!(store.lock().unwrap().open, 1);
    driver.engine.cancel(RequestKey(1));
    assert_eq!(store.lock().unwrap().open, 0);
    driver.run();
}

#[test]
fn a_reset_forgets_what_was_found_and_what_was_to_be_copied() {
    let store = SharedStore::default();
    let request = steady(1, prompt(0, 18), 5);
    answer(&mut tiered(options(20), &store), &request);
    store.lock().unwrap().temper.delay = 1000;
    let mut driver = tiered(options(20), &store);
    driver.submit(request.clone());
    driver.step();
    driver.engine.reset_cache();
    *store.lock().unwrap() = Store::default();
    finish(&mut driver);
    assert_eq!(
        (driver.answer(1).tokens.clone(), driver.answer(1).cached_tokens()),
        (lone(&request), 0)
    );
}

#[test]
fn a_block_that_cannot_be_loaded_is_computed_and_those_before_it_are_used() {
    let store = SharedStore::default();
    let request = steady(1, prompt(0, 18), 5);
    answer(&mut tiered(options(20), &store), &request);
    store.lock().unwrap().temper.bad_load = 3;
    let (tokens, cached) = answer(&mut tiered(options(20), &store), &request);
    assert_eq!((tokens, cached), (lone(&request), 8));
}

#[test]
fn a_prompt_that_another_engine_computed_is_stored_too() {
    let store = SharedStore::default();
    let mut prefill = Driver::new(engine(options(20)));
    let request = steady(1, prompt(0, 18), 1);
    prefill.submit(request.clone());
    prefill.engine.keep(RequestKey(1));
    while prefill.step() {}
    let mut decode = tiered(options(20), &store);
    let mut asked = request.clone();
    let names = decode.engine.reusable(&mut asked).names;
    let mut cargo = Cargo::of(prefill.engine.kv(), RequestKey(1), 0, &names);
    assert_eq!(decode.engine.import(&asked, 0, &mut cargo), 4);
    decode.step();
    assert_eq!(store.lock().unwrap().blocks.len(), 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Answers do not depend on the engine's size, nor on slow, forgetful or broken tiers: they are
    /// those of a lone engine, every request ends, and no search is left over.
    #[test]
    fn answers_do_not_depend_on_tiers(
        requests in prop::collection::vec((0..3_u32, 1..40_usize, 1..20_u32, 1..3_u32), 1..14),
        total in 14..40_u32,
        temper in (0..4_usize, 0..5_usize, 0..4_usize),
        steps in 0..8_usize,
        resets in prop::collection::vec(0..14_u64, 0..2),
    ) {
        let store = SharedStore::default();
        let (delay, bad_load, lost) = temper;
        store.lock().unwrap().temper = Temper { delay, bad_load, lost };
        let mut driver = tiered(options(total), &store);
        let mut asked = Vec::new();
        for (key, (start, len, max_tokens, choices)) in (0..).zip(requests) {
            let request = Request { choices, ..steady(key, prompt(start * 7, len), max_tokens) };
            if resets.contains(&key) {
                driver.engine.reset_cache();
            }
            driver.submit(request.clone());
            asked.push(request);
            for _ in 0..steps {
                driver.step();
            }
        }
        finish(&mut driver);
        prop_assert_eq!(store.lock().unwrap().open, 0);
        for request in asked {
            let ample = EngineOptions { context_length: Some(total * 4), ..options(1000) };
            let expected = alone(engine(ample), request);
            for (key, answer) in expected {
                prop_assert_eq!(&driver.answers[&key].tokens, &answer.tokens);
            }
        }
    }
}
