use super::*;
use proptest::prelude::*;
use serde_json::json;

fn graph(version: &str, spec: Value) -> Value {
    let metadata = json!({ "name": "g", "annotations": { "mine": "stays" } });
    json!({ "apiVersion": version, "kind": "DynamoGraphDeployment", "metadata": metadata, "spec": spec })
}

#[test]
fn a_service_becomes_a_component() {
    let old = graph(
        ALPHA,
        json!({ "envs": [{ "name": "A" }], "services": { "W": {
            "componentType": "worker",
            "subComponentType": "prefill",
            "replicas": 2,
            "envFromSecret": "token",
            "envs": [{ "name": "B" }],
            "labels": { "a": "1" },
            "resources": { "limits": { "gpu": "1", "custom": { "rdma/ib": "1" } } },
            "sharedMemory": { "disabled": true },
            "scalingAdapter": { "enabled": true },
            "gpuMemoryService": { "enabled": true, "mode": "intraPod" },
            "volumeMounts": [
                { "name": "models", "mountPoint": "/models" },
                { "name": "cache", "mountPoint": "/cache", "useAsCompilationCache": true },
            ],
            "frontendSidecar": { "image": "door" },
            "extraPodSpec": { "nodeName": "n", "mainContainer": { "image": "i", "args": ["x"] } },
        } } }),
    );
    let new = convert(&old, FormVersion::Beta);
    assert_eq!(new["apiVersion"], BETA);
    assert_eq!(new["spec"]["env"], json!([{ "name": "A" }]));
    let expected = json!({
        "name": "W",
        "type": "prefill",
        "replicas": 2,
        "sharedMemorySize": "0",
        "scalingAdapter": {},
        "experimental": { "gpuMemoryService": { "mode": "IntraPod" } },
        "compilationCache": { "pvcName": "cache", "mountPath": "/cache" },
        "frontendSidecar": "sidecar-frontend",
        "podTemplate": {
            "metadata": { "labels": { "a": "1" } },
            "spec": { "nodeName": "n", "containers": [
                {
                    "name": "main",
                    "image": "i",
                    "args": ["x"],
                    "env": [{ "name": "B" }],
                    "envFrom": [{ "secretRef": { "name": "token" } }],
                    "resources": { "limits": { "nvidia.com/gpu": "1", "rdma/ib": "1" } },
                    "volumeMounts": [{ "name": "models", "mountPath": "/models" }],
                },
                { "name": "sidecar-frontend", "image": "door" },
            ] },
        },
    });
    assert_eq!(new["spec"]["components"], json!([expected]));
}

/// A stored document keeps its form under the stored version's name.
#[test]
fn a_document_is_known_by_its_form() {
    let stored = graph(BETA, json!({ "services": { "F": { "componentType": "frontend" } } }));
    let new = convert(&stored, FormVersion::Beta);
    assert_eq!(new["spec"]["components"], json!([{ "name": "F", "type": "frontend" }]));
}

#[test]
fn a_change_in_one_version_keeps_what_only_the_other_says() {
    let ingress = json!({ "enabled": true });
    let old = graph(
        ALPHA,
        json!({ "pvcs": [{ "name": "p" }], "services": { "F": { "replicas": 1, "ingress": ingress } } }),
    );
    let mut new = convert(&old, FormVersion::Beta);
    new["spec"]["components"][0]["replicas"] = json!(3);
    let back = convert(&new, FormVersion::Alpha);
    assert_eq!(back["spec"]["services"]["F"], json!({ "replicas": 3, "ingress": ingress }));
    assert_eq!(back["spec"]["pvcs"], json!([{ "name": "p" }]));
}

#[test]
fn other_documents_stay_as_they_are() {
    let model = json!({ "apiVersion": ALPHA, "kind": "DynamoModel", "spec": {} });
    assert_eq!(convert(&model, FormVersion::Beta), model);
}

/// A value of one of these fields, for documents of all shapes.
fn fields(names: &'static [(&'static str, &'static str)]) -> impl Strategy<Value = Value> {
    let chosen = proptest::sample::subsequence(names, 0..=names.len());
    chosen.prop_map(|chosen| {
        let fields = chosen.into_iter().map(|(name, text)| {
            (name.to_owned(), serde_json::from_str(text).expect("the tables hold JSON"))
        });
        Value::Object(fields.collect())
    })
}

