//! Agents whose leases have ended: what they themselves say decides.

use super::*;

/// Shows a record whose lease ends at once, unless somebody writes it again.
fn put_once(dir: &Path, record: &AgentRecord) {
    // By a clock that is an hour late.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let late = u64::try_from(now.as_millis()).unwrap() - 3_600_000;
    let record = AgentRecord { lease_ms: 50, lease_expires_unix_ms: late, ..record.clone() };
    let path = dir.join(format!("{}.json", record.agent_id));
    std::fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
}

fn follow(dir: &Path) -> (Fleet, mpsc::Receiver<FleetEvent<Pool>>, FleetMetrics) {
    let settings =
        FleetSettings { poll: Duration::from_millis(5), ..FleetSettings::new(dir.into()) };
    let metrics = FleetMetrics::default();
    let (fleet, events) = Fleet::start(settings, metrics.clone(), pools(PoolSettings::default()));
    (fleet, events, metrics)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_lease_has_ended_serves_on_while_it_answers() {
    let home = tempfile::tempdir().unwrap();
    let flags = sockets(home.path());
    let flags = flags.each_ref().map(String::as_str);
    let shown = tempfile::tempdir().unwrap();
    let agent = Agent::start(&home.path().join("1"), Duration::ZERO, &flags).await;
    put_once(shown.path(), &agent.running.record);
    let (_fleet, mut events, metrics) = follow(shown.path());
    // The keeper counts after it has shown the pool: the numbers come a moment after the workers.
    let counted = |agents, suspects| {
        (metrics.agents.get(), metrics.agents_suspect.get()) == (agents, suspects)
    };
    let pool = model_up(&mut events).await;
    until("it is suspect", || counted(1, 1)).await;
    until("its workers are used", || pool.accepting() == 2).await;
    let (place, mut stream) = submit(&pool, &prompt(20), |_| ());
    assert_eq!(answer(&mut stream).await.unwrap().0.len(), 10);
    drop((place, stream));

    // Its connection is gone as well: so is it, until it answers again.
    agent.stop().await;
    until("it is gone", || counted(0, 0) && pool.stats().workers == 0).await;
    let agent = Agent::start(&home.path().join("2"), Duration::ZERO, &flags).await;
    until("it is found again", || counted(1, 1) && pool.accepting() == 2).await;

    // And nothing is left of the suspicion when somebody vouches for it.
    put(&shown, &agent.running.record);
    until("it is beyond doubt", || counted(1, 0)).await;
    assert_eq!(pool.accepting(), 2);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_agent_at_the_same_address_does_not_answer_for_one_that_died() {
    let (home, shown) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let agent = Agent::start(home.path(), Duration::ZERO, &["--agent-id=b"]).await;
    let record = &agent.running.record;
    let mut dead = AgentRecord { agent_id: "a".into(), ..record.clone() };
    dead.workers.iter_mut().for_each(|worker| worker.worker.worker.0 ^= 1);
    put_once(shown.path(), &dead);
    put(&shown, record);
    let (_fleet, mut events, metrics) = follow(shown.path());
    let pool = model_up(&mut events).await;
    until("the dead one is gone", || {
        (metrics.agents.get(), metrics.agents_suspect.get()) == (1, 0)
            && (pool.stats().workers, pool.accepting()) == (2, 2)
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_was_removed_takes_nobody_away_who_lives() {
    let (home, shown) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let agent = Agent::start(home.path(), Duration::ZERO, &[]).await;
    put(&shown, &agent.running.record);
    let (_fleet, mut events, metrics) = follow(shown.path());
    let pool = model_up(&mut events).await;
    until("all workers", || pool.accepting() == 2).await;
    std::fs::remove_file(shown.path().join("a.json")).unwrap();
    until("it is suspect", || metrics.agents_suspect.get() == 1).await;
    let (_place, mut stream) = submit(&pool, &prompt(20), |_| ());
    assert_eq!(answer(&mut stream).await.unwrap().0.len(), 10);
    assert_eq!((metrics.agents.get(), pool.accepting()), (1, 2));
    put(&shown, &agent.running.record);
    until("it is beyond doubt", || metrics.agents_suspect.get() == 0).await;
    agent.stop().await;
}
