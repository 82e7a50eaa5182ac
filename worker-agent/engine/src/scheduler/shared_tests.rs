use proptest::prelude::*;

use super::tests::{Ledger, driver, engine, options, prompt, steady};
use super::*;
use crate::Reusable;
use crate::testkit::{Cargo, Driver, alone};
use stator_protos::name::BlockName;

type Side = Driver<Scheduler<Ledger>>;

/// Has one engine compute a prompt for the other, which takes over what it has not, chunk by chunk;
/// `damage` is what becomes of a chunk on the way, and the first that is damaged is the last. Returns
/// how many blocks were on their way and how many arrived.
fn hand_over(
    prefill: &mut Side,
    decode: &mut Side,
    (request, mut damage): (&Request, impl FnMut(&mut Cargo)),
) -> (usize, usize) {
    let request = &mut request.clone();
    let Reusable { held, names } = decode.engine.reusable(request);
    let prompt = Request { key: RequestKey(request.key.0 + 1000), ..request.clone() };
    let key = prompt.key;
    prefill.submit(Request { sampling: steady(0, vec![1], 1).sampling, ..prompt });
    prefill.engine.keep(key);
    let (mut sent, mut arrived) = (held, held);
    let mut runs = true;
    while runs && arrived == sent {
        runs = prefill.step();
        let mut cargo = Cargo::of(prefill.engine.kv(), key, sent, &names[sent..]);
        sent += cargo.0.len();
        damage(&mut cargo);
        arrived += decode.engine.import(request, arrived, &mut cargo);
    }
    prefill.engine.cancel(key);
    (sent - held, arrived - held)
}

#[test]
fn a_prompt_is_computed_by_one_engine_and_answered_by_another() {
    let (mut prefill, mut decode) = (driver(options(40)), driver(options(40)));
    let request = steady(1, prompt(0, 18), 9);
    assert_eq!(hand_over(&mut prefill, &mut decode, (&request, |_| ())), (4, 4));
    decode.submit(request.clone());
    decode.run();
    assert_eq!(decode.answer(1).cached_tokens(), 16);
    assert_eq!(decode.answer(1).tokens, alone(engine(options(40)), request)[&(1, 0)].tokens);
    // What is there already is not sent again.
    let longer = steady(2, prompt(0, 30), 9);
    assert_eq!(hand_over(&mut prefill, &mut decode, (&longer, |_| ())), (3, 3));
    prefill.run();
}

#[test]
fn a_block_of_another_name_or_size_and_those_behind_it_are_misses() {
    type Damage = fn(&mut Cargo);
    let damages: [(Damage, usize); 3] = [
        (|cargo| cargo.0.swap(0, 1), 0),
        (|cargo| cargo.0[3].1.truncate(8), 3),
        (|cargo| cargo.0[1].0.0 ^= 1 << 127, 1),
    ];
    for (damage, arrived) in damages {
        let (mut prefill, mut decode) = (driver(options(40)), driver(options(40)));
        let request = steady(1, prompt(0, 18), 9);
        assert_eq!(hand_over(&mut prefill, &mut decode, (&request, damage)), (4, arrived));
        decode.submit(request.clone());
        decode.run();
        assert_eq!(decode.answer(1).cached_tokens(), arrived as u32 * 4);
        assert_eq!(decode.answer(1).tokens, alone(engine(options(40)), request)[&(1, 0)].tokens);
    }
}

