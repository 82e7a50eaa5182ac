use super::super::testkit::*;
use super::*;
use crate::events::queue::Message;
use crate::worker::OperationOrder;
use crate::worker::Snapshot;
use stator_dialect::Operation;
use stator_protos::topic::Topic;

#[tokio::test(start_paused = true)]
async fn tokens_are_sent_on_as_they_come_and_the_last_ends_the_request() {
    let bed = Bed::up([vec![token(7), token(8), last(9)]]);
    bed.submit(1, |_, _| ());
    assert_eq!(bed.answers().await, [part(1, &[7]), part(1, &[8]), whole(1, &[9])]);
    assert_eq!(bed.outbox.route(1), None);
    bed.counted("stator_agent_requests_total{outcome=\"completed\"} 1");
}

#[tokio::test(start_paused = true)]
async fn whoever_reads_the_end_of_the_last_choice_may_use_the_name_again() {
    let bed = Bed::up([vec![last(7)], vec![token(8), last(9)]]);
    bed.submit(1, |submit, _| submit.choices = 2);
    let mut ends = 0;
    while ends < 2 {
        ends += bed.got().await.iter().filter(|got| got.end.is_some()).count();
        assert_eq!(bed.outbox.route(1).is_none(), ends == 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_is_aborted_in_the_engine_and_ends_once() {
    let bed = Bed::up([vec![token(7), Step::Never]]);
    bed.submit(1, |_, _| ());
    assert_eq!(bed.got().await, [part(1, &[7])]);
    bed.cancel(1);
    bed.cancel(1);
    assert_eq!(bed.answers().await, [cancelled(1)]);
    bed.engine.runs(0).await;
    assert_eq!((bed.outbox.route(1), bed.tally.counts()), (None, Default::default()));
    bed.counted("stator_agent_requests_total{outcome=\"cancelled\"} 1");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_ended_by_itself_is_not_ended_again() {
    let bed = Bed::up([vec![last(7)], vec![last(8)]]);
    bed.submit(1, |_, _| ());
    assert_eq!(bed.answers().await, [whole(1, &[7])]);
    // Both wait for the driver at once: whichever it sees first.
    bed.cancel(1);
    bed.end("it crashed");
    bed.begin(2);
    // The name is free again.
    bed.submit(1, |_, _| ());
    assert_eq!(bed.answers().await, [whole(1, &[8])]);
    bed.counted("stator_agent_requests_total{outcome=\"completed\"} 2");
}

#[tokio::test(start_paused = true)]
async fn a_life_that_ends_takes_its_requests_with_it_and_refuses_new_ones() {
    let bed = Bed::up([vec![token(7), Step::Never]]);
    bed.submit(1, |_, _| ());
    assert_eq!(bed.got().await, [part(1, &[7])]);
    bed.end("it crashed");
    let error = "Internal: the engine does not serve: it crashed";
    assert_eq!(bed.answers().await, [failed(1, error)]);
    bed.engine.runs(0).await;
    bed.submit(2, |_, _| ());
    assert_eq!(bed.answers().await, [failed(2, error)]);
    assert_eq!(bed.engine.asks.borrow().len(), 1);
    assert_eq!(bed.feeds.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_rests_is_sent_nothing_and_keeps_what_runs() {
    let bed = Bed::up([vec![token(7), Step::Never], vec![last(8)]]);
    bed.submit(1, |_, _| ());
    assert_eq!(bed.got().await, [part(1, &[7])]);
    bed.rest(true);
    bed.submit(2, |_, _| ());
    let error = "Overloaded: the engine is paused or asleep";
    assert_eq!(bed.got().await, [failed(2, error)]);
    assert_eq!(bed.engine.asks.borrow().len(), 1);
    bed.engine.runs(1).await;
    bed.rest(false);
    bed.submit(3, |_, _| ());
    assert_eq!(bed.got().await, [whole(3, &[8])]);
}

#[tokio::test(start_paused = true)]
async fn a_life_that_was_followed_by_another_before_anybody_looked_ended_all_the_same() {
    let bed = Bed::up([vec![token(7), Step::Never], vec![last(8)]]);
    bed.submit(1, |_, _| ());
    assert_eq!(bed.got().await, [part(1, &[7])]);
    bed.end("it crashed");
    bed.begin(2);
    // Of the new life, whichever of the two the driver hears of first.
    bed.submit(2, |_, _| ());
    let mut got = bed.answers().await;
    got.sort_by_key(|got| got.id);
    let error = "Internal: the engine does not serve: it was started again";
    assert_eq!(got, [failed(1, error), whole(2, &[8])]);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_task_panics_ends_and_the_others_go_on() {
    let bed = Bed::up([vec![token(7), Step::Panic], vec![token(8), last(9)]]);
    bed.submit(1, |_, _| ());
    bed.submit(2, |_, _| ());
    bed.in_flight.none().await;
    let mut got = Vec::new();
    while got.len() < 4 {
        got.extend(bed.got().await);
    }
    got.sort_by_key(|got| got.id);
    let error = "Internal: the agent failed at the request";
    assert_eq!(got, [part(1, &[7]), failed(1, error), part(2, &[8]), whole(2, &[9])]);
    assert_eq!(bed.outbox.route(1), None);
}

#[tokio::test(start_paused = true)]
async fn faults_become_the_kinds_that_callers_choose_by() {
    let faults = [
        (Fault::Invalid("x".into()), "Invalid: x"),
        (Fault::Unsupported("x".into()), "Invalid: x"),
        (Fault::Overloaded("x".into()), "Overloaded: x"),
        (Fault::Aborted("x".into()), "Internal: the engine aborted the request: x"),
        (Fault::Unreachable("x".into()), "Internal: x"),
        (Fault::Failed("x".into()), "Internal: x"),
    ];
    for (fault, said) in faults {
        for step in [Step::Refuse, Step::Fail] {
            let bed = Bed::up([vec![step(fault.clone())]]);
            bed.submit(1, |_, _| ());
            assert_eq!(bed.answers().await, [failed(1, said)]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_an_end_or_without_anything_is_an_error_never_empty() {
    for (script, parts, said) in [
        (vec![token(7)], 1, "Internal: the engine's answer has no end"),
        (vec![], 0, "Internal: the engine's answer is empty"),
    ] {
        let bed = Bed::up([script]);
        bed.submit(1, |_, _| ());
        assert_eq!(bed.answers().await[parts..], [failed(1, said)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_choice_that_fails_ends_the_request_and_aborts_the_other_choices() {
    let bed = Bed::up([vec![token(7), Step::Never], vec![Step::Fail(Fault::Failed("x".into()))]]);
    bed.submit(1, |submit, _| submit.choices = 2);
    assert_eq!(bed.answers().await, [part(1, &[7]), failed(1, "Internal: x")]);
    bed.engine.runs(0).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_attempt_generated_is_prompt_now_and_counts_all_the_same() {
    let bed = Bed::up([]);
    bed.submit(1, |submit, metadata| {
        submit.resumed_tokens = 2;
        metadata.client_request_id = "a/b c-".repeat(20);
    });
    bed.answers().await;
    let asks = bed.engine.asks.borrow();
    assert_eq!((asks[0].sampling.max_tokens, asks[0].tokens.len()), (3, 3));
    assert!(asks[0].id.starts_with("abc-abc-") && asks[0].id.len() <= 64, "{}", asks[0].id);
}

#[tokio::test(start_paused = true)]
async fn without_a_life_there_is_no_snapshot_and_a_rank_is_not_operated_on() {
    let bed = Bed::down([]);
    let (answer, answered) = oneshot::channel();
    bed.commands.send(Command::Snapshot(answer)).await.unwrap();
    assert!(answered.await.is_err());
    let (answer, answered) = oneshot::channel();
    let order = OperationOrder { operation: Operation::ResetCache, answer };
    bed.commands.send(Command::Operate(order)).await.unwrap();
    assert!(matches!(answered.await, Ok(Err(Fault::Unsupported(_)))));
    bed.begin(5);
    let (answer, answered) = oneshot::channel();
    bed.commands.send(Command::Snapshot(answer)).await.unwrap();
    let Snapshot { generation, next_sequence, blocks } = answered.await.unwrap();
    assert_eq!((generation.0, next_sequence, blocks), (5, 0, vec![]));
}

/// Running requests by the life that they were told of.
async fn loads(bed: &Bed) -> Vec<(u64, u32)> {
    let load = |message: &Message| {
        let topic = Topic::parse(&message.topic).unwrap();
        (topic.generation.0, Load::decode(&message.payload).unwrap().running)
    };
    bed.queue.take().await.iter().map(load).collect()
}

#[tokio::test(start_paused = true)]
async fn load_is_told_of_the_life_that_is_and_of_none_that_was() {
    let bed = Bed::up([vec![token(7), Step::Never]]);
    bed.submit(1, |_, _| ());
    let mut told = Vec::new();
    while told.last() != Some(&(1, 1)) {
        told.extend(loads(&bed).await);
    }
    bed.end("it crashed");
    bed.in_flight.none().await;
    tokio::time::sleep(BEAT * 3).await;
    bed.feeds.repeat_loads();
    bed.begin(2);
    assert_eq!(loads(&bed).await, [(2, 0)]);
}
