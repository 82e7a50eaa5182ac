//! Tests of a pool's state: what reports come to, in tables and against plain maps.

use super::resource::Group;
use super::state::{PoolState, Update};
use crate::{Pod, PoolSpec, Rewrite, RewriteRule, RewriteTarget, endpoints_of};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use stator_kube::Report;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn pod(name: &str, app: &str, ready: bool) -> Pod {
    let last = name.bytes().last().unwrap_or(1);
    Pod {
        namespace: "n".into(),
        name: name.into(),
        uid: "u".into(),
        labels: Arc::new([("app".to_owned(), app.to_owned())].into()),
        node: None,
        active_ports: None,
        ip: Some(Ipv4Addr::new(10, 0, 0, last).into()),
        ready,
        deleting: false,
    }
}

fn spec(app: &str, ports: &[u16]) -> PoolSpec {
    PoolSpec::standalone(&format!("app={app}"), ports).expect("a pool")
}

fn pool(spec: &PoolSpec) -> Update {
    Update::Pool(Report::Set("p".into(), Some(spec.clone())))
}

fn pods(generation: u64, pods: &[Pod]) -> Update {
    let named = pods.iter().map(|pod| (pod.name.to_string(), pod.clone()));
    Update::Pods(generation, Report::Listed(named.collect()))
}

/// A state that has heard all there is to hear about policies: nothing.
fn state() -> PoolState {
    let mut state = PoolState::new();
    for group in Group::ALL {
        state.apply(Update::Objectives(group, Report::Listed(BTreeMap::new())), Instant::now());
        state.apply(Update::Rewrites(group, Report::Listed(BTreeMap::new())), Instant::now());
    }
    state
}

fn apply(state: &mut PoolState, updates: impl IntoIterator<Item = Update>) {
    for update in updates {
        state.apply(update, Instant::now());
    }
}

fn check(state: &PoolState, synced: bool, expected: &[&str]) {
    let view = state.view();
    let mut names: Vec<_> = view.endpoints.iter().map(|endpoint| &*endpoint.name).collect();
    names.sort_unstable();
    assert_eq!((view.synced, names), (synced, expected.to_vec()));
}

fn generations(state: &PoolState) -> Vec<u64> {
    state.pod_watches().map(|watch| watch.generation).collect()
}

#[test]
fn a_pool_is_synced_when_it_and_its_pods_are_known() {
    let mut state = state();
    check(&state, false, &[]);
    apply(&mut state, [pool(&spec("x", &[1]))]);
    check(&state, false, &[]);
    assert_eq!(generations(&state), [1]);
    apply(&mut state, [pods(1, &[pod("a", "x", true), pod("b", "x", false)])]);
    check(&state, true, &["a-rank-0"]);
    apply(&mut state, [Update::Pods(1, Report::Set("b".into(), Some(pod("b", "x", true))))]);
    apply(&mut state, [Update::Pods(1, Report::Set("a".into(), None))]);
    check(&state, true, &["b-rank-0"]);
}

#[test]
fn a_pool_waits_for_an_answer_about_every_kind_of_policy() {
    let mut state = PoolState::standalone(spec("x", &[1]));
    apply(&mut state, [pods(1, &[])]);
    for group in Group::ALL {
        check(&state, false, &[]);
        apply(&mut state, [Update::Objectives(group, Report::Listed(BTreeMap::new()))]);
        check(&state, false, &[]);
        // A server that refuses has answered too.
        apply(&mut state, [Update::Rewrites(group, Report::Lost)]);
    }
    check(&state, true, &[]);
    assert_eq!(state.view().stale_since, None, "policies do not make endpoints old");
}

#[test]
fn new_ports_are_used_at_once() {
    let mut state = state();
    apply(&mut state, [pool(&spec("x", &[1])), pods(1, &[pod("a", "x", true)])]);
    apply(&mut state, [pool(&spec("x", &[1, 2]))]);
    check(&state, true, &["a-rank-0", "a-rank-1"]);
    assert_eq!(generations(&state), [1]);
    assert_eq!(state.view().target_ports, [1, 2]);
}

