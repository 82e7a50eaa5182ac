//! What becomes of the token that a prefill computes.

use super::request::ChoiceProgress;
use super::request_tests::{Pair, in_turn, together};
use super::testkit::*;
use crate::worker::Command;
use stator_dialect::{Ask, Delta, Fault, Finish, FirstToken, Hand, Manner, SharedRequest};
use stator_engine::{RequestKey, TokenLogprobs};
use stator_protos::worker::guide::Form;
use stator_protos::worker::{self, FinishReason};
use std::time::Duration;
use tokio::time::{Instant, advance};

const TAKEN: Manner = Manner::InTurn { prefill: None, first: FirstToken::Taken { block_size: 16 } };
const PASSED: Manner = Manner::InTurn { prefill: None, first: FirstToken::Passed };

/// A pair whose prefill gives token 9, and whose decode does as told.
fn pair(manner: Manner, decode: Vec<Vec<Step>>) -> Pair {
    Pair::new(manner, vec![vec![handover("{}")]], decode)
}

/// All tokens that the client got, and how they ended.
async fn got(pair: &Pair) -> (Vec<u32>, Option<(FinishReason, String)>) {
    let got = pair.decode.answers().await;
    let tokens = got.iter().flat_map(|got| got.tokens.clone()).collect();
    (tokens, got.into_iter().last().and_then(|got| got.end))
}

fn length() -> Option<(FinishReason, String)> {
    Some((FinishReason::Length, String::new()))
}

fn asks(bed: &Bed) -> Vec<Ask> {
    bed.engine.asks.borrow().clone()
}

#[tokio::test]
async fn a_token_that_is_taken_comes_at_once_and_is_the_last_of_the_prompt() {
    let pair = pair(TAKEN, vec![vec![token(5), last(6)]]);
    pair.submit();
    assert_eq!(got(&pair).await, (vec![9, 5, 6], length()));
    let (there, here) = (asks(&pair.prefill), asks(&pair.decode));
    assert_eq!((&*there[0].tokens, &*here[0].tokens), (&[1, 2, 3][..], &[1, 2, 3, 9][..]));
    assert!(matches!(here[0].hand, Hand::Decode(_)));
    assert_eq!((there[0].sampling.max_tokens, here[0].sampling.max_tokens), (1, 4));
    pair.decode.counted("stator_agent_prefills_total{by=\"prefill_worker\"} 1");
    pair.decode.counted("stator_agent_generated_tokens_total 3");

    // Decode need not have said anything.
    let pair = self::pair(TAKEN, vec![vec![Step::Never]]);
    pair.submit();
    assert_eq!(pair.decode.got().await, [part(1, &[9])]);
}

#[tokio::test]
async fn a_token_that_is_wanted_is_chosen_as_the_client_asked() {
    let ask = async |manner: Manner, change: fn(&mut worker::Sampling)| {
        let pair = pair(manner, vec![vec![last(5)]]);
        pair.decode.submit(1, |submit, metadata| {
            change(submit.sampling.as_mut().unwrap());
            metadata.prefill = Some(pair.peer.clone());
        });
        pair.decode.answers().await;
        (asks(&pair.prefill).remove(0), asks(&pair.decode).remove(0))
    };
    let (there, _) = ask(TAKEN, |sampling| {
        sampling.min_tokens = 3;
        sampling.repetition_penalty = 1.5;
        sampling.stop_token_ids = vec![7];
        sampling.logprobs = Some(2);
    })
    .await;
    let said = &there.sampling;
    assert_eq!((said.min_tokens, said.repetition_penalty, said.ignore_eos), (1, 1.5, false));
    assert_eq!((&said.stop_token_ids[..], said.logprobs), (&[7][..], Some(2)));

    // Where nobody asked for the seed any draw is as good as another.
    let (there, here) = ask(TAKEN, |sampling| {
        sampling.temperature = 0.5;
        sampling.seed = 11;
        sampling.seed_is_drawn = true;
    })
    .await;
    assert_eq!((there.sampling.temperature, &*here.tokens), (0.5, &[1, 2, 3, 9][..]));

    let (there, _) = ask(PASSED, |sampling| {
        sampling.temperature = 0.5;
        sampling.seed = 11;
        sampling.presence_penalty = 1.0;
    })
    .await;
    let said = &there.sampling;
    assert_eq!((said.temperature, said.seed, said.presence_penalty), (0.5, 11, 1.0));

    // Where an answer would be another one, decode begins it itself, and any token does.
    let differs: [fn(&mut worker::Sampling); 5] = [
        |sampling| sampling.temperature = 0.5,
        |sampling| sampling.presence_penalty = 1.0,
        |sampling| sampling.frequency_penalty = 1.0,
        |sampling| sampling.max_tokens = 1,
        |sampling| {
            let form = Some(Form::JsonObject(worker::JsonObject {}));
            sampling.guide = Some(worker::Guide { form });
        },
    ];
    for change in differs {
        let (there, here) = ask(TAKEN, change).await;
        assert_eq!(&*here.tokens, [1, 2, 3]);
        assert!(there.sampling.ignore_eos && there.sampling.guide.is_none());
    }
    // So it is where the token would begin a block, or fill one.
    for block_size in [3, 4] {
        let (there, here) = ask(in_turn(FirstToken::Taken { block_size }), |_| ()).await;
        assert_eq!((&*here.tokens, there.sampling.ignore_eos), (&[1, 2, 3][..], true));
    }
}

