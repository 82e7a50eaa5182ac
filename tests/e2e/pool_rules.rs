//! What the API server refuses of an `InferencePool` v1, rule by rule.
//!
//! Source: the resource's definition in the inference extension.

use hyper::StatusCode;
use serde_json::{Value, json};
use stator_tests::kube::{Cluster, Namespace};
use stator_tests::kube_api::Refusal;
use stator_tests::kube_objects::pool;

/// Fields of what is checked, by JSON pointer, a value for one of them, and what the refusal says
/// beside the field's path; `None` where the value is fine. [`Value::Null`] takes the field away.
type Case = (&'static str, Value, Option<&'static str>);

/// `text` so many times over.
fn long(text: &str, count: usize) -> Value {
    json!(text.repeat(count))
}

/// Labels `a0`, `a1` and so on.
fn labels(count: usize) -> Value {
    (0..count).map(|n| (format!("a{n}"), json!("x"))).collect::<serde_json::Map<_, _>>().into()
}

/// Ports 8000, 8001 and so on.
fn ports(count: u16) -> Value {
    (0..count).map(|n| json!({ "number": 8000 + n })).collect()
}

fn put(object: &mut Value, pointer: &str, value: Value) {
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer has a slash");
    let parent = object.pointer_mut(parent).expect("the field's object is there");
    match (parent, value) {
        (Value::Object(parent), Value::Null) => drop(parent.remove(field)),
        (Value::Array(parent), value) => parent[field.parse::<usize>().expect("a place")] = value,
        (parent, value) => parent[field] = value,
    }
}

/// The path of a field as the API server writes it.
fn path(pointer: &str) -> String {
    let parts = pointer.split('/').skip(1);
    let parts = parts.map(|part| match part.parse::<usize>() {
        Ok(place) => format!("[{place}]"),
        Err(_) => format!(".{part}"),
    });
    parts.collect::<String>().trim_start_matches('.').to_owned()
}

#[track_caller]
fn check(case: &Case, answer: Result<Value, Refusal>) {
    let (pointer, value, expected) = case;
    match (answer, expected) {
        (Ok(_), None) => {}
        (Ok(pool), Some(because)) => panic!("{pointer} {value}: not {because:?} but {pool}"),
        (Err(refusal), None) => panic!("{pointer} {value}: {refusal:?}"),
        (Err(refusal), Some(because)) => {
            assert_eq!(refusal.status, StatusCode::UNPROCESSABLE_ENTITY, "{refusal:?}");
            let field = path(pointer);
            let told = refusal.message.contains(&field) && refusal.message.contains(because);
            assert!(told, "{field} and {because:?} are not both in {:?}", refusal.message);
        }
    }
}

async fn check_specs(namespace: &Namespace, cases: &[Case]) {
    for (n, case) in cases.iter().enumerate() {
        // One by one, under names of their own: what is applied again is merged.
        let mut pool = pool(&format!("pool-{n}"), json!({ "app": "engine" }), &[8000]);
        put(&mut pool, case.0, case.1.clone());
        check(case, namespace.try_apply(pool).await);
    }
}

const MATCH: &str = "/spec/selector/matchLabels";
const PORTS: &str = "/spec/targetPorts";
const NUMBER: &str = "/spec/targetPorts/0/number";
const PICKER: &str = "/spec/endpointPickerRef";
const PROTOCOL: &str = "/spec/appProtocol";
const REQUIRED: Option<&str> = Some("Required value");
const SYNTAX: Option<&str> = Some("should match");
const UNSUPPORTED: Option<&str> = Some("Unsupported value");