#[test]
fn a_new_selector_replaces_endpoints_only_when_its_pods_are_known() {
    let mut state = state();
    apply(&mut state, [pool(&spec("x", &[1])), pods(1, &[pod("a", "x", true)])]);
    apply(&mut state, [pool(&spec("y", &[2, 3]))]);
    check(&state, true, &["a-rank-0"]);
    assert_eq!(generations(&state), [1, 2]);
    // The old pods are still followed.
    apply(&mut state, [Update::Pods(1, Report::Set("c".into(), Some(pod("c", "x", true))))]);
    check(&state, true, &["a-rank-0", "c-rank-0"]);
    apply(&mut state, [pods(2, &[pod("b", "y", true)])]);
    check(&state, true, &["b-rank-0", "b-rank-1"]);
    assert_eq!(generations(&state), [2]);
    apply(&mut state, [pods(1, &[pod("a", "x", true)])]);
    check(&state, true, &["b-rank-0", "b-rank-1"]);
}

#[test]
fn a_selector_that_changes_back_needs_no_new_pods() {
    let mut state = state();
    apply(&mut state, [pool(&spec("x", &[1])), pods(1, &[pod("a", "x", true)])]);
    apply(&mut state, [pool(&spec("y", &[1])), pool(&spec("x", &[1]))]);
    check(&state, true, &["a-rank-0"]);
    assert_eq!(generations(&state), [1]);
}

#[test]
fn endpoints_carry_the_labels_of_their_node() {
    const ZONE: &str = "topology.kubernetes.io/zone";
    let mut state = state().with_node_labels(&["kubernetes.io/hostname".into(), ZONE.into()]);
    let on = |name: &str, node: &str| Pod { node: Some(node.into()), ..pod(name, "x", true) };
    let mut own = on("b", "n1");
    Arc::make_mut(&mut own.labels).insert(ZONE.into(), "its-own".into());
    apply(&mut state, [pool(&spec("x", &[1])), pods(1, &[on("a", "n1"), own])]);
    let labels = |state: &PoolState| {
        let label = |name: &str| {
            let of = |endpoint: &Arc<stator_epp_scheduler::Endpoint>| {
                (endpoint.pod.to_string(), endpoint.label(name).unwrap_or("-").to_owned())
            };
            state.view().endpoints.iter().map(of).collect::<BTreeMap<_, _>>()
        };
        ["kubernetes.io/hostname", ZONE].map(|name| label(name).into_values().collect::<Vec<_>>())
    };
    assert_eq!(labels(&state), [["n1", "n1"], ["-", "its-own"]], "a pod tells its node's name");
    let node = |zone: &str| Arc::new([(ZONE.to_owned(), zone.to_owned())].into());
    let set = |zone: &str| Update::Nodes(Report::Set("n1".into(), Some(node(zone))));
    apply(&mut state, [set("z1")]);
    assert_eq!(labels(&state), [["n1", "n1"], ["z1", "its-own"]]);
    apply(&mut state, [set("z2")]);
    assert_eq!(labels(&state)[1], ["z2", "its-own"]);
    apply(&mut state, [Update::Nodes(Report::Set("n1".into(), None))]);
    assert_eq!(labels(&state)[1], ["-", "its-own"]);
    let before = state.view().endpoints;
    let (gone, now) = (Update::Nodes(Report::Lost), Instant::now());
    state.apply(gone, now);
    assert_eq!(state.view().stale_since, None, "picks do not depend on nodes");
    assert!(before.iter().zip(state.view().endpoints).all(|(one, two)| Arc::ptr_eq(one, &two)));
}

#[test]
fn a_deleted_pool_has_no_endpoints() {
    let mut state = state();
    apply(&mut state, [pool(&spec("x", &[1])), pods(1, &[pod("a", "x", true)])]);
    apply(&mut state, [Update::Pool(Report::Set("p".into(), None))]);
    check(&state, false, &[]);
    assert!(generations(&state).is_empty());
    apply(&mut state, [pool(&spec("x", &[1]))]);
    check(&state, false, &[]);
    apply(&mut state, [pods(2, &[pod("a", "x", true)])]);
    check(&state, true, &["a-rank-0"]);
}

#[test]
fn a_lost_watch_ages_the_view_and_changes_nothing_else() {
    let mut state = state();
    apply(&mut state, [pool(&spec("x", &[1])), pods(1, &[pod("a", "x", true)])]);
    let first = Instant::now();
    let later = first + Duration::from_secs(1);
    state.apply(Update::Pods(1, Report::Lost), later);
    state.apply(Update::Pool(Report::Lost), first);
    check(&state, true, &["a-rank-0"]);
    assert_eq!(state.view().stale_since, Some(first));
    state.apply(Update::Pool(Report::Found), later);
    assert_eq!(state.view().stale_since, Some(later));
    state.apply(Update::Pods(1, Report::Found), later);
    assert_eq!(state.view().stale_since, None);
}

