//! Tests with real files.

use super::{FileError, decode, follow, load};
use crate::{PoolView, worker_of};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const TWO: &str = r#"
endpoints:
- {name: a, address: 10.0.0.1, port: "8000", labels: {llm-d.ai/role: prefill}}
- {name: b, namespace: n, address: "fd00::1", ports: [8000, 8001]}
objectives: {batch: -1}
rewrites:
- {name: r, rules: [{models: [x], targets: [{model: y, weight: 1}]}]}
"#;
const ONE: &str = "endpoints: [{name: a, address: 10.0.0.1, port: 8000}]";

fn view(content: &str) -> Result<PoolView, Vec<String>> {
    decode::view(content.as_bytes())
}

fn check_faults(content: &str, expected: &[&str]) {
    assert_eq!(view(content).expect_err("the file is wrong"), expected);
}

#[test]
fn a_file_says_all_that_a_cluster_can() {
    let view = view(TWO).expect("a good file");
    assert!(view.synced && view.stale_since.is_none());
    assert_eq!(view.target_ports, [8000, 8001]);
    assert_eq!(view.priority("batch"), Some(-1));
    assert_eq!(view.rewrites.rewrite("x", 0).expect("a rule").model, "y");
    assert!(view.endpoints.is_sorted_by_key(|endpoint| endpoint.worker));
    let mut endpoints: Vec<_> =
        view.endpoints.iter().map(|e| (e.name.to_string(), e.address.to_string())).collect();
    endpoints.sort();
    let expected =
        [("a", "10.0.0.1:8000"), ("b-rank-0", "[fd00::1]:8000"), ("b-rank-1", "[fd00::1]:8001")];
    assert_eq!(endpoints, expected.map(|(name, at)| (name.to_owned(), at.to_owned())));
    let a = view.endpoints.iter().find(|e| &*e.name == "a").expect("a");
    assert!(a.roles.prefill && &*a.namespace == "default");
}

#[test]
fn json_is_as_good_and_no_endpoints_are_allowed() {
    let json = r#"{"endpoints": [{"name": "a", "address": "10.0.0.1", "port": 8000}]}"#;
    assert_eq!(view(json), view(ONE));
    assert!(view("endpoints: []").expect("a good file").synced);
}

#[test]
fn all_faults_are_told_with_their_paths() {
    check_faults(
        "endpoints: [{name: a, address: host, port: 0}, {port: 1, x: 2}]\nrewrites: 3",
        &[
            "endpoints[0].address: \"host\" is not an IP address",
            "endpoints[0].port: 0 is not a whole number in 1..=65535",
            "endpoints[1].x: unknown key, known are name, namespace, address, port, ports, labels",
            "endpoints[1].address: missing",
            "endpoints[1].name: missing",
            "rewrites: 3 is not a list",
        ],
    );
    check_faults(
        "endpoints: [{name: a, address: '::1', port: 1, ports: [2]}]\nobjectives: {b: x}",
        &[
            "endpoints[0].port: give either port or ports",
            "objectives.b: \"x\" is not a whole number in -2147483648..=2147483647",
        ],
    );
    check_faults("- a", &["file: [\"a\"] is not a map", "endpoints: missing"]);
    check_faults(
        &format!("{ONE}\nappProtocol: h3"),
        &["appProtocol: \"h3\" is not http or kubernetes.io/h2c"],
    );
}

#[test]
fn what_is_given_twice_is_refused() {
    let entry = "{name: a, address: 10.0.0.1, port: 1}";
    let twice = &format!("endpoints: [{entry}, {entry}]");
    check_faults(twice, &["endpoints[1].name: \"a\" is given twice"]);
    let ports = "endpoints: [{name: a, address: 10.0.0.1, ports: [1, 1]}]";
    check_faults(ports, &["endpoints[0].ports: empty, or a port is given twice"]);
    let rewrites = "endpoints: []\nrewrites: [{name: r, rules: []}, {name: r, rules: [{}]}]";
    check_faults(
        rewrites,
        &[
            "rewrites[1].rules[0].targets: give at least one",
            "rewrites[1].name: \"r\" is given twice",
        ],
    );
}

#[test]
fn a_thousand_faults_are_told_as_a_few() {
    let entries = "{},".repeat(1000);
    let faults = view(&format!("endpoints: [{entries}]")).expect_err("the file is wrong");
    assert_eq!(faults.len(), 32);
}

/// Waits until the view is as `accept` wants it.
async fn until(
    view: &mut watch::Receiver<Arc<PoolView>>,
    accept: impl Fn(&PoolView) -> bool,
) -> Arc<PoolView> {
    let found = tokio::time::timeout(Duration::from_secs(30), view.wait_for(|view| accept(view)));
    found.await.expect("the view changes in time").expect("the file is followed").clone()
}

