use super::super::testkit::*;
use super::*;

const IDLE: Duration = Duration::from_secs(30);

/// A probe of an engine with one rank.
fn probe(engine: &Arc<Scripted>, canary_idle: Option<Duration>) -> (Probe, Arc<Tally>) {
    let (probe, tally) = (engine.probe(canary_idle), Arc::new(Tally::default()));
    probe.tallies.set(vec![tally.clone()]).unwrap();
    (probe, tally)
}

#[tokio::test(start_paused = true)]
async fn an_engine_is_ready_once_every_rank_of_it_gave_a_token() {
    let engine = Scripted::new([vec![last(1)], vec![token(1)]]);
    engine.description.lock().ranks = 2;
    assert_eq!(engine.probe(None).ready().await.unwrap().ranks, 2);
    let asks = engine.asks.borrow().clone();
    assert_eq!(asks.iter().map(|ask| ask.rank).collect::<Vec<_>>(), [Some(0), Some(1)]);
    assert_ne!(asks[0].id, asks[1].id);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_healthy_and_serves_nothing_is_not_ready() {
    let late = format!("no token within {} s", TOKEN_TIMEOUT.as_secs());
    for (script, why) in [
        (vec![], "the answer has no token"),
        (vec![Step::Refuse(Fault::Failed("no".into()))], "no"),
        (vec![Step::Never], late.as_str()),
    ] {
        let engine = Scripted::new([script]);
        assert_eq!(engine.probe(None).ready().await.unwrap_err(), why);
        engine.runs(0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn late_answers_are_forgiven_while_they_are_few_in_a_row() {
    let engine = Scripted::new([]);
    let (probe, _) = probe(&engine, None);
    let mut memory = Memory::default();
    for _ in 0..2 {
        *engine.health.lock() = Checkup::Late;
        for _ in 0..LATE_MAX {
            assert_eq!(probe.healthy(&mut memory).await, Ok(()));
        }
        *engine.health.lock() = Checkup::Well;
        assert_eq!(probe.healthy(&mut memory).await, Ok(()));
    }
    *engine.health.lock() = Checkup::Late;
    for _ in 0..LATE_MAX {
        assert_eq!(probe.healthy(&mut memory).await, Ok(()));
    }
    assert_eq!(probe.healthy(&mut memory).await, Err("no answer within 2 s".into()));
    *engine.health.lock() = Checkup::Ill;
    assert_eq!(probe.healthy(&mut Memory::default()).await, Err("ill".into()));
}

#[tokio::test(start_paused = true)]
async fn one_bad_answer_is_asked_about_again_before_it_counts() {
    let engine = Scripted::new([]);
    let (probe, _) = probe(&engine, None);
    let mut memory = Memory::default();
    for (times, expected) in [(1, Ok(())), (2, Err("ill".into())), (0, Ok(()))] {
        *engine.health.lock() = Checkup::IllFor(times);
        assert_eq!(probe.healthy(&mut memory).await, expected, "{times}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_canary_is_wanted_after_idle_time_and_only_then() {
    let engine = Scripted::new([]);
    let (probe, tally) = probe(&engine, Some(IDLE));
    let mut idle = Idle::default();
    let mut wanted = async |passed: Duration| {
        tokio::time::advance(passed).await;
        !probe.wants_canary(&mut idle).is_empty()
    };
    // The first look only begins to count.
    assert!(!wanted(IDLE).await);
    assert!(!wanted(IDLE / 2).await);
    assert!(wanted(IDLE / 2).await);
    // A request that came and went begins the time anew; one that runs stops it.
    drop(tally.enter(1));
    assert!(!wanted(IDLE).await);
    let entry = tally.enter(1);
    assert!(!wanted(IDLE).await);
    assert!(!wanted(IDLE).await);
    drop(entry);
    assert!(!wanted(IDLE / 2).await);
    assert!(wanted(IDLE).await);
    // So does rest.
    probe.resting.store(true, Ordering::Relaxed);
    assert!(!wanted(IDLE).await);
    probe.resting.store(false, Ordering::Relaxed);
    assert!(!wanted(IDLE / 2).await);
    assert!(wanted(IDLE / 2).await);
}

#[tokio::test(start_paused = true)]
async fn a_canary_asks_every_rank_and_a_broken_connection_is_tried_again_once() {
    let unreachable = || vec![Step::Refuse(Fault::Unreachable("gone".into()))];
    let busy = vec![Step::Refuse(Fault::Overloaded("busy".into()))];
    let engine = Scripted::new([unreachable(), vec![last(1)], busy]);
    let probe = engine.probe(None);
    probe.tallies.set(vec![Arc::default(), Arc::default()]).unwrap();
    assert_eq!(probe.canary(vec![0, 1]).await, Ok(()));
    let ranks = engine.asks.borrow().iter().map(|ask| ask.rank).collect::<Vec<_>>();
    assert_eq!(ranks, [Some(0), Some(0), Some(1)]);
    engine.scripts.lock().extend([unreachable(), unreachable()]);
    assert_eq!(probe.canary(vec![0, 1]).await, Err("a canary failed: gone".into()));
    engine.scripts.lock().push_back(vec![Step::Fail(Fault::Failed("x".into()))]);
    assert_eq!(probe.canary(vec![0, 1]).await, Err("a canary failed: x".into()));
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_is_idle_is_asked_for_a_token_while_others_are_busy() {
    let probe = Scripted::new([]).probe(Some(IDLE));
    let tallies = [Arc::new(Tally::default()), Arc::new(Tally::default())];
    probe.tallies.set(tallies.to_vec()).unwrap();
    let _busy = tallies[0].enter(1);
    let mut idle = Idle::default();
    assert_eq!(probe.wants_canary(&mut idle), [0_u16; 0]);
    tokio::time::advance(IDLE).await;
    assert_eq!(probe.wants_canary(&mut idle), [1]);
    assert_eq!(probe.wants_canary(&mut idle), [0_u16; 0]);
}

#[test]
fn progress_is_that_of_each_rank_and_none_while_the_engine_rests() {
    let probe = Scripted::new([]).probe(None);
    assert_eq!(probe.progress(), []);
    let tallies = [Arc::new(Tally::default()), Arc::new(Tally::default())];
    probe.tallies.set(tallies.to_vec()).unwrap();
    let mut first = tallies[0].enter(1);
    let _second = tallies[1].enter(1);
    first.tokens(3);
    let of = |running, counter| Progress { running, counter };
    assert_eq!(probe.progress(), [of(1, 3), of(1, 0)]);
    probe.resting.store(true, Ordering::Relaxed);
    assert_eq!(probe.progress(), [of(0, 3), of(0, 0)]);
}
