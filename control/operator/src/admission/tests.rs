use super::*;
use crate::translate::Substitutes;

fn settings() -> OperatorSettings {
    OperatorSettings::new(Substitutes::default())
}

fn graph() -> Value {
    let pod = json!({ "spec": { "containers": [{ "name": "main", "image": "i" }] } });
    json!({
        "apiVersion": BETA,
        "kind": "DynamoGraphDeployment",
        "metadata": { "name": "g" },
        "spec": { "components": [
            { "name": "Front", "type": "frontend", "replicas": 1, "podTemplate": pod },
            { "name": "Work", "type": "worker", "replicas": 2, "podTemplate": pod },
        ] },
    })
}

fn changed(document: &Value, pointer: &str, value: Value) -> Value {
    let mut document = document.clone();
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
    let parent = document.pointer_mut(parent).expect("it is there");
    match parent {
        Value::Array(all) => all[name.parse::<usize>().expect("an index")] = value,
        parent => parent[name] = value,
    }
    document
}

/// The faults of a change, a line each.
fn faults(new: &Value, old: Option<&Value>) -> Vec<String> {
    let found = check(new, old, false, &settings()).err().unwrap_or_default();
    found.iter().map(FieldFault::to_string).collect()
}

/// A change of one field of the graph has this fault, when it is created or when it is changed.
fn check_fault(is_new: bool, pointer: &str, value: Value, expected: &str) {
    let old = graph();
    let new = changed(&old, pointer, value);
    let found = faults(&new, Some(&old).filter(|_| !is_new));
    assert_eq!(found, [expected], "{pointer}");
}

#[test]
fn a_good_graph_is_taken_and_what_it_loses_is_a_warning() {
    assert_eq!(check(&graph(), None, false, &settings()), Ok(Vec::new()));
    let with_class = changed(&graph(), "/spec/topologyConstraint", json!({ "packDomain": "rack" }));
    let warnings = check(&with_class, None, false, &settings()).expect("it is taken");
    assert_eq!(warnings, ["spec.topologyConstraint: has no effect"]);
}

#[test]
fn all_faults_come_at_once_with_their_paths() {
    let mut bad = graph();
    bad["spec"]["restart"] = json!({ "id": "1" });
    bad["spec"]["components"][0]["sharedMemorySize"] = json!("-1Gi");
    bad["spec"]["components"][1] = json!({
        "name": "front", "type": "epp", "replicas": 2, "frontendSidecar": "door",
    });
    let expected = [
        "spec.components: \"front\" is there twice, letters of either case being the same",
        "spec.restart: nothing can be restarted that is only now created",
        "spec.components[Front].sharedMemorySize: \"-1Gi\" is not an amount of 0 or more, such as 8Gi",
        "spec.components[front].podTemplate.spec.containers[main].image: is missing",
        "spec.components[front].frontendSidecar: \"door\" is no container of the podTemplate",
        "spec.components[front].eppConfig: is missing: the picker needs one",
        "spec.components[front].replicas: 2 pickers: a graph has exactly one",
    ];
    assert_eq!(faults(&bad, None), expected);
}

#[test]
fn new_documents_have_faults_of_their_own() {
    let at = |field: &str| format!("/spec/components/1/{field}");
    check_fault(true, "/spec/components", json!([]), "spec.components: at least one is needed");
    check_fault(
        true,
        &at("eppConfig"),
        json!({ "config": {} }),
        "spec.components[Work].eppConfig: belongs to the type epp",
    );
    check_fault(
        true,
        &at("minAvailable"),
        json!(3),
        "spec.components[Work].minAvailable: 3 is not between 1 and the replicas, 2",
    );
    check_fault(
        true,
        &at("compilationCache"),
        json!({ "pvcName": "c" }),
        "spec.components[Work].compilationCache.mountPath: is missing: only vLLM's cache has a place of its own",
    );
    check_fault(
        true,
        &at("experimental"),
        json!({ "failover": {} }),
        "spec.components[Work].experimental.failover: needs a gpuMemoryService of the same mode",
    );
    check_fault(
        true,
        "/spec/experimental",
        json!({ "kvTransferPolicy": { "domain": "rack", "labelKey": "l", "preferredWeight": 1 } }),
        "spec.experimental.kvTransferPolicy.preferredWeight: goes with the enforcement preferred, and only with that",
    );
    check_fault(
        true,
        "/metadata/annotations",
        json!({ "nvidia.com/vllm-distributed-executor-backend": "slurm" }),
        "metadata.annotations[nvidia.com/vllm-distributed-executor-backend]: \"slurm\" is not one of mp, ray",
    );
}

