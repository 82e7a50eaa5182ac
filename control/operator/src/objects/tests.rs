use super::*;
use crate::explain::explain;
use std::collections::BTreeMap;

const GRAPH: &str = r#"
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: g, namespace: n}
spec:
  env: [{name: A, value: graph}, {name: B, value: graph}]
  labels: {team: x}
  components:
  - name: Front
    type: frontend
    podTemplate: {spec: {containers: [{name: main, image: f}]}}
  - name: Work
    type: decode
    replicas: 2
    scalingAdapter: {}
    modelRef: {name: m}
    podTemplate:
      spec:
        containers:
        - {name: main, image: w, command: [python3, -m, dynamo.vllm], args: [--model, /m], env: [{name: A, value: own}]}
"#;

/// Objects by kind and name.
fn objects(text: &str) -> BTreeMap<String, Value> {
    let all = explain(text, &OperatorSettings::new(Substitutes::default())).expect("a graph");
    all.into_iter()
        .map(|object| {
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (format!("{} {}", word(&object["kind"]), word(&object["metadata"]["name"])), object)
        })
        .collect()
}

#[test]
fn a_graph_has_the_objects_of_its_components_and_what_they_share() {
    let all = objects(GRAPH);
    let worker =
        all.keys().find_map(|name| name.strip_prefix("Deployment g-work-")).expect("a worker");
    for expected in [
        "Deployment g-front",
        "Service g-front",
        "DynamoComponentDeployment g-front",
        "DynamoGraphDeploymentScalingAdapter g-work",
        "ServiceAccount g-k8s-service-discovery",
        "Role g-k8s-service-discovery-role",
        "RoleBinding g-k8s-service-discovery-binding",
        &format!("DynamoComponentDeployment g-work-{worker}"),
        &format!("Service g-work-{worker}"),
        "Service dynamo-model-62c66a7a",
    ] {
        assert!(all.contains_key(expected), "{expected} is not among {:?}", all.keys());
    }
    assert_eq!(all.len(), 12, "{:?}", all.keys());
}

#[test]
fn a_main_container_has_the_graphs_environment_below_its_own() {
    let all = objects(GRAPH);
    let (_, worker) =
        all.iter().find(|(name, _)| name.starts_with("Deployment g-work")).expect("it");
    let pod = &worker["spec"]["template"];
    let env = pod["spec"]["containers"][0]["env"].as_array().expect("an environment");
    let value = |name: &str| env.iter().find(|one| one["name"] == name).map(|one| &one["value"]);
    assert_eq!((value("A"), value("B")), (Some(&json!("own")), Some(&json!("graph"))));
    assert_eq!(value("DYN_NAMESPACE"), Some(&json!("n-g")));
    assert_eq!(pod["metadata"]["labels"]["team"], "x");
}

/// The generation is that of all workers, and of nothing else.
#[test]
fn a_generation_follows_what_workers_run() {
    let generation = |text: &str| {
        let all = objects(text);
        let name = all.keys().find_map(|name| name.strip_prefix("Deployment g-work-"));
        name.expect("a worker").to_owned()
    };
    let first = generation(GRAPH);
    assert_eq!(generation(&GRAPH.replace("replicas: 2", "replicas: 3")), first);
    assert_eq!(generation(&GRAPH.replace("image: f", "image: f2")), first);
    let (ours, sorted) = ("{name: main, image: w, ", "{image: w, name: main, ");
    assert_eq!(generation(&GRAPH.replace(ours, sorted)), first);
    assert_ne!(generation(&GRAPH.replace("image: w", "image: w2")), first);
    assert_ne!(generation(&GRAPH.replace("value: graph", "value: other")), first);
}

