//! What a follower makes of gaps, replays and restarts.

use super::testkit::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_engine_remembers_is_known_at_once() {
    for without_topic in [false, true] {
        let batches = vec![(0, stored(0)), (1, stored(1)), (2, batch(&[Event::Removed(1)]))];
        let log = Log { batches, without_topic, ..Log::default() };
        let mut bed = Bed::start(log, true).await;
        bed.until_holds("the replay is in", &chain(1)).await;
        bed.publish(stored(1));
        bed.until_holds("live events follow", &chain(2)).await;
        assert_eq!(bed.state().lives.len(), 1);
        assert_eq!(bed.metrics.blocks_skipped.get(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_that_does_not_reach_back_is_followed_from_its_start() {
    // What block 0 was is not known any more, so that block 1 cannot be named either.
    let batches = vec![(5, stored(1)), (6, stored(0)), (7, stored(1))];
    let mut bed = Bed::start(Log { batches, ..Log::default() }, true).await;
    bed.until_holds("the replay is in", &chain(2)).await;
    assert_eq!(bed.metrics.blocks_skipped.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_before_a_hole_in_a_replay_is_believed() {
    let batches = vec![(0, stored(0)), (1, stored(1)), (3, stored(0))];
    let mut bed = Bed::start(Log { batches, ..Log::default() }, true).await;
    bed.until_holds("the end of the replay is in", &chain(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_is_filled_by_replay() {
    let mut bed = Bed::start(Log::default(), true).await;
    bed.publish(stored(0));
    bed.until_holds("the feed stands", &chain(1)).await;
    bed.lose(Some(stored(1)));
    bed.publish(stored(2));
    bed.until_holds("the gap is filled", &chain(3)).await;
    assert!(bed.log.lock().asked.iter().any(|start| *start > 0));
    assert_eq!(bed.state().lives.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_gap_that_nobody_fills_everything_is_forgotten() {
    for with_replay in [true, false] {
        let mut bed = Bed::start(Log::default(), with_replay).await;
        bed.until("the feed stands", |state| state.known).await;
        bed.publish(stored(0));
        bed.until_holds("the first block", &chain(1)).await;
        // The removal of block 0 may have been in it.
        bed.lose(None);
        bed.log.lock().batches.clear();
        bed.until_holds("nothing is believed", &[]).await;
        bed.publish(stored(0));
        bed.publish(stored(1));
        bed.until_holds("the feed goes on", &chain(2)).await;
        assert_eq!(bed.state().lives.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_start_again_are_another_life() {
    for with_replay in [true, false] {
        let mut bed = Bed::start(Log::default(), with_replay).await;
        bed.until("the feed stands", |state| state.known).await;
        bed.publish(stored(0));
        bed.publish(stored(1));
        bed.until_holds("two blocks", &chain(2)).await;
        bed.log.lock().batches.clear();
        bed.next = 0;
        bed.publish(stored(0));
        bed.until_holds("the new life alone", &chain(1)).await;
        assert_eq!(bed.state().lives.len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_cannot_be_read_is_as_good_as_lost() {
    let mut bed = Bed::start(Log::default(), true).await;
    bed.publish(stored(0));
    bed.until_holds("the feed stands", &chain(1)).await;
    let number = bed.next;
    bed.lose(Some(stored(1)));
    bed.send(number, stored(1).slice(..20));
    bed.until_holds("the replay brought it", &chain(2)).await;
    assert!(bed.metrics.messages_malformed.get() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_comes_back_is_another_life() {
    let mut bed = Bed::start(Log::default(), true).await;
    bed.publish(stored(0));
    bed.until_holds("the feed stands", &chain(1)).await;
    // Its numbers go on further than before, as if nothing had happened.
    bed.listen_again().await;
    bed.log.lock().batches.clear();
    bed.publish(stored(0));
    bed.publish(stored(1));
    bed.until("another life", |state| state.lives.len() >= 2).await;
    bed.until("it is known", |state| state.known).await;
    assert!(bed.log.lock().asked.iter().filter(|start| **start == 0).count() >= 2);
}
