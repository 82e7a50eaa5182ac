//! Agents that end and come back, and proxies that come late.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_agent_ends_its_streams_at_once_and_a_new_life_serves_with_an_empty_cache() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::from_millis(1), &[]).await;
    let (_fleet, pool) = fleet(dir.path()).await;
    let tokens = prompt(64);
    let (place, mut stream) = submit(&pool, &tokens, endless);
    let worker = place.worker();
    until("its blocks are known", || pool.overlap(worker, &sequence(&tokens)) == 4).await;
    let first_life = agent.running.record.workers[0].generation;
    agent.stop().await;
    assert_eq!(answer(&mut stream).await, Err(StreamError::Disconnected));
    drop(place);
    until("the workers are gone", || pool.stats().workers == 0).await;

    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    assert!(agent.running.record.workers[0].generation > first_life);
    assert!(agent.running.record.workers.iter().any(|record| record.worker == worker));
    until("two workers again", || pool.accepting() == 2).await;
    assert_eq!(pool.overlap(worker, &sequence(&tokens)), 0);
    let (_place, mut stream) = submit(&pool, &tokens, |_| ());
    assert_eq!(answer(&mut stream).await.unwrap().0.len(), 10);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_crashed_and_came_back_at_the_same_place_is_followed_again() {
    let home = tempfile::tempdir().unwrap();
    let flags = sockets(home.path());
    let flags = flags.each_ref().map(String::as_str);
    // The fleet sees the records only as the test shows them: a crash removes none.
    let shown = tempfile::tempdir().unwrap();
    let show = |agent: &Agent| put(&shown, &agent.running.record);
    let tokens = prompt(64);

    let first = Agent::start(&home.path().join("1"), Duration::ZERO, &flags).await;
    show(&first);
    let (_fleet, pool) = fleet(shown.path()).await;
    let (place, mut stream) = submit(&pool, &tokens, |_| ());
    let worker = place.worker();
    answer(&mut stream).await.unwrap();
    drop((place, stream));
    until("its blocks are known", || pool.overlap(worker, &sequence(&tokens)) == 4).await;
    first.stop().await;
    until("nobody can be reached", || pool.accepting() == 0).await;

    let second = Agent::start(&home.path().join("2"), Duration::ZERO, &flags).await;
    show(&second);
    until("both can be reached", || pool.accepting() == 2).await;
    until("the cache is new", || pool.overlap(worker, &sequence(&tokens)) == 0).await;
    let to = |submit: &mut Submit| submit.worker_id = worker.worker.0;
    let (_place, mut stream) = submit(&pool, &tokens, to);
    assert_eq!(answer(&mut stream).await.unwrap().0.len(), 10);
    until("its blocks are known again", || pool.overlap(worker, &sequence(&tokens)) == 4).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_proxy_learns_what_was_cached_before_it_came() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    let tokens = prompt(160);
    let (first, pool) = fleet(dir.path()).await;
    let (place, mut stream) = submit(&pool, &tokens, |_| ());
    let worker = place.worker();
    answer(&mut stream).await.unwrap();
    drop((place, stream, first));

    let (_second, pool) = fleet(dir.path()).await;
    until("the snapshot is there", || pool.overlap(worker, &sequence(&tokens)) == 10).await;
    // And placement uses it.
    let (place, mut stream) = submit(&pool, &tokens, |_| ());
    assert_eq!((place.worker(), place.decision().cached_tokens), (worker, 160));
    assert_eq!(answer(&mut stream).await.unwrap().1.usage.unwrap().cached_tokens, 144);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_another_model_of_the_same_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    let settings =
        FleetSettings { poll: Duration::from_millis(5), ..FleetSettings::new(dir.path().into()) };
    let metrics = FleetMetrics::default();
    let (_fleet, mut events) =
        Fleet::start(settings, metrics.clone(), pools(PoolSettings::default()));
    let pool = model_up(&mut events).await;
    let mut other = loaded(Duration::ZERO);
    other.model.block_size = 32;
    let other = Agent::start_with(dir.path(), other, &["--agent-id=b"]).await;
    until("refused", || metrics.records_refused.get() == 1).await;
    assert_eq!((pool.block_size().get(), pool.stats().workers), (16, 2));
    // When nobody contradicts it any more, it is the model.
    agent.stop().await;
    let pool = model_up(&mut events).await;
    assert_eq!(pool.block_size().get(), 32);
    until("its workers serve", || pool.accepting() == 2).await;
    other.stop().await;
}