/// Puts a file in the place of another at once, as editors and `kubectl` do.
fn replace(path: &Path, content: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, content).expect("the directory is ours");
    std::fs::rename(new, path).expect("the directory is ours");
}

#[tokio::test]
async fn a_file_is_followed_through_changes_and_faults() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("endpoints.yaml");
    let watched = follow(&path, Some(Duration::from_millis(1)));
    let mut view = watched.view();
    assert!(!until(&mut view, |view| view.stale_since.is_some()).await.synced);

    std::fs::write(&path, ONE).expect("the directory is ours");
    let one = until(&mut view, |view| view.synced).await;
    assert_eq!((one.endpoints.len(), one.stale_since), (1, None));

    replace(&path, "endpoints: [{name: broken");
    let broken = until(&mut view, |view| view.stale_since.is_some()).await;
    assert!(broken.synced && broken.endpoints == one.endpoints);

    replace(&path, TWO);
    let two = until(&mut view, |view| view.endpoints.len() == 3).await;
    assert_eq!(two.stale_since, None);

    std::fs::remove_file(&path).expect("the directory is ours");
    let gone = until(&mut view, |view| view.stale_since.is_some()).await;
    assert_eq!(gone.endpoints.len(), 3);
}

#[tokio::test]
async fn endpoints_that_did_not_change_stay_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("endpoints.yaml");
    std::fs::write(&path, ONE).expect("the directory is ours");
    let watched = follow(&path, Some(Duration::from_millis(1)));
    let mut view = watched.view();
    let before = until(&mut view, |view| view.synced).await;
    replace(&path, &format!("{ONE}\nobjectives: {{x: 1}}"));
    let after = until(&mut view, |view| view.priority("x").is_some()).await;
    assert!(Arc::ptr_eq(&before.endpoints[0], &after.endpoints[0]));
}

#[tokio::test]
async fn a_file_is_loaded_once_or_told_what_is_wrong_with_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("endpoints.yaml");
    let error = load(&path).await.expect_err("there is no file");
    assert!(matches!(error, FileError::Unreadable { .. }));
    std::fs::write(&path, "endpoints: 3").expect("the directory is ours");
    let error = load(&path).await.expect_err("the file is wrong");
    assert!(error.to_string().ends_with("endpoints.yaml: endpoints: 3 is not a list"));
    std::fs::write(&path, ONE).expect("the directory is ours");
    assert_eq!(load(&path).await.expect("a good file").endpoints.len(), 1);
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9.:]{0,8}".prop_map(Value::from),
    ];
    let key =
        "endpoints|objectives|rewrites|name|address|ports?|labels|rules|models|targets|weight|x";
    leaf.prop_recursive(5, 64, 4, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(key, inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

#[test]
fn a_file_that_is_too_deep_is_refused() {
    let faults = view(&"[".repeat(100_000)).expect_err("it is too deep");
    assert!(faults[0].contains("recursion limit exceeded"), "{faults:?}");
}

proptest! {
    /// Whatever stands in a file, it is taken or refused with a few words.
    #[test]
    fn any_file_is_taken_or_refused(value in any_value()) {
        if let Err(faults) = view(&value.to_string()) {
            prop_assert!((1..=32).contains(&faults.len()));
        }
    }

    /// Entries become endpoints, one for each port, whatever their order.
    #[test]
    fn entries_become_endpoints(entries in btree_map("[a-d]", vec(1u16.., 1..3), 0..4)) {
        let list: Vec<_> = entries
            .iter()
            .map(|(name, ports)| match ports.as_slice() {
                [port] => json!({"name": name, "address": "10.0.0.1", "port": port}),
                _ => json!({"name": name, "address": "10.0.0.1", "ports": ports}),
            })
            .collect();
        let distinct = entries.values().all(|ports| ports.len() < 2 || ports[0] != ports[1]);
        let view = view(&json!({"endpoints": list}).to_string());
        prop_assert_eq!(view.is_ok(), distinct);
        let Ok(view) = view else { return Ok(()) };
        let mut expected: Vec<_> = entries
            .iter()
            .flat_map(|(name, ports)| {
                let worker = worker_of("default", name);
                ports.iter().enumerate().map(move |(rank, port)| (worker, rank as u16, *port))
            })
            .collect();
        expected.sort();
        let endpoints = view.endpoints.iter();
        let found = endpoints.map(|e| (e.worker.worker, e.worker.rank, e.address.port()));
        prop_assert!(found.eq(expected));
    }
}
