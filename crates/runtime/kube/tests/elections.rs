//! Leaders that come and go.

use stator_kube::{Election, ElectionPace, Elector};
use stator_kube_testkit::{Mood, Server, soon};
use std::time::Duration;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/n/leases";

/// Looks often; a lease lasts long.
const PATIENT: ElectionPace = ElectionPace {
    duration: Duration::from_secs(60),
    renew_deadline: Duration::from_secs(50),
    retry: Duration::from_millis(10),
    look_timeout: Duration::from_secs(5),
};
/// A lease runs out soon.
const HASTY: ElectionPace = ElectionPace {
    duration: Duration::from_secs(1),
    renew_deadline: Duration::from_millis(500),
    retry: Duration::from_millis(10),
    look_timeout: Duration::from_millis(200),
};

fn candidate(server: &Server, identity: &str, pace: ElectionPace) -> Election {
    Elector::new(&server.cluster(), "n", "p", identity).with_pace(pace).start()
}

async fn until(election: &Election, leading: bool) {
    let mut leads = election.leading();
    soon(leads.wait_for(|leads| *leads == leading)).await.expect("the candidate is at work");
}

#[tokio::test]
async fn one_leads_and_another_follows_when_it_resigns() {
    let server = Server::start().await;
    let first = candidate(&server, "first", PATIENT);
    until(&first, true).await;
    let second = candidate(&server, "second", PATIENT);
    let asked = server.requests(LEASES);
    server.asked_more_than(LEASES, asked + 6).await;
    assert!(!*second.leading().borrow());
    first.resign().await;
    until(&second, true).await;
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_when_its_lease_runs_out() {
    let server = Server::start().await;
    let first = candidate(&server, "first", HASTY);
    until(&first, true).await;
    let second = candidate(&server, "second", HASTY);
    drop(first);
    until(&second, true).await;
}

#[tokio::test]
async fn a_leader_that_cannot_renew_stops_leading_until_it_can() {
    let server = Server::start().await;
    let only = candidate(&server, "only", HASTY);
    until(&only, true).await;
    server.mood(LEASES, Mood::Stalled);
    until(&only, false).await;
    server.mood(LEASES, Mood::Good);
    until(&only, true).await;
}