#[tokio::test]
async fn the_rules_of_a_pools_spec_are_enforced() {
    let Some(cluster) = Cluster::shared().await else { return };
    let namespace = cluster.namespace().await;
    let label = |value: Value| json!({ "app": value });
    check_specs(
        &namespace,
        &[
            ("/spec", Value::Null, REQUIRED),
            ("/spec/selector", Value::Null, REQUIRED),
            (MATCH, Value::Null, REQUIRED),
            (MATCH, json!({}), Some("at least 1")),
            (MATCH, labels(1), None),
            (MATCH, labels(64), None),
            (MATCH, labels(65), Some("at most 64")),
            (MATCH, label(long("v", 63)), None),
            (MATCH, label(long("v", 64)), Some("63")),
            (MATCH, label(json!("")), None),
            (MATCH, label(json!("A.b_c-9")), None),
            (MATCH, label(json!("-a")), SYNTAX),
            (MATCH, label(json!("a b")), SYNTAX),
            (MATCH, json!({ "example.com/app": "x" }), None),
            (PORTS, Value::Null, REQUIRED),
            (PORTS, json!([]), Some("at least 1")),
            (PORTS, ports(8), None),
            (PORTS, ports(9), Some("at most 8")),
            (PORTS, json!([{ "number": 1 }, { "number": 1 }]), Some("must be unique")),
            (NUMBER, Value::Null, REQUIRED),
            (NUMBER, json!(0), Some("greater than or equal to 1")),
            (NUMBER, json!(1), None),
            (NUMBER, json!(65535), None),
            (NUMBER, json!(65536), Some("less than or equal to 65535")),
            (PROTOCOL, json!("http"), None),
            (PROTOCOL, json!("kubernetes.io/h2c"), None),
            (PROTOCOL, json!("grpc"), UNSUPPORTED),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_rules_of_a_pools_picker_are_enforced() {
    let Some(cluster) = Cluster::shared().await else { return };
    let namespace = cluster.namespace().await;
    check_specs(
        &namespace,
        &[
            (PICKER, Value::Null, None),
            (PICKER, json!({ "name": "a" }), Some("port is required when kind is 'Service'")),
            (
                PICKER,
                json!({ "name": "a", "kind": "Service" }),
                Some("port is required when kind is 'Service'"),
            ),
            (PICKER, json!({ "name": "a", "kind": "Other" }), None),
            ("/spec/endpointPickerRef/name", Value::Null, REQUIRED),
            ("/spec/endpointPickerRef/name", json!(""), Some("at least 1")),
            ("/spec/endpointPickerRef/name", long("n", 253), None),
            ("/spec/endpointPickerRef/name", long("n", 254), Some("253")),
            ("/spec/endpointPickerRef/group", json!(""), None),
            ("/spec/endpointPickerRef/group", json!("example.com"), None),
            ("/spec/endpointPickerRef/group", long("g", 253), None),
            ("/spec/endpointPickerRef/group", long("g", 254), Some("253")),
            ("/spec/endpointPickerRef/group", json!("Example"), SYNTAX),
            ("/spec/endpointPickerRef/kind", long("K", 63), None),
            ("/spec/endpointPickerRef/kind", long("K", 64), Some("63")),
            ("/spec/endpointPickerRef/kind", json!("9"), SYNTAX),
            ("/spec/endpointPickerRef/port/number", Value::Null, REQUIRED),
            ("/spec/endpointPickerRef/port/number", json!(0), Some("greater than or equal to 1")),
            ("/spec/endpointPickerRef/port/number", json!(65535), None),
            (
                "/spec/endpointPickerRef/port/number",
                json!(65536),
                Some("less than or equal to 65535"),
            ),
            ("/spec/endpointPickerRef/failureMode", json!("FailOpen"), None),
            ("/spec/endpointPickerRef/failureMode", json!("FailClose"), None),
            ("/spec/endpointPickerRef/failureMode", json!("Fail"), UNSUPPORTED),
        ],
    )
    .await;
}

/// A parent's status, whose conditions are these.
fn parent(conditions: &[Value]) -> Value {
    json!({ "parentRef": { "name": "gateway" }, "controllerName": "example.com/controller",
            "conditions": conditions })
}

fn condition(kind: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": "Accepted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

#[tokio::test]
async fn the_rules_of_a_pools_status_are_enforced() {
    let Some(cluster) = Cluster::shared().await else { return };
    let namespace = cluster.namespace().await;
    let pool = namespace.apply(pool("pool", json!({ "app": "engine" }), &[8000])).await;
    let kinds = |count: u8| (0..count).map(|n| condition(&format!("Kind{n}"))).collect::<Vec<_>>();
    const PARENTS: &str = "/status/parents";
    const CONTROLLER: &str = "/status/parents/0/controllerName";
    const CONDITIONS: &str = "/status/parents/0/conditions";
    const KIND: &str = "/status/parents/0/conditions/0";
    let parents = |count: usize| Value::from(vec![parent(&[]); count]);
    let cases: Vec<Case> = vec![
        (PARENTS, parents(32), None),
        (PARENTS, parents(33), Some("at most 32")),
        ("/status/parents/0/parentRef", Value::Null, REQUIRED),
        ("/status/parents/0/parentRef/name", Value::Null, REQUIRED),
        ("/status/parents/0/parentRef/name", json!(""), Some("at least 1")),
        ("/status/parents/0/parentRef/name", long("n", 253), None),
        ("/status/parents/0/parentRef/name", long("n", 254), Some("253")),
        ("/status/parents/0/parentRef/namespace", long("n", 63), None),
        ("/status/parents/0/parentRef/namespace", long("n", 64), Some("63")),
        ("/status/parents/0/parentRef/group", long("g", 254), Some("253")),
        ("/status/parents/0/parentRef/kind", long("K", 64), Some("63")),
        (CONTROLLER, Value::Null, None),
        (CONTROLLER, json!("controller"), SYNTAX),
        (CONTROLLER, json!("Example/controller"), SYNTAX),
        (CONTROLLER, json!("example.com/a/b"), None),
        (CONTROLLER, long("a/", 127), Some("253")),
        (CONDITIONS, kinds(8).into(), None),
        (CONDITIONS, kinds(9).into(), Some("at most 8")),
        (CONDITIONS, json!([condition("A"), condition("A")]), Some("Duplicate value")),
        (KIND, json!({ "type": "A" }), REQUIRED),
        ("/status/parents/0/conditions/0/status", json!("Maybe"), UNSUPPORTED),
        ("/status/parents/0/conditions/0/type", json!("a b"), SYNTAX),
        ("/status/parents/0/conditions/0/reason", json!("not one word"), SYNTAX),
    ];
    for case in &cases {
        let mut changed = json!({ "status": { "parents": [parent(&[condition("Accepted")])] } });
        put(&mut changed, case.0, case.1.clone());
        let answer = namespace.api.try_patch_status(&pool, &changed["status"]).await;
        check(case, answer);
    }
    let mut defaults = parent(&[]);
    put(&mut defaults, "/parentRef", json!({ "name": "gateway" }));
    let pool = namespace.api.patch_status(&pool, &json!({ "parents": [defaults] })).await;
    let reference = &pool["status"]["parents"][0]["parentRef"];
    assert_eq!(reference["group"], "gateway.networking.k8s.io");
    assert_eq!(reference["kind"], "Gateway");
}