#[tokio::test]
async fn a_token_that_is_passed_on_is_told_once() {
    let decode = vec![token(9), token(5), last(6)];
    let pair = pair(PASSED, vec![decode]);
    pair.submit();
    assert_eq!(got(&pair).await, (vec![9, 5, 6], length()));
    let here = asks(&pair.decode);
    assert_eq!((&*here[0].tokens, here[0].sampling.max_tokens), (&[1, 2, 3][..], 5));

    let pair = self::pair(PASSED, vec![vec![token(8), last(6)]]);
    pair.submit();
    let (tokens, end) = got(&pair).await;
    let (reason, said) = end.unwrap();
    assert_eq!((tokens, reason), (vec![9], FinishReason::Error));
    assert!(said.contains("begins with token 8, prefill said 9"), "{said}");
}

#[tokio::test]
async fn an_answer_that_its_first_token_ends_needs_no_decode_unless_blocks_wait_for_it() {
    let stop = |handover| {
        let finish = Some(Finish::Stop(Some(2)));
        vec![Step::Say(Delta { tokens: vec![2], finish, handover, ..Delta::default() })]
    };
    for manner in [TAKEN, PASSED] {
        let pair = Pair::new(manner.clone(), vec![stop(None)], vec![]);
        pair.submit();
        let stopped = Some((FinishReason::Stop, String::new()));
        assert_eq!(got(&pair).await, (vec![2], stopped));
        assert!(asks(&pair.decode).is_empty());
        pair.decode.counted("stator_agent_prefills_total{by=\"prefill_worker\"} 1");

        let pair = Pair::new(manner, vec![stop(Some(raw("{}")))], vec![vec![last(2)]]);
        pair.submit();
        assert_eq!(got(&pair).await, (vec![2], length()));
        assert_eq!(&*asks(&pair.decode)[0].tokens, [1, 2, 3]);
    }
    // An end that nobody asked for is none.
    let pair = Pair::new(in_turn(FirstToken::Dropped), vec![stop(None)], vec![vec![last(5)]]);
    pair.submit();
    assert_eq!(got(&pair).await, (vec![5], length()));
    pair.decode.counted("stator_agent_prefills_total{by=\"itself_prefill_failed\"} 1");
}

/// Both at once, and decode hears nothing of an answer that its first token ends.
fn unless_last() -> Manner {
    let Manner::Together { prefill, decode, .. } = together() else { panic!("in turn") };
    Manner::Together { prefill, decode, first: FirstToken::PassedUnlessLast, prompt_first: false }
}

