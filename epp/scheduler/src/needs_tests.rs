//! Endpoints that lack what a request needs, or that it prefers.

use super::*;
use crate::testkit::{endpoint, program, rank};
use crate::{EndpointPins, Lora, Roles};
use stator_placement::{Adapter, Affinity, Constraint, Label, Needs, Profile, SessionSettings};
use std::collections::BTreeMap;

/// An endpoint of a pod in this zone.
fn in_zone(number: u8, zone: &str) -> Arc<Endpoint> {
    let labels = Arc::new(BTreeMap::from([("zone".to_owned(), zone.to_owned())]));
    Arc::new(Endpoint { labels, ..(*endpoint(number)).clone() })
}

fn pool(endpoints: &[Arc<Endpoint>]) -> Scheduler {
    let mut pool = Scheduler::new(program(), SchedulerSettings::default());
    pool.set_endpoints(endpoints);
    pool
}

fn call(ms: u64) -> Call {
    Call { now: Time::from_millis(ms), seed: 7, watched: true, scores: false }
}

/// The pod that a request goes to.
fn ask(pool: &mut Scheduler, request: &Request<'_>) -> Result<String, ScheduleError> {
    let decision = pool.schedule(request, call(1))?;
    Ok(decision.targets[0].pod.to_string())
}

fn label(text: &str) -> Label {
    Label::new(text)
}

fn needs(required: &[&str]) -> Needs {
    let required = required.iter().map(|text| label(text)).collect();
    Needs::new(required, Vec::new()).expect("no weight is wrong")
}

/// An agent whose worker has these labels and adapters, and no others.
fn agent(labels: &[&str], adapters: &[&str]) -> Equipment {
    let profile = Profile {
        labels: labels.iter().map(|text| label(text)).collect(),
        adapters: adapters.iter().map(|name| Adapter::new(name)).collect(),
        fixed_adapters: true,
        ..Profile::default()
    };
    Equipment { profile, ..Equipment::default() }
}

#[test]
fn labels_of_pods_and_of_agents_are_what_requests_can_need() {
    let mut pool = pool(&[in_zone(1, "a"), in_zone(2, "b"), in_zone(3, "b")]);
    pool.set_equipment(rank(3), agent(&["pool=batch"], &[]));
    let mut check = |required: &[&str], expected: Result<&str, ScheduleError>| {
        let needs = needs(required);
        let request = Request { needs: Some(&needs), ..Request::default() };
        assert_eq!(ask(&mut pool, &request), expected.map(str::to_owned), "{required:?}");
    };
    check(&["zone=a"], Ok("pod1"));
    check(&["zone=b"], Ok("pod2"));
    check(&["zone=b", "pool=batch"], Ok("pod3"));
    let [zone, batch] = ["zone=a", "pool=batch"].map(|text| Constraint::Label(label(text)));
    let both = PickError::Contradictory { one: zone, other: batch };
    check(&["zone=a", "pool=batch"], Err(ScheduleError::Unmet(both)));
    let none = PickError::Unsatisfied { constraint: Constraint::Label(label("zone=c")) };
    check(&["zone=c"], Err(ScheduleError::Unmet(none)));
}

#[test]
fn needs_hold_where_no_plug_in_asks_for_costs() {
    let program = Program { uses_kv: false, ..program() };
    let mut pool = Scheduler::new(program, SchedulerSettings::default());
    pool.set_endpoints(&[in_zone(1, "a"), in_zone(2, "b")]);
    let needs = needs(&["zone=b"]);
    let request = Request { needs: Some(&needs), ..Request::default() };
    assert_eq!(ask(&mut pool, &request), Ok("pod2".into()));
}

#[test]
fn a_changed_label_counts_at_once_and_another_life_keeps_it() {
    let mut pool = pool(&[in_zone(1, "a"), in_zone(2, "b")]);
    pool.set_endpoints(&[in_zone(1, "c"), in_zone(2, "b")]);
    pool.set_life(rank(1), Generation(5));
    let needs = needs(&["zone=c"]);
    let request = Request { needs: Some(&needs), ..Request::default() };
    assert_eq!(ask(&mut pool, &request), Ok("pod1".into()));
}

