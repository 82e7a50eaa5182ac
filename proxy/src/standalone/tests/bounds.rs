//! Bounds on what an agent's answers cost: one reader's backlog, and one answer's size.

use super::*;

/// A fleet of two workers whose client has these settings.
async fn fleet_with(dir: &Path, client: ClientSettings) -> (Fleet, Arc<Pool>) {
    let settings =
        FleetSettings { poll: Duration::from_millis(5), client, ..FleetSettings::new(dir.into()) };
    let (fleet, mut events) =
        Fleet::start(settings, FleetMetrics::default(), pools(PoolSettings::default()));
    let pool = model_up(&mut events).await;
    until("all workers", || pool.accepting() == 2).await;
    (fleet, pool)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_falls_behind_frees_its_engine_and_stalls_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::from_millis(1), &[]).await;
    let limit = 400;
    let client = ClientSettings { unread_bytes_max: limit, ..ClientSettings::default() };
    let (_fleet, pool) = fleet_with(dir.path(), client).await;
    let (_place, mut unread) = submit(&pool, &prompt(40), endless);
    let (_other_place, mut other) = submit(&pool, &prompt(40), |submit| {
        submit.sampling.as_mut().unwrap().max_tokens = 500;
    });
    // Whoever reads gets all that is there, though the neighbour on the same connection does not.
    assert_eq!(answer(&mut other).await.unwrap().0.len(), 500);
    let busy =
        |line: &str| line.starts_with("stator_agent_requests_running") && !line.ends_with(" 0");
    until("the engine runs nothing", || !agent.metrics.render().lines().any(busy)).await;
    assert_eq!(answer(&mut unread).await, Err(StreamError::Unread { limit }));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_larger_than_its_limit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut large = loaded(Duration::ZERO);
    large.files.push(("weights".into(), vec![0; 4096]));
    let agent = Agent::start_with(dir.path(), large, &[]).await;
    let ask = async |answer_bytes_max| {
        let settings = ClientSettings { answer_bytes_max, ..ClientSettings::default() };
        let client = AgentClient::connect(&agent.running.record.endpoint, &settings).unwrap();
        tokio::time::timeout(DEADLINE, client.model_files("m")).await.expect("an answer")
    };
    let code = ask(4096).await.map_err(|status| status.code());
    assert_eq!(code, Err(tonic::Code::OutOfRange));
    assert_eq!(ask(8192).await.unwrap().len(), 2);
    agent.stop().await;
}