#[tokio::test]
async fn an_answer_that_its_first_token_ends_is_prefills_where_decode_hears_nothing_of_it() {
    let stop = || {
        let finish = Some(Finish::Stop(Some(2)));
        vec![vec![Step::Say(Delta { tokens: vec![2], finish, ..Delta::default() })]]
    };
    let pair = Pair::new(unless_last(), stop(), vec![vec![Step::Never]]);
    pair.submit();
    assert_eq!(got(&pair).await, (vec![2], Some((FinishReason::Stop, String::new()))));
    pair.decode.counted("stator_agent_prefills_total{by=\"prefill_worker\"} 1");
    pair.decode.counted("stator_agent_generated_tokens_total 1");
    // Decode is told that nobody waits for it, and asked for nothing else.
    pair.decode.engine.runs(0).await;
    assert_eq!(asks(&pair.decode).len(), 1);

    // Where it hears of it, the answer is decode's.
    let Manner::Together { prefill, decode, prompt_first, .. } = unless_last() else {
        panic!("in turn")
    };
    let passed = Manner::Together { prefill, decode, first: FirstToken::Passed, prompt_first };
    let pair = Pair::new(passed, stop(), vec![vec![token(5), last(6)]]);
    pair.submit();
    assert_eq!(got(&pair).await, (vec![5, 6], length()));
}

#[tokio::test]
async fn at_once_the_first_token_is_decodes_and_chosen_as_the_client_asked() {
    let pair = Pair::new(unless_last(), vec![vec![last(9)]], vec![vec![token(9), last(5)]]);
    pair.decode.submit(1, |submit, metadata| {
        submit.sampling.as_mut().unwrap().presence_penalty = 1.0;
        metadata.prefill = Some(pair.peer.clone());
    });
    assert_eq!(got(&pair).await, (vec![9, 5], length()));
    let there = asks(&pair.prefill).remove(0);
    assert_eq!((there.sampling.max_tokens, there.sampling.presence_penalty), (1, 1.0));
    assert!(!there.sampling.ignore_eos);
}

#[tokio::test]
async fn where_either_half_fails_the_prompt_is_computed_here() {
    let broken = || vec![Step::Fail(Fault::Failed("no such blocks".into()))];
    let never = || vec![Step::Never];
    for (there, here, by) in
        [(broken(), never(), "itself_prefill_failed"), (never(), broken(), "itself_engine_failed")]
    {
        let pair = Pair::new(unless_last(), vec![there], vec![here, vec![last(5)]]);
        pair.submit();
        assert_eq!(got(&pair).await, (vec![5], length()));
        pair.decode.counted(&format!("stator_agent_prefills_total{{by=\"{by}\"}} 1"));
        // The other half is told that nobody waits for it.
        pair.prefill.engine.runs(0).await;
        pair.decode.engine.runs(0).await;
        let hands: Vec<_> = asks(&pair.decode).into_iter().map(|ask| ask.hand).collect();
        assert!(matches!(hands[..], [Hand::Decode(_), Hand::Whole]), "{hands:?}");
    }
}

#[tokio::test]
async fn engines_are_told_whether_logprobs_are_asked_for() {
    for logprobs in [None, Some(0)] {
        let pair = pair(PASSED, vec![vec![last(9)]]);
        pair.decode.submit(7, |submit, metadata| {
            submit.sampling.as_mut().unwrap().logprobs = logprobs;
            metadata.prefill = Some(pair.peer.clone());
        });
        pair.decode.in_flight.none().await;
        let logprobs = logprobs.is_some();
        let shared = SharedRequest { request: 7, rank: 0, logprobs };
        assert_eq!(*pair.decode.engine.paired.lock(), [shared]);
    }
}

#[tokio::test]
async fn where_decode_fails_after_the_first_token_the_answer_goes_on_from_it() {
    for manner in [TAKEN, PASSED] {
        let broken = vec![Step::Fail(Fault::Failed("no such blocks".into()))];
        let pair = pair(manner, vec![broken, vec![last(5)]]);
        pair.submit();
        assert_eq!(got(&pair).await, (vec![9, 5], length()));
        let here = asks(&pair.decode);
        assert!(matches!(here[1].hand, Hand::Whole));
        assert_eq!((&*here[1].tokens, here[1].sampling.max_tokens), (&[1, 2, 3, 9][..], 4));
        pair.decode.counted("stator_agent_prefills_total{by=\"itself_engine_failed\"} 1");
    }
}