#[test]
fn policies_of_both_groups_count_and_the_newer_group_wins() {
    let mut state = state();
    let set = |group, name: &str, priority| {
        Update::Objectives(group, Report::Set(name.into(), Some(priority)))
    };
    apply(&mut state, [set(Group::Legacy, "a", 1), set(Group::Legacy, "b", 2)]);
    apply(&mut state, [set(Group::LlmD, "b", 3), set(Group::LlmD, "c", -1)]);
    let view = state.view();
    assert_eq!(["a", "b", "c", "d"].map(|n| view.priority(n)), [Some(1), Some(3), Some(-1), None]);
    assert_eq!(state.conflicts().into_iter().collect::<Vec<_>>(), ["b"]);
    apply(&mut state, [Update::Objectives(Group::LlmD, Report::Set("b".into(), None))]);
    assert_eq!(state.view().priority("b"), Some(2));
    assert!(state.conflicts().is_empty());
}

#[test]
fn rewrites_of_both_groups_count_and_the_newer_group_wins() {
    let mut state = state();
    let set = |group, name: &str, from: &str, to: &str| {
        let target = RewriteTarget { model: to.into(), weight: None };
        let rule = RewriteRule { models: Some(vec![from.into()]), targets: vec![target] };
        let rewrite = Rewrite { name: name.into(), rules: vec![rule], ..Rewrite::default() };
        Update::Rewrites(group, Report::Set(name.into(), Some(rewrite)))
    };
    apply(&mut state, [set(Group::Legacy, "r", "m", "old"), set(Group::Legacy, "s", "n", "x")]);
    apply(&mut state, [set(Group::LlmD, "r", "m", "new")]);
    let view = state.view();
    let rewritten = |model| view.rewrites.rewrite(model, 0).map(|found| found.model.to_owned());
    assert_eq!(["m", "n", "o"].map(rewritten), [Some("new".into()), Some("x".into()), None]);
}

fn any_pod() -> impl Strategy<Value = Pod> {
    ("[a-d]", "[xy]", any::<bool>()).prop_map(|(name, app, ready)| pod(&name, &app, ready))
}

fn any_report() -> impl Strategy<Value = Report<Pod>> {
    prop_oneof![
        btree_map("[a-d]", any_pod(), 0..4).prop_map(|pods| {
            Report::Listed(pods.into_values().map(|pod| (pod.name.to_string(), pod)).collect())
        }),
        any_pod().prop_map(|pod| Report::Set(pod.name.to_string(), Some(pod))),
        "[a-d]".prop_map(|name| Report::Set(name, None)),
        Just(Report::Lost),
        Just(Report::Found),
    ]
}

proptest! {
    /// Whatever is reported, the endpoints are those of the pods that a plain map would hold,
    /// and those that did not change are the very same.
    #[test]
    fn endpoints_agree_with_a_plain_map(reports in vec(any_report(), 0..40)) {
        let spec = spec("x", &[1, 2]);
        let mut state = PoolState::standalone(spec.clone());
        apply(&mut state, [pods(1, &[])]);
        let mut plain = BTreeMap::new();
        let mut before = state.view().endpoints;
        for report in reports {
            match report.clone() {
                Report::Listed(pods) => plain = pods,
                Report::Set(name, Some(pod)) => drop(plain.insert(name, pod)),
                Report::Set(name, None) => drop(plain.remove(&name)),
                Report::Lost | Report::Found => {}
            }
            apply(&mut state, [Update::Pods(1, report)]);
            let found = state.view().endpoints;
            let mut expected: Vec<_> =
                plain.values().flat_map(|pod| endpoints_of(pod, &spec)).collect();
            expected.sort_by_key(|endpoint| endpoint.worker);
            prop_assert!(found.iter().map(|endpoint| &**endpoint).eq(expected.iter()));
            for endpoint in &found {
                let same = before.iter().find(|known| *known == endpoint);
                prop_assert!(same.is_none_or(|known| Arc::ptr_eq(known, endpoint)));
            }
            before = found;
        }
    }
}
