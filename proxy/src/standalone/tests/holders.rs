//! Agents that lend KV are named to the agent that gets a request.

use super::*;
use stator_protos::worker::KvHolder;

/// Shows an agent that lends at this address.
fn show(shown: &tempfile::TempDir, agent: &Agent, address: &str) {
    let mut record = agent.running.record.clone();
    record.profile.kv_transfer = Some(address.into());
    put(shown, &record);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_names_the_agents_that_lend_its_prompt() {
    let home = tempfile::tempdir().unwrap();
    let one = Agent::start(&home.path().join("1"), Duration::ZERO, &[]).await;
    let other = Agent::start(&home.path().join("2"), Duration::ZERO, &["--agent-id=b"]).await;
    let shown = tempfile::tempdir().unwrap();
    show(&shown, &one, "10.0.0.1:7");
    show(&shown, &other, "10.0.0.2:7");
    let (_fleet, pool) = fleet_of(shown.path(), 4).await;
    let workers = |agent: &Agent| agent.running.record.workers.clone();

    let tokens = prompt(64);
    let to = workers(&one)[0].worker;
    let sequence = sequence(&tokens);
    let asked = |pinned| PlacementRequest {
        sequence: &sequence,
        prompt_tokens: 64,
        pinned: Some(pinned),
        ..PlacementRequest::default()
    };
    let place = pool.place(&asked(to)).unwrap();
    assert_eq!(place.holders(), []);
    let sampling = Sampling { max_tokens: 10, ..Sampling::default() };
    let mut stream = place.client().submit(Submit {
        worker_id: to.worker.0,
        rank: to.rank.into(),
        token_ids: tokens,
        sampling: Some(sampling),
        ..Submit::default()
    });
    answer(&mut stream).await.unwrap();
    until("its blocks are known", || pool.overlap(to, &sequence) == 4).await;

    let place = pool.place(&asked(workers(&other)[0].worker)).unwrap();
    let holder = KvHolder { address: "10.0.0.1:7".into(), blocks: 4 };
    assert_eq!(place.holders(), [holder]);
    // A worker of the same agent shares its tiers.
    let place = pool.place(&asked(workers(&one)[1].worker)).unwrap();
    assert_eq!(place.holders(), []);
    one.stop().await;
    other.stop().await;
}