#[test]
fn workers_of_a_generation_find_their_own_and_frontends_find_all() {
    let all = objects(GRAPH);
    let args = |start: &str| {
        let (_, found) = all.iter().find(|(name, _)| name.starts_with(start)).expect(start);
        found["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    };
    let label = "nvidia.com/dynamo-namespace=n-g";
    assert!(args("Deployment g-front").contains(&format!("kubernetes://n?selector={label}\"")));
    let worker = args("Deployment g-work");
    assert!(worker.contains(&format!("{label},nvidia.com/dynamo-worker-hash=")), "{worker}");
}

#[test]
fn a_picker_has_its_pool_settings_and_rights() {
    let graph = r#"
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: g}
spec:
  components:
  - name: Pick
    type: epp
    eppConfig: {config: {plugins: [{type: max-score-picker}], schedulingProfiles: []}}
    podTemplate: {spec: {containers: [{name: main, image: e}]}}
  - name: Work
    type: worker
    podTemplate: {spec: {containers: [{name: main, image: w}]}}
"#;
    let all = objects(graph);
    assert_eq!(all["InferencePool g-pool"]["spec"]["endpointPickerRef"]["name"], "g-pick");
    let config = all["ConfigMap g-epp-config"]["data"]["epp-config-dynamo.yaml"].as_str();
    assert!(config.is_some_and(|text| text.contains("max-score-picker")), "{config:?}");
    let picker = &all["Deployment g-pick"]["spec"]["template"]["spec"];
    assert_eq!(picker["serviceAccountName"], "epp-serviceaccount");
    assert!(all.contains_key("Role g-epp-role"));
    let (_, worker) =
        all.iter().find(|(name, _)| name.starts_with("Deployment g-work")).expect("it");
    let labels = &worker["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["nvidia.com/dynamo-component-class"], "worker");
    let without = graph.replace(
        "    eppConfig: {config: {plugins: [{type: max-score-picker}], schedulingProfiles: []}}\n",
        "",
    );
    let error =
        explain(&without, &OperatorSettings::new(Substitutes::default())).expect_err("no settings");
    assert_eq!(error, "document 1: spec.components: the picker needs an eppConfig");
}

#[test]
fn a_claim_of_an_older_graph_is_made() {
    let graph = r#"
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: g}
spec:
  pvcs: [{name: models, create: true, size: 1Gi, storageClass: fast, volumeAccessMode: ReadWriteMany}, {name: there}]
  services:
    W: {componentType: worker, volumeMounts: [{name: models, mountPoint: /models}], extraPodSpec: {mainContainer: {image: w}}}
"#;
    let all = objects(graph);
    assert_eq!(
        all["PersistentVolumeClaim models"]["spec"]["resources"]["requests"]["storage"],
        "1Gi"
    );
    assert!(!all.contains_key("PersistentVolumeClaim there"));
    let (_, worker) = all.iter().find(|(name, _)| name.starts_with("Deployment")).expect("it");
    let volumes = worker["spec"]["template"]["spec"]["volumes"].to_string();
    assert!(volumes.contains(r#"{"claimName":"models"}"#), "{volumes}");
}

#[test]
fn engines_on_several_nodes_are_sets_with_a_leader() {
    let graph = GRAPH.replace("replicas: 2", "multinode: {nodeCount: 3}");
    let all = objects(&graph);
    let (_, set) =
        all.iter().find(|(name, _)| name.starts_with("LeaderWorkerSet g-work")).expect("it");
    let parts = &set["spec"]["leaderWorkerTemplate"];
    assert_eq!(parts["size"], 3);
    let main = |part: &str| &parts[part]["spec"]["containers"][0];
    assert!(main("leaderTemplate")["livenessProbe"].is_object());
    assert!(main("workerTemplate").get("livenessProbe").is_none());
    let follows = |part: &str| main(part)["args"].to_string().contains("--engine-follower");
    assert_eq!(main("leaderTemplate")["command"], json!(["stator"]));
    assert!(!follows("leaderTemplate"));
}

#[test]
fn a_planner_scales_the_workers_of_its_graph_by_their_adapters() {
    let graph = r#"
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: g, namespace: n}
spec:
  components:
  - {name: Front, type: frontend, podTemplate: {spec: {containers: [{name: main, image: f}]}}}
  - {name: Plan, type: planner, podTemplate: {spec: {containers: [{name: main, image: p, command: [python3, -m, dynamo.planner]}]}}}
  - {name: Pre, type: prefill, podTemplate: {spec: {containers: [{name: main, image: w, command: [python3, -m, dynamo.mocker], args: [--model-path, m]}]}}}
  - {name: Dec, type: decode, podTemplate: {spec: {containers: [{name: main, image: w, command: [python3, -m, dynamo.mocker], args: [--model-path, m]}]}}}
"#;
    let all = objects(graph);
    for adapter in ["g-pre", "g-dec"] {
        let name = format!("DynamoGraphDeploymentScalingAdapter {adapter}");
        assert!(all.contains_key(&name), "{:?}", all.keys());
    }
    let pod = &all["Deployment g-plan"]["spec"]["template"];
    let args = pod["spec"]["containers"][0]["args"].as_array().expect("words");
    for word in [
        "--metrics-url=http://g-front.n:8000/metrics",
        "--mode=disaggregated",
        "--namespace=n",
        "--models=m",
        "--scale=prefill=dgdsa/g-pre,decode=dgdsa/g-dec",
    ] {
        assert!(args.iter().any(|known| known == word), "{word} is not in {args:?}");
    }
    assert!(pod["metadata"]["annotations"].get(instance::PLANNER).is_none());
    let ready = &pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"];
    assert_eq!(ready, "metrics", "the port of {args:?} is probed");
}

#[test]
fn ingresses_budgets_and_classes_are_those_that_a_graph_asks_for() {
    let graph = r#"
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: g, namespace: n}
spec:
  priorityClassName: high
  services:
    Front:
      componentType: frontend
      replicas: 3
      minAvailable: 2
      ingress: {enabled: true, host: chat, hostSuffix: example.org, tls: {secretName: t}, ingressControllerClassName: nginx}
      extraPodSpec: {mainContainer: {image: f}}
    Work:
      componentType: worker
      ingress: {enabled: true, useVirtualService: true}
      extraPodSpec: {priorityClassName: own, mainContainer: {image: w}}
"#;
    let all = objects(graph);
    let ingress = &all["Ingress g-front"]["spec"];
    assert_eq!(ingress["rules"][0]["host"], "chat.example.org");
    let service = &ingress["rules"][0]["http"]["paths"][0]["backend"]["service"];
    assert_eq!(service, &json!({ "name": "g-front", "port": { "number": 8000 } }));
    assert_eq!(ingress["tls"], json!([{ "hosts": ["chat.example.org"], "secretName": "t" }]));
    assert_eq!(ingress["ingressClassName"], "nginx");
    let budget = &all["PodDisruptionBudget g-front"]["spec"];
    assert_eq!(budget["minAvailable"], 2);
    assert_eq!(budget["selector"]["matchLabels"]["nvidia.com/dynamo-component"], "Front");
    let class = |name: &str| {
        let (_, found) = all.iter().find(|(key, _)| key.starts_with(name)).expect("it");
        found["spec"]["template"]["spec"]["priorityClassName"].clone()
    };
    assert_eq!(
        (class("Deployment g-front"), class("Deployment g-work")),
        (json!("high"), json!("own"))
    );
    let status = all["DynamoGraphDeployment g"]["status"]["conditions"][0]["message"].to_string();
    assert!(status.contains("Work: ingress: belongs to a frontend"), "{status}");
    assert!(status.contains("no VirtualService of Istio is made"), "{status}");
}

#[test]
fn pods_get_secrets_for_registries_unless_they_want_none() {
    let mut settings = OperatorSettings::new(Substitutes::default());
    settings.pull_secrets = vec!["registry".to_owned()];
    let component = |annotations: Value| {
        let document = json!({
            "metadata": { "name": "c" },
            "spec": { "podTemplate": { "metadata": { "annotations": annotations } } },
        });
        let of = Instance::read(&document).expect("a component");
        let wanted =
            workload::objects(&of, &settings, NodeSets::LeaderWorker).expect("a component");
        wanted.objects[0]["spec"]["template"]["spec"]["imagePullSecrets"].clone()
    };
    assert_eq!(component(json!({})), json!([{ "name": "registry" }]));
    let without = json!({ "nvidia.com/disable-image-pull-secret-discovery": "true" });
    assert_eq!(component(without), Value::Null);
}