#[tokio::test]
async fn a_client_that_goes_with_the_first_token_leaves_nothing_running() {
    let pair = pair(TAKEN, vec![vec![Step::Never]]);
    pair.submit();
    assert_eq!(pair.decode.got().await, [part(1, &[9])]);
    pair.decode.commands.send(Command::Cancel(vec![RequestKey(1)])).await.unwrap();
    assert_eq!(pair.decode.answers().await, [cancelled(1)]);
    // It hears of what was handed over to it all the same, so that it lets go of it.
    pair.decode.engine.asks.subscribe().wait_for(|asks| asks.len() == 1).await.unwrap();
    pair.decode.engine.runs(0).await;
}

#[tokio::test]
async fn the_first_token_has_its_logprob() {
    let logprobs = vec![TokenLogprobs { token: 9, logprob: -0.5, top: vec![(9, -0.5)] }];
    let first = Delta {
        tokens: vec![9],
        logprobs,
        handover: Some(raw("{}")),
        finish: Some(Finish::Length),
        ..Delta::default()
    };
    let pair = Pair::new(TAKEN, vec![vec![Step::Say(first)]], vec![vec![Step::Never]]);
    pair.submit();
    let output = pair.decode.outbox.next().await.unwrap().remove(0);
    assert_eq!((output.token_ids, output.logprobs.len()), (vec![9], 1));
    assert_eq!((output.logprobs[0].logprob, output.logprobs[0].top.len()), (-0.5, 1));
}

#[tokio::test(start_paused = true)]
async fn the_way_of_the_kv_ends_with_the_first_token_that_came_of_it() {
    let mut progress = ChoiceProgress::default();
    progress.handed_over = Some(Instant::now());
    advance(Duration::from_millis(250)).await;
    progress.look_for_transfer(&Delta { cached_tokens: Some(3), ..Delta::default() });
    assert_eq!(progress.transfer_us, 0);
    let some = Delta { tokens: vec![5], ..Delta::default() };
    progress.look_for_transfer(&some);
    assert_eq!((progress.transfer_us, progress.handed_over), (250_000, None));
    advance(Duration::from_millis(250)).await;
    progress.look_for_transfer(&some);
    assert_eq!(progress.transfer_us, 250_000);
}

/// For each output of a pair's answer its tokens, and whether it says how long the KV's way was.
async fn told(manner: Manner, decode: Vec<Vec<Step>>) -> Vec<(Vec<u32>, bool)> {
    let pair = pair(manner, decode);
    pair.submit();
    pair.decode.in_flight.none().await;
    let outputs = pair.decode.outbox.next().await.unwrap();
    outputs.into_iter().map(|output| (output.token_ids, output.transfer_us > 0)).collect()
}

#[tokio::test]
async fn who_waits_is_told_how_long_the_way_of_the_kv_was_where_that_can_be_told() {
    let decode = || vec![vec![token(5), last(6)]];
    let dropped = in_turn(FirstToken::Dropped);
    assert_eq!(told(dropped, decode()).await, [(vec![5], true), (vec![6], false)]);
    // The client has its first token before the KV sets out.
    let early = [(vec![9], false), (vec![5], true), (vec![6], false)];
    assert_eq!(told(TAKEN, decode()).await, early);
    let passed = told(PASSED, vec![vec![token(9), token(5), last(6)]]).await;
    assert_eq!(passed, [(vec![9], false), (vec![], true), (vec![5], false), (vec![6], false)]);
    assert_eq!(told(together(), decode()).await, [(vec![5], true), (vec![6], false)]);

    let Manner::Together { prefill, decode: told_decode, first, .. } = together() else {
        panic!("in turn");
    };
    let along = Manner::Together { prefill, decode: told_decode, first, prompt_first: false };
    assert_eq!(told(along, decode()).await, [(vec![5], false), (vec![6], false)]);
    // What was computed here has no way.
    let broken = vec![Step::Fail(Fault::Failed("no such blocks".into()))];
    let failed = told(in_turn(FirstToken::Dropped), vec![broken, vec![last(5)]]).await;
    assert_eq!(failed, [(vec![5], false)]);
}
