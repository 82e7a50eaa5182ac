//! What can be asked of a follower that runs.

use super::testkit::*;
use stator_protos::hash::SequenceHash;
use std::collections::BTreeSet;

/// A feed that stands, with these blocks.
async fn standing(blocks: u32) -> Bed {
    let mut bed = Bed::start(Log::default(), true).await;
    for block in 0..blocks {
        bed.publish(stored(block));
    }
    bed.until_holds("the feed stands", &chain(blocks)).await;
    bed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_sees_parents_first() {
    let bed = standing(3).await;
    let look = bed.control.look(|view| {
        let blocks: Vec<SequenceHash> = view.blocks().map(|(hash, _)| hash).collect();
        let found = view.blocks().all(|(hash, medium)| view.medium(hash) == Some(medium));
        assert!(found && view.medium(SequenceHash(0)).is_none());
        (view.generation, view.known, blocks)
    });
    let (generation, known, blocks) = look.await.expect("it runs");
    assert_eq!((known, blocks), (true, chain(3)));
    assert_eq!(bed.state().lives.last(), Some(&generation));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_sees_what_the_sink_was_told_and_nothing_else() {
    let mut bed = standing(1).await;
    for block in 1..40 {
        bed.publish(stored(block));
        let index = bed.index.clone();
        let look = bed.control.look(move |view| {
            let told: BTreeSet<_> = index.0.lock().blocks.keys().copied().collect();
            (told, view.blocks().collect())
        });
        let (told, seen): (BTreeSet<_>, BTreeSet<_>) = look.await.expect("it runs");
        assert_eq!(told, seen);
    }
    bed.until_holds("all of it came", &chain(40)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_looks_at_a_follower_that_has_ended() {
    let mut bed = standing(1).await;
    bed.follower.shutdown().await;
    assert_eq!(bed.control.look(|view| view.known).await, None);
    bed.control.cleared().await;
    bed.control.restarted().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_was_reset_is_empty_before_the_engine_says_so() {
    let mut bed = standing(2).await;
    bed.control.cleared().await;
    let state = bed.state();
    assert!(state.known && state.holds(&[]), "{state:?}");
    assert_eq!(state.lives.len(), 1);
    bed.publish(batch(&[Event::Cleared, Event::Stored(0)]));
    bed.until_holds("what came since", &chain(1)).await;
    assert_eq!(bed.state().lives.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_replay_brings_back_what_a_reset_took_away() {
    let mut bed = standing(2).await;
    bed.control.cleared().await;
    bed.listen_again().await;
    bed.until("another life", |state| state.lives.len() > 1 && state.known).await;
    assert!(bed.state().holds(&[]), "the engine still remembers what it stored");
    bed.publish(batch(&[Event::Cleared, Event::Stored(0)]));
    bed.until_holds("what came since", &chain(1)).await;
    // From here on its memory is right, and believed.
    bed.listen_again().await;
    let lives = bed.state().lives.len();
    bed.until("another life", |state| state.lives.len() > lives && state.known).await;
    bed.until_holds("what the engine remembers", &chain(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_says_nothing_about_another_process() {
    let mut bed = Bed::start(Log::default(), true).await;
    // Far beyond what the other process will have told when it is asked.
    bed.next = 1_000_000;
    bed.publish(stored(0));
    bed.publish(stored(1));
    bed.until_holds("the feed stands", &chain(2)).await;
    bed.control.cleared().await;
    // Nobody said that it was replaced; its numbers do.
    {
        let mut log = bed.log.lock();
        log.batches = vec![(0, stored(0))];
    }
    bed.next = 1;
    bed.listen_again().await;
    bed.until("another life", |state| state.lives.len() > 1 && state.known).await;
    bed.until_holds("what the new process remembers", &chain(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_replaced_holds_nothing_at_once() {
    let mut bed = standing(2).await;
    bed.log.lock().batches.clear();
    bed.next = 0;
    bed.control.restarted().await;
    assert!(bed.state().lives.len() > 1);
    assert!(!bed.state().holds(&chain(2)));
    bed.publish(stored(0));
    bed.until_holds("the new process's", &chain(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_gone_is_not_known() {
    let mut bed = standing(2).await;
    bed.listen_elsewhere().await;
    bed.control.restarted().await;
    let view = bed.control.look(|view| (view.known, view.blocks().count()));
    assert_eq!(view.await, Some((false, 0)));
}