#[test]
fn what_is_immutable_stays() {
    let at = |field: &str| format!("/spec/components/1/{field}");
    check_fault(
        false,
        "/spec/backendFramework",
        json!("vllm"),
        "spec.backendFramework: is immutable",
    );
    check_fault(
        false,
        &at("multinode"),
        json!({ "nodeCount": 2 }),
        "spec.components[Work].multinode: one node or several: that is immutable",
    );
    let old = graph();
    let new = changed(&old, "/spec/components/1/name", json!("Other"));
    let expected = [
        "spec.components: \"Work\" is missing: the set of names is immutable",
        "spec.components: \"Other\" is new: the set of names is immutable",
    ];
    assert_eq!(faults(&new, Some(&old)), expected);
}

#[test]
fn a_restart_names_all_components_once() {
    let restart = |order: Value, kind: &str| json!({ "id": "1", "strategy": { "type": kind, "order": order } });
    let pointer = "/spec/restart";
    let good = changed(&graph(), pointer, restart(json!(["Work", "Front"]), "Sequential"));
    assert_eq!(faults(&good, Some(&graph())), Vec::<String>::new());
    let path = "spec.restart.strategy.order";
    check_fault(
        false,
        pointer,
        restart(json!(["Work"]), "Sequential"),
        &format!("{path}: \"Front\" is missing: an order names all components"),
    );
    let parallel = restart(json!(["Work", "Front"]), "Parallel");
    check_fault(false, pointer, parallel, &format!("{path}: a parallel restart has no order"));
    let mut rolling = graph();
    rolling["status"] = json!({ "rollingUpdate": { "phase": "InProgress" } });
    let new = changed(&rolling, pointer, json!({ "id": "1" }));
    let expected = ["spec.restart.id: cannot change during a rolling update"];
    assert_eq!(faults(&new, Some(&rolling)), expected);
}

#[test]
fn what_an_adapter_scales_is_the_planners_and_the_operators() {
    let old = changed(&graph(), "/spec/components/1/scalingAdapter", json!({}));
    let new = changed(&old, "/spec/components/1/replicas", json!(5));
    let expected =
        "spec.components[Work].replicas: the scaling adapter has this number: change the adapter";
    assert_eq!(faults(&new, Some(&old)), [expected]);
    let review = |user: &str| {
        let request = json!({
            "uid": "u", "operation": "UPDATE", "object": new, "oldObject": old,
            "userInfo": { "username": user },
        });
        let review = json!({ "kind": "AdmissionReview", "request": request });
        let answer = answer_validation(&review, &settings(), "me").expect("a review");
        answer["response"]["allowed"] == true
    };
    assert!(review("me") && review("system:serviceaccount:n:planner-serviceaccount"));
    assert!(!review("somebody"));
}

#[test]
fn models_and_requests_have_rules() {
    let model = |spec: Value| json!({ "kind": "DynamoModel", "apiVersion": ALPHA, "spec": spec });
    let bad = model(json!({ "modelName": "", "baseModelName": "b", "modelType": "lora" }));
    let expected = [
        "spec.modelName: is missing",
        "spec.source.uri: is missing: a LoRA adapter comes from somewhere",
    ];
    assert_eq!(faults(&bad, None), expected);
    let spec = json!({ "modelName": "a", "baseModelName": "b", "source": { "uri": "http://x" } });
    let expected =
        "spec.source.uri: \"http://x\" does not begin with one of s3://, hf://, file:///";
    assert_eq!(faults(&model(spec), None), [expected]);
    let request = |spec: Value, phase: &str| {
        json!({
            "kind": "DynamoGraphDeploymentRequest", "apiVersion": BETA, "spec": spec,
            "status": { "phase": phase },
        })
    };
    let old = request(json!({ "model": "m", "autoApply": false }), "Ready");
    let new = request(json!({ "model": "n", "autoApply": true }), "Ready");
    assert_eq!(faults(&new, Some(&old)), ["spec.model: is immutable in the phase Ready"]);
    let thorough = request(json!({ "model": "m", "searchStrategy": "thorough" }), "");
    assert_eq!(
        faults(&thorough, None),
        ["spec.backend: a thorough search needs a backend by name"]
    );
}

#[test]
fn reviews_are_answered_in_their_form() {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": { "uid": "u", "operation": "CREATE", "object": { "kind": "DynamoModel", "metadata": { "name": "m" }, "spec": {} } },
    });
    let answer = answer_validation(&review, &settings(), "").expect("a review");
    assert_eq!(answer["kind"], "AdmissionReview");
    let response = &answer["response"];
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(false)));
    assert_eq!(response["status"]["details"]["causes"][1]["field"], "spec.baseModelName");
    assert_eq!(answer_default(&json!({}), &settings()), Err(NotAReview("request.uid")));
    let conversion = |version: &str| {
        let request = json!({ "uid": "u", "desiredAPIVersion": version, "objects": [graph()] });
        let answer = answer_conversion(&json!({ "request": request })).expect("a review");
        answer["response"].clone()
    };
    let converted = conversion(ALPHA);
    assert_eq!(converted["convertedObjects"][0]["spec"]["services"]["Work"]["replicas"], 2);
    assert_eq!(conversion("nvidia.com/v9")["result"]["status"], "Failure");
}