const SERVICE: &[(&str, &str)] = &[
    ("componentType", "\"worker\""),
    ("subComponentType", "\"decode\""),
    ("replicas", "2"),
    ("envs", r#"[{"name": "A", "value": "1"}]"#),
    ("envFromSecret", "\"s\""),
    ("ingress", r#"{"enabled": true}"#),
    ("autoscaling", r#"{"enabled": true}"#),
    ("resources", r#"{"limits": {"gpu": "1"}}"#),
    ("labels", r#"{"a": "b"}"#),
    ("extraPodMetadata", r#"{"labels": {"c": "d"}}"#),
    ("extraPodSpec", r#"{"mainContainer": {"image": "i"}, "nodeName": "n"}"#),
    ("sharedMemory", r#"{"size": "1Gi"}"#),
    ("failover", r#"{"enabled": false}"#),
    ("volumeMounts", r#"[{"name": "v", "mountPoint": "/v"}]"#),
    ("frontendSidecar", r#"{"image": "d"}"#),
    ("dynamoNamespace", "\"n\""),
];
const COMPONENT: &[(&str, &str)] = &[
    ("type", "\"decode\""),
    ("replicas", "2"),
    ("sharedMemorySize", "0"),
    ("scalingAdapter", "{}"),
    ("frontendSidecar", "\"door\""),
    ("compilationCache", r#"{"pvcName": "c"}"#),
    ("experimental", r#"{"grove": {"forceScalingGroup": true}, "failover": {"mode": "IntraPod"}}"#),
    ("podTemplate", r#"{"spec": {"containers": [{"name": "main"}, {"name": "door"}]}}"#),
    ("modelRef", r#"{"name": "m"}"#),
];
const REQUEST: &[(&str, &str)] = &[
    ("image", "\"i\""),
    ("backend", "\"vllm\""),
    ("features", r#"{"mocker": {"enabled": true}, "planner": {"mode": "agg"}}"#),
    ("sla", r#"{"ttft": 1.5}"#),
    ("workload", r#"{"isl": 3, "requestRate": 2}"#),
    ("modelCache", r#"{"pvcName": "c", "pvcModelPath": "p"}"#),
    ("overrides", r#"{"dgd": {"kind": "DynamoGraphDeployment", "metadata": {"name": "n"}}}"#),
];
const OLD_REQUEST: &[(&str, &str)] = &[
    ("backend", "\"vllm\""),
    ("useMocker", "true"),
    ("enableGpuDiscovery", "true"),
    (
        "profilingConfig",
        r#"{"profilerImage": "i", "config": {"sla": {"isl": 3, "ttft": 1.5}, "sweep": {"a": 1}, "planner": {"mode": "agg"}}}"#,
    ),
    ("deploymentOverrides", r#"{"name": "n", "labels": {"a": "b"}, "workersImage": "w"}"#),
];

/// Fields of a graph's status, in the older version and in the newer.
const OLD_STATUS: &[(&str, &str)] = &[
    ("state", "\"pending\""),
    ("conditions", r#"[{"type": "Ready"}]"#),
    (
        "services",
        r#"{"a": {"componentName": "x", "componentNames": ["x", "y"], "replicas": 1}, "b": {"componentName": "z"}}"#,
    ),
    ("rollingUpdate", r#"{"phase": "Completed", "updatedServices": ["a"]}"#),
    ("podSelector", r#"{"a": "b"}"#),
];
const NEW_STATUS: &[(&str, &str)] = &[
    ("state", "\"pending\""),
    (
        "components",
        r#"{"a": {"componentNames": ["x", "y"], "replicas": 1}, "b": {"componentNames": []}}"#,
    ),
    ("component", r#"{"componentNames": ["x"]}"#),
    ("rollingUpdate", r#"{"phase": "Completed", "updatedComponents": ["a"]}"#),
];
const REQUEST_STATUS: &[(&str, &str)] = &[
    ("phase", "\"Deployed\""),
    ("profilingPhase", "\"Done\""),
    ("dgdName", "\"g\""),
    ("observedGeneration", "3"),
];

#[test]
fn a_status_of_the_older_version_names_its_first_workload() {
    let mut new = graph(BETA, json!({ "components": [{ "name": "a" }] }));
    new["status"] = json!({ "components": { "a": { "componentNames": ["x", "y"] } } });
    let old = convert(&new, FormVersion::Alpha);
    assert_eq!(old["status"]["services"]["a"]["componentName"], "x");
    assert!(old["metadata"]["annotations"].get("nvidia.com/dgd-status").is_none());
}

proptest! {
    #[test]
    fn a_status_survives_a_round_trip(
        old in fields(OLD_STATUS),
        new in fields(NEW_STATUS),
        request in fields(REQUEST_STATUS),
    ) {
        let there = |document: &Value, first, second| convert(&convert(document, first), second);
        let mut document = graph(ALPHA, json!({ "services": {} }));
        document["status"] = old;
        let back = there(&document, FormVersion::Beta, FormVersion::Alpha);
        prop_assert_eq!(&back, &document);
        for (kind, status) in
            [("DynamoGraphDeployment", new), ("DynamoGraphDeploymentRequest", request)]
        {
            let mut document = graph(BETA, json!({ "components": [] }));
            document["kind"] = json!(kind);
            document["status"] = status;
            let back = there(&document, FormVersion::Alpha, FormVersion::Beta);
            prop_assert_eq!(&back, &document);
        }
    }

    #[test]
    fn a_round_trip_changes_nothing(
        services in proptest::collection::btree_map("[a-c]", fields(SERVICE), 0..3),
        components in proptest::collection::btree_map("[a-c]", fields(COMPONENT), 0..3),
        request in fields(REQUEST),
        old_request in fields(OLD_REQUEST),
    ) {
        let old = graph(ALPHA, json!({ "services": services }));
        prop_assert_eq!(&convert(&convert(&old, FormVersion::Beta), FormVersion::Alpha), &old);
        let components: Vec<_> = components.into_iter().map(|(name, mut component)| {
            component["name"] = json!(name);
            component
        }).collect();
        let new = graph(BETA, json!({ "components": components }));
        prop_assert_eq!(&convert(&convert(&new, FormVersion::Alpha), FormVersion::Beta), &new);
        let kind = "DynamoGraphDeploymentRequest";
        let request = json!({ "apiVersion": BETA, "kind": kind, "metadata": {}, "spec": request });
        prop_assert_eq!(&convert(&convert(&request, FormVersion::Alpha), FormVersion::Beta), &request);
        let old = json!({ "apiVersion": ALPHA, "kind": kind, "metadata": {}, "spec": old_request });
        prop_assert_eq!(&convert(&convert(&old, FormVersion::Beta), FormVersion::Alpha), &old);
    }
}