#[test]
fn what_is_kept_is_held_until_it_is_cancelled_or_the_cache_is_reset() {
    let mut driver = driver(options(12));
    let keep = |driver: &mut Side, key, len| {
        driver.submit(steady(key, prompt(key as u32 * 5, len), 1));
        driver.engine.keep(RequestKey(key));
        while driver.step() {}
        driver.engine.kept(RequestKey(key))
    };
    assert_eq!(keep(&mut driver, 1, 18), 4);
    assert_eq!(driver.engine.load().used_blocks, 4);
    // At most half of the blocks are.
    assert_eq!(keep(&mut driver, 2, 18), 0);
    assert_eq!(keep(&mut driver, 3, 9), 2);
    driver.engine.cancel(RequestKey(1));
    assert_eq!((driver.engine.load().used_blocks, keep(&mut driver, 4, 18)), (2, 4));
    driver.engine.reset_cache();
    assert_eq!(driver.engine.kept(RequestKey(3)), 0);
    assert_eq!(driver.engine.export(RequestKey(3), 0), None);
    driver.run();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Blocks that can be copied while a prompt is computed, in chunks of any size, beside others, after
    /// preemptions and resets, are the leading ones of those that it has at last.
    #[test]
    fn blocks_of_a_running_prompt_are_the_first_of_its_blocks(
        len in 1..40_usize,
        (chunk, total) in (1..9_u32, 14..24_u32),
        rivals in prop::collection::vec((1..20_usize, 1..20_u32), 0..4),
        reset in 0..40_usize,
    ) {
        let (key, mut request) = (RequestKey(1), steady(1, prompt(0, len), 1));
        let mut lone = driver(options(1000));
        let names = lone.engine.reusable(&mut request).names;
        lone.submit(request.clone());
        lone.engine.keep(key);
        while lone.step() {}
        let whole = Cargo::of(lone.engine.kv(), key, 0, &names);
        prop_assert_eq!(whole.0.len(), names.len());

        let few = EngineOptions { max_batched_tokens: chunk, max_running: 4, ..options(total) };
        let mut driver = driver(few);
        for (n, (len, max_tokens)) in (10..).zip(rivals) {
            driver.submit(steady(n, prompt(n as u32 * 5, len), max_tokens));
        }
        driver.submit(request);
        driver.engine.keep(key);
        let (mut runs, mut most) = (true, 0);
        for step in 0.. {
            if !runs {
                break;
            }
            if step == reset {
                driver.engine.reset_cache();
            }
            runs = driver.step();
            let early = Cargo::of(driver.engine.kv(), key, 0, &names);
            prop_assert!(whole.0.starts_with(&early.0));
            prop_assert_eq!(early.0.len(), driver.engine.kept(key).min(names.len()));
            most = most.max(early.0.len());
        }
        // At its end as many as half of the engine's blocks may stay.
        prop_assert!(most == names.len() || len / 4 > total as usize / KEPT_SHARE);
        driver.engine.cancel(key);
        driver.run();
    }

    /// Whatever else two engines compute, and whatever is forgotten or damaged on the way: each
    /// answer is that of a lone engine, and all blocks come back.
    #[test]
    fn pairs_answer_as_lone_engines_do(
        requests in prop::collection::vec((0..3_u32, 1..40_usize, 1..20_u32, 0..6_usize), 1..12),
        totals in (20..40_u32, 12..40_u32),
        steps in 0..8_usize,
    ) {
        let (mut prefill, mut decode) = (driver(options(totals.0)), driver(options(totals.1)));
        let mut asked = Vec::new();
        for (key, (start, len, max_tokens, fate)) in (0..).zip(requests) {
            let request = steady(key, prompt(start * 7, len), max_tokens);
            if len + 1 >= totals.1.min(totals.0) as usize * 4 {
                continue;
            }
            hand_over(&mut prefill, &mut decode, (&request, |cargo: &mut Cargo| match fate {
                0 => cargo.0.clear(),
                1 => cargo.0.iter_mut().skip(1).for_each(|block| block.0 = BlockName(0)),
                _ => {}
            }));
            if fate == 2 {
                prefill.engine.reset_cache();
            }
            if fate == 3 {
                decode.engine.reset_cache();
            }
            decode.submit(request.clone());
            asked.push(request);
            for _ in 0..steps {
                decode.step();
            }
        }
        decode.run();
        prefill.run();
        for request in asked {
            let context_length = Some(totals.1 * 4);
            let ample = EngineOptions { context_length, ..options(1000) };
            let key = (request.key.0, 0);
            let expected = alone(engine(ample), request);
            prop_assert_eq!(&decode.answers[&key].tokens, &expected[&key].tokens);
        }
    }
}
