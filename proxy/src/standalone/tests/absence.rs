//! Workers that are away: who waits for them, and for how long.

use super::*;
use stator_gate::{Admission, AdmitError};
use stator_placement::PickError;
use stator_queue::{Eviction, QueueEntry};

type Outcome = Result<Admission<Place>, AdmitError<PickError>>;

/// A fleet and its events, with these settings.
fn follow(
    settings: FleetSettings,
    of_pools: PoolSettings,
) -> (Fleet, mpsc::Receiver<FleetEvent<Pool>>) {
    let settings = FleetSettings { poll: Duration::from_millis(5), ..settings };
    Fleet::start(settings, FleetMetrics::default(), pools(of_pools))
}

/// A request that waits at the pool's gate.
async fn waiting(pool: &Arc<Pool>) -> tokio::task::JoinHandle<Outcome> {
    let (asked, before) = (pool.clone(), pool.waiting());
    let task = tokio::spawn(async move { asked.admit(QueueEntry::default()).await });
    until("it waits", || pool.waiting() > before).await;
    task
}

async fn outcome(task: tokio::task::JoinHandle<Outcome>) -> Outcome {
    tokio::time::timeout(DEADLINE, task).await.expect("in time").expect("no panic")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_for_workers_that_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    let (_fleet, pool) = fleet(dir.path()).await;
    agent.stop().await;
    until("the workers are gone", || pool.accepting() == 0).await;
    let task = waiting(&pool).await;
    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    let place = outcome(task).await.expect("a place").place;
    assert!(agent.running.record.workers.iter().any(|record| record.worker == place.worker()));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_failed_a_request_is_better_than_none() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    let (_fleet, pool) = fleet(dir.path()).await;
    let excluded: Vec<_> = agent.running.record.workers.iter().map(|found| found.worker).collect();
    let payload = Prompt { excluded: excluded[..1].to_vec(), ..Prompt::default() };
    let admitted =
        pool.admit(QueueEntry { payload, ..QueueEntry::default() }).await.expect("a place");
    assert_eq!(admitted.place.worker(), excluded[1]);
    let payload = Prompt { excluded, ..Prompt::default() };
    pool.admit(QueueEntry { payload, ..QueueEntry::default() }).await.expect("a place");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_waits_longer_for_workers_than_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    let worker_wait = Duration::from_millis(10);
    let of_pools = PoolSettings { worker_wait, ..PoolSettings::default() };
    let (_fleet, mut events) = follow(FleetSettings::new(dir.path().into()), of_pools);
    let pool = model_up(&mut events).await;
    agent.stop().await;
    until("the workers are gone", || pool.accepting() == 0).await;
    let waited = tokio::time::timeout(DEADLINE, pool.admit(QueueEntry::default())).await;
    let error = waited.expect("in time").expect_err("nobody comes");
    let expired = matches!(error, AdmitError::Evicted { reason: Eviction::Deadline, .. });
    assert!(expired, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_whose_workers_stay_away_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    let model_linger = Duration::from_millis(10);
    let settings = FleetSettings { model_linger, ..FleetSettings::new(dir.path().into()) };
    let (_fleet, mut events) = follow(settings, PoolSettings::default());
    let pool = model_up(&mut events).await;
    agent.stop().await;
    until("the workers are gone", || pool.accepting() == 0).await;
    let asked = pool.clone();
    let task = tokio::spawn(async move { asked.admit(QueueEntry::default()).await });
    assert!(outcome(task).await.is_err(), "it is sent away with the model");
    let gone = loop {
        let event = tokio::time::timeout(DEADLINE, events.recv()).await.unwrap().unwrap();
        if let FleetEvent::ModelDown { pool } = event {
            break pool;
        }
    };
    assert!(Arc::ptr_eq(&gone, &pool));

    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    let again = model_up(&mut events).await;
    assert!(!Arc::ptr_eq(&again, &pool), "it begins anew");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_is_known_once_the_models_found_at_first_are_announced() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    let (first, _pool) = fleet(dir.path()).await;
    drop(first);
    let (_fleet, mut events) =
        follow(FleetSettings::new(dir.path().into()), PoolSettings::default());
    let mut next = async || tokio::time::timeout(DEADLINE, events.recv()).await.unwrap();
    assert!(matches!(next().await, Some(FleetEvent::ModelUp { .. })));
    assert!(matches!(next().await, Some(FleetEvent::Settled)));
    agent.stop().await;

    let nobody = tempfile::tempdir().unwrap();
    let (_fleet, mut events) =
        follow(FleetSettings::new(nobody.path().into()), PoolSettings::default());
    let settled = tokio::time::timeout(DEADLINE, events.recv()).await.unwrap();
    assert!(matches!(settled, Some(FleetEvent::Settled)), "a fleet may be empty");
}