#[test]
fn a_preferred_label_makes_an_endpoint_cheaper() {
    let mut pool = pool(&[in_zone(1, "a"), in_zone(2, "b")]);
    let needs = Needs::new(Vec::new(), vec![(label("zone=b"), 1.0)]).expect("the weight is right");
    let prompt = crate::Prompt { tokens: 64, ..Default::default() };
    let request = Request { needs: Some(&needs), prompt, ..Request::default() };
    assert_eq!(ask(&mut pool, &request), Ok("pod2".into()));
    assert_eq!(ask(&mut pool, &Request { needs: None, ..request }), Ok("pod1".into()));
}

#[test]
fn an_agent_says_which_adapters_there_are_and_a_page_only_which_run() {
    let mut pool = pool(&[endpoint(1), endpoint(2)]);
    let request = Request { adapter: Some(Adapter::new("sql")), ..Request::default() };
    pool.set_equipment(rank(1), agent(&[], &["art"]));
    assert_eq!(ask(&mut pool, &request), Ok("pod2".into()));
    pool.set_equipment(rank(2), agent(&[], &["art"]));
    let lacking = PickError::Unsatisfied { constraint: Constraint::Adapter(Adapter::new("sql")) };
    assert_eq!(ask(&mut pool, &request), Err(ScheduleError::Unmet(lacking)));
    // The agent is gone, and its engine's page is read: it may load the adapter.
    let lora = Lora { max: 1, running: vec!["art".into()], waiting: Vec::new() };
    pool.report(rank(1), EngineLoad { lora: Some(lora), ..EngineLoad::default() });
    assert_eq!(ask(&mut pool, &request), Ok("pod1".into()));
}

#[test]
fn a_session_prefers_the_endpoint_of_its_last_request() {
    let ttl = Duration::from_secs(60);
    let sessions = Some(SessionSettings::new(Affinity::Soft(1.0), ttl, 10));
    let placement = PlacementSettings { sessions, ..PlacementSettings::default() };
    let settings = SchedulerSettings { placement, ..SchedulerSettings::default() };
    let mut pool = Scheduler::new(program(), settings);
    pool.set_endpoints(&[endpoint(1), endpoint(2), endpoint(3)]);
    let prompt = crate::Prompt { tokens: 160, ..Default::default() };
    let of = |session| Request { session, prompt, ..Request::default() };
    assert!(pool.binds_sessions());
    pool.bind(9, rank(3), Time::from_millis(1));
    assert_eq!(ask(&mut pool, &of(Some(9))), Ok("pod3".into()));
    assert_eq!(ask(&mut pool, &of(None)), Ok("pod1".into()));
    assert_eq!(pool.sessions(0, 9), Some(vec![(9, rank(3))]));
}

#[test]
fn only_a_named_endpoint_answers_and_only_a_named_one_computes_prompts() {
    let prefill = Roles { prefill: true, labelled: true, ..Roles::default() };
    let prefill = |number| Arc::new(Endpoint { roles: prefill, ..(*endpoint(number)).clone() });
    let mut pool = pool(&[endpoint(1), endpoint(2), prefill(3), prefill(4)]);
    let agents = stator_protos::WorkerId(77);
    let agents = WorkerRank { worker: agents, rank: 0 };
    pool.set_equipment(rank(2), Equipment { worker: Some(agents), ..Equipment::default() });
    let left = |pool: &Scheduler, pins| {
        let request = Request { pins, ..Request::default() };
        let left = pool.slots.candidates(&request, None, None);
        left.iter().map(|left| left.endpoint.pod.to_string()).collect::<Vec<_>>()
    };
    let pins = |answer, prefill| EndpointPins { answer, prefill };
    assert_eq!(left(&pool, pins(Some(rank(2)), None)), ["pod2", "pod3", "pod4"]);
    assert_eq!(left(&pool, pins(Some(agents), Some(rank(4)))), ["pod2", "pod4"]);
    assert_eq!(left(&pool, pins(None, Some(rank(3)))), ["pod1", "pod2", "pod3"]);
    pool.set_accepting(rank(2), false);
    let request = Request { pins: pins(Some(agents), None), ..Request::default() };
    let gone = PickError::PinnedUnavailable { worker: agents };
    assert_eq!(ask(&mut pool, &request), Err(ScheduleError::Unmet(gone)));
}
