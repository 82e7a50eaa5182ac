//! Requests from their first sight to their end.

use super::*;
use stator_plan::{EngineKind, PlanRequest};

/// The published sizes of Qwen3 0.6B.
const CONFIG: &str = r#"{"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": true}"#;

fn request(spec: Value) -> Value {
    let mut document = json!({
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeploymentRequest",
        "metadata": { "name": "q", "namespace": "n", "generation": 1, "uid": "u" },
        "spec": { "model": "Qwen/Qwen3-0.6B", "hardware": { "gpuSku": "h100_sxm", "totalGpus": 8 } },
    });
    for (field, value) in spec.as_object().expect("an object") {
        document["spec"][field] = value.clone();
    }
    document
}

fn ask(spec: Value) -> Result<PlanRequest, Vec<String>> {
    let around = RequestSurroundings { model_config: Some(CONFIG), ..Default::default() };
    question(&request(spec), &around)
}

/// A cluster that does what the state machine says.
struct Scene {
    document: Value,
    profile: RequestProfile,
    graph: Option<Value>,
}

impl Scene {
    fn new(spec: Value) -> Self {
        Self { document: request(spec), profile: RequestProfile::Absent, graph: None }
    }

    /// One pass; its steps, and the phase after it.
    fn pass(&mut self) -> (Vec<RequestStep>, String) {
        let around = RequestSurroundings { model_config: Some(CONFIG), ..Default::default() };
        let faults = question(&self.document, &around).err().unwrap_or_default();
        let scene = RequestScene {
            document: &self.document,
            faults: &faults,
            profile: &self.profile,
            graph: self.graph.as_ref(),
        };
        let RequestPlan { steps, status } = plan_request(scene);
        self.document["status"] = status;
        let phase = self.document["status"]["phase"].as_str().expect("a phase").to_owned();
        (steps, phase)
    }

    /// Passes to the answer of the profile.
    fn profiled(&mut self) -> Value {
        assert_eq!(self.pass(), (vec![], "Pending".to_owned()));
        assert_eq!(self.pass(), (vec![RequestStep::Profile], "Profiling".to_owned()));
        self.profile = RequestProfile::Running;
        assert_eq!(self.pass().1, "Profiling");
        assert_eq!(self.document["status"]["profilingPhase"], "SelectingConfig");
        let labels = json!({ REQUEST_LABEL: "q" });
        let graph = json!({ "metadata": { "name": "q-dgd", "labels": labels }, "spec": {} });
        self.profile = RequestProfile::Done(Ok(graph.clone()));
        let (steps, _) = self.pass();
        assert_eq!(steps, [RequestStep::Annotate(json!({ GENERATED: graph.to_string() }))]);
        assert_eq!(self.document["status"]["profilingPhase"], Value::Null);
        assert_eq!(self.document["status"]["profilingResults"]["selectedConfig"], graph);
        graph
    }

    fn becomes(&mut self, state: &str) -> String {
        let graph = self.graph.as_mut().expect("a graph");
        graph["status"] = json!({
            "state": state,
            "components": { "a": { "replicas": 2, "availableReplicas": 1 }, "b": { "replicas": 1 } },
        });
        self.pass().1
    }

    fn condition(&self, kind: &str) -> (String, String) {
        let all = self.document["status"]["conditions"].as_array().expect("conditions");
        let found = all.iter().find(|of| of["type"] == kind).expect("the condition");
        let text = |field: &str| found[field].as_str().expect("a text").to_owned();
        (text("status"), text("reason"))
    }
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn a_request_goes_through_its_phases_to_a_deployed_graph() {
    let mut scene = Scene::new(json!({}));
    let graph = scene.profiled();
    assert_eq!(scene.document["status"]["phase"], "Deploying");
    assert_eq!(scene.pass(), (vec![RequestStep::Apply(graph.clone())], "Deploying".to_owned()));
    scene.graph = Some(graph);
    assert_eq!(scene.becomes("pending"), "Deploying");
    assert_eq!(scene.condition("DeploymentReady"), pair("False", "DeploymentInProgress"));
    assert_eq!(scene.becomes("successful"), "Deployed");
    assert_eq!(scene.condition("Succeeded"), pair("True", "Deployed"));
    let info = json!({ "replicas": 3, "availableReplicas": 1 });
    assert_eq!(scene.document["status"]["deploymentInfo"], info);
    assert_eq!(scene.becomes("pending"), "Deploying");
    assert_eq!(scene.becomes("pending"), "Deploying");
    assert_eq!(scene.condition("DeploymentReady"), pair("False", "DeploymentDegraded"));
    assert_eq!(scene.becomes("successful"), "Deployed");
    scene.graph = None;
    assert_eq!(scene.pass(), (vec![], "Failed".to_owned()));
    assert_eq!(scene.condition("Succeeded"), pair("False", "DeploymentDeleted"));
    assert_eq!(scene.pass(), (vec![], "Failed".to_owned()));
}

#[test]
fn a_request_that_is_not_applied_waits_until_it_is() {
    let mut scene = Scene::new(json!({ "autoApply": false }));
    scene.profiled();
    assert_eq!(scene.document["status"]["phase"], "Ready");
    assert_eq!(scene.condition("Succeeded"), pair("True", "SpecGenerated"));
    assert_eq!(scene.pass(), (vec![], "Ready".to_owned()));
    scene.document["spec"]["autoApply"] = json!(true);
    assert_eq!(scene.pass(), (vec![], "Deploying".to_owned()));
    assert!(matches!(scene.pass().0[..], [RequestStep::Apply(_)]));
}

#[test]
fn a_process_that_ended_while_it_profiled_is_taken_over() {
    let mut scene = Scene::new(json!({}));
    scene.pass();
    scene.pass();
    scene.profile = RequestProfile::Absent;
    assert_eq!(scene.pass(), (vec![RequestStep::Profile], "Profiling".to_owned()));
}

#[test]
fn a_plan_that_nothing_meets_and_a_graph_of_others_fail_the_request() {
    let mut scene = Scene::new(json!({}));
    scene.pass();
    scene.pass();
    scene.profile = RequestProfile::Done(Err("itl_ms: 1.0 is met by no layout".to_owned()));
    assert_eq!(scene.pass().1, "Failed");
    assert_eq!(scene.condition("Profiling"), pair("False", "SelectingConfigFailed"));
    let mut scene = Scene::new(json!({}));
    let mut graph = scene.profiled();
    graph["metadata"]["labels"] = Value::Null;
    scene.graph = Some(graph);
    assert_eq!(scene.pass(), (vec![], "Failed".to_owned()));
    assert_eq!(scene.condition("DeploymentReady"), pair("False", "DeploymentFailed"));
}

#[test]
fn every_fault_names_its_field_its_value_and_what_would_work() {
    let faults = ask(json!({
        "backend": "tgi",
        "searchStrategy": "thorough",
        "hardware": { "gpuSku": "h1000", "totalGpus": 0 },
        "workload": { "isl": 40_000, "osl": 1_000, "requestRate": 1, "concurrency": 2 },
        "sla": { "ttft": 0, "e2eLatency": 100, "itl": 20, "optimizationType": "price" },
    }))
    .expect_err("there are faults");
    for part in [
        "spec.backend: \"tgi\" is none of auto, vllm",
        "spec.searchStrategy: thorough takes times",
        "spec.hardware.gpuSku: \"h1000\" is none of a100-sxm",
        "spec.hardware.totalGpus: 0 is not in 1..=4096",
        "41000 tokens, above the model's context of 40960",
        "spec.workload.concurrency: goes without requestRate",
        "spec.sla.ttft: 0 is not in 1..=600000",
        "spec.sla.e2eLatency: goes without",
        "spec.sla.optimizationType: \"price\"",
    ] {
        assert!(faults.iter().any(|fault| fault.contains(part)), "{part} is not in {faults:#?}");
    }
    let mut scene = Scene::new(json!({ "backend": "tgi" }));
    assert_eq!(scene.pass(), (vec![], "Failed".to_owned()));
    assert_eq!(scene.condition("Validation"), pair("False", "ValidationFailed"));
    let found = question(&request(json!({})), &RequestSurroundings::default());
    assert!(found.expect_err("no config.json")[0].contains(MODEL_CONFIG));
}

/// Dynamo's issue 13238: the planner did not find the workers that a request had led to.
#[test]
fn the_planner_of_a_graph_finds_its_workers_and_their_step_times() {
    for forms in ["aggregated", "disaggregated"] {
        let mut asked = ask(json!({})).expect("a good request");
        asked.forms.aggregated = forms == "aggregated";
        asked.forms.disaggregated = !asked.forms.aggregated;
        let choices = stator_plan::GraphChoices {
            name: "q-dgd".to_owned(),
            image: "i".to_owned(),
            model_folder: None,
            is_simulated: false,
            planner: Some(Default::default()),
        };
        let layout = stator_plan::search(&asked).candidates[0].layout;
        let mut graph = stator_plan::graph(&asked, &layout, &choices);
        graph["metadata"]["namespace"] = json!("n");
        let settings = crate::objects::OperatorSettings::new(Default::default());
        let wanted = crate::objects::graph::objects(&graph, &settings).expect("it is a graph");
        let planner = wanted.objects.iter().find(|object| {
            object["kind"] == "DynamoComponentDeployment" && object["spec"]["type"] == "planner"
        });
        let annotations = &planner.expect("it")["spec"]["podTemplate"]["metadata"]["annotations"];
        let words: Vec<String> =
            serde_json::from_str(annotations["stator.dev/planner"].as_str().expect("text"))
                .expect("words");
        let has = |start: &str| words.iter().any(|word| word.starts_with(start));
        assert!(has(&format!("--mode={forms}")) && has("--timing={"), "{words:?}");
        assert_eq!(has("--prefill-timing={"), forms == "disaggregated", "{words:?}");
        let role = if forms == "aggregated" { "aggregated=dgdsa/q-dgd-worker" } else { "prefill=" };
        assert!(has(&format!("--scale={role}")) && has("--models=Qwen/Qwen3-0.6B"), "{words:?}");
    }
}

#[test]
fn a_thorough_search_takes_the_times_that_were_measured() {
    let timing = stator_timing::Timing {
        step_s: 0.004,
        token_s: 1e-5,
        prefill_pair_s: 0.0,
        decode_kv_token_s: 0.0,
    };
    let measured = stator_timing::EngineProfile {
        version: stator_timing::PROFILE_VERSION,
        model: "m".to_owned(),
        gpus: 2,
        step_tokens: 8_192,
        prefill: Vec::new(),
        decode: Vec::new(),
        timing,
        overhead_s: 0.0,
        mean_error: 0.0,
        max_error: 0.0,
    };
    let files = [("profile-tp2.json".to_owned(), Ok(measured.clone()))];
    let around =
        RequestSurroundings { model_config: Some(CONFIG), profiles: &files, ..Default::default() };
    let spec = json!({ "searchStrategy": "thorough", "backend": "vllm" });
    let asked = question(&request(spec.clone()), &around).expect("a good request");
    assert_eq!(asked.profiles, [measured]);
    assert!(ask(json!({})).expect("a good request").profiles.is_empty());
    let bad = [("profile.json".to_owned(), Err("version: 2 is not 1".to_owned()))];
    let around = RequestSurroundings { profiles: &bad, ..around };
    let found = question(&request(spec), &around).expect_err("the file is bad");
    assert_eq!(found, ["spec.searchStrategy: profile.json: version: 2 is not 1"]);
    let auto = ask(json!({ "searchStrategy": "thorough" })).expect_err("no engine is named");
    assert!(auto.iter().any(|fault| fault.starts_with("spec.backend: thorough needs")), "{auto:?}");
}

/// A request of the older version as its users write it; a cluster without webhooks stores it so.
#[test]
fn a_request_of_the_older_version_asks_the_same() {
    let mut document = request(json!({}));
    document["spec"] = json!({
        "model": "Qwen/Qwen3-0.6B",
        "backend": "vllm",
        "autoApply": false,
        "useMocker": true,
        "profilingConfig": {
            "profilerImage": "a.example/vllm-runtime:0.9.0",
            "config": {
                "sla": { "isl": 3000, "osl": 150, "ttft": 200.0, "itl": 20.0 },
                "deployment": { "modelCache": { "pvcName": "models", "modelPathInPvc": "qwen" } },
                "planner": { "mode": "agg" },
                "sweep": { "useAiConfigurator": false },
            },
        },
        "deploymentOverrides": { "name": "mine", "workersImage": "a.example/workers:1" },
    });
    document["status"] = json!({ "phase": "Profiling" });
    let newer = crate::convert::with_newer_spec(&document);
    assert_eq!(newer["status"], document["status"]);
    let cluster = of_nodes(
        &[json!({ "metadata": { "labels": {
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8",
        } } })],
        None,
    );
    let around = RequestSurroundings { model_config: Some(CONFIG), cluster, ..Default::default() };
    let asked = question(&newer, &around).expect("a good request");
    assert_eq!((asked.traffic.input_tokens, asked.traffic.output_tokens), (3_000, 150));
    assert_eq!((asked.targets.ttft_s, asked.targets.itl_s), (0.2, 0.02));
    assert_eq!((asked.gpu.name, asked.gpus, asked.engines.len()), ("h100-sxm", 8, 1));
    assert_eq!(graph_name(&newer), "mine");
    let spec = &newer["spec"];
    assert_eq!(
        (&spec["autoApply"], &spec["image"]),
        (&json!(false), &json!("a.example/vllm-runtime:0.9.0"))
    );
    assert_eq!(spec["modelCache"], json!({ "pvcName": "models", "pvcModelPath": "qwen" }));
    assert_eq!(
        spec["features"],
        json!({ "mocker": { "enabled": true }, "planner": { "mode": "agg" } })
    );
}

#[test]
fn defaults_are_those_of_dynamo_and_clients_are_a_rate() {
    let plain = ask(json!({})).expect("a good request");
    assert_eq!((plain.traffic.input_tokens, plain.traffic.output_tokens), (4_000, 1_000));
    assert_eq!((plain.targets.ttft_s, plain.targets.itl_s), (2.0, 0.03));
    assert_eq!((plain.traffic.rate, plain.engines.len()), (None, 3));
    let clients = json!({ "workload": { "concurrency": 64, "osl": 101 }, "backend": "sglang" });
    let clients = ask(clients).expect("a good request");
    assert_eq!(clients.engines, [EngineKind::Sglang]);
    assert_eq!(clients.traffic.rate, Some(64.0 / (2.0 + 0.03 * 100.0)));
    let whole = ask(json!({ "workload": { "osl": 101 }, "sla": { "e2eLatency": 3_000 } }));
    let whole = whole.expect("a good request").targets;
    assert_eq!((whole.ttft_s, whole.itl_s), (1.5, 0.015));
}

#[test]
fn the_graph_has_what_the_request_says_and_the_operator_understands_it() {
    let document = request(json!({
        "image": "a.example/dynamo-planner:1.5.0",
        "backend": "vllm",
        "workload": { "requestRate": 2 },
        "features": {
            "mocker": { "enabled": true },
            "planner": { "optimization_target": "sla", "ttft_ms": 800 },
        },
        "modelCache": { "pvcName": "models", "pvcModelPath": "qwen" },
        "overrides": { "dgd": { "spec": { "components": [
            { "name": "Frontend", "replicas": 3 },
        ] } } },
    }));
    let around = RequestSurroundings { model_config: Some(CONFIG), ..Default::default() };
    let asked = question(&document, &around).expect("a good request");
    let found = stator_plan::find(&asked).expect("a small model fits");
    let graph = generated(&document, &asked, &found);
    let metadata = &graph["metadata"];
    assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!("q-dgd"), &json!("n")));
    assert_eq!(metadata["labels"][REQUEST_LABEL], "q");
    assert_eq!(metadata["ownerReferences"], Value::Null);
    let components = graph["spec"]["components"].as_array().expect("components");
    assert_eq!(
        (&components[0]["name"], &components[0]["replicas"]),
        (&json!("Frontend"), &json!(3))
    );
    let (planner, workers) = components[1..].split_last().expect("there are workers");
    for component in workers {
        let pod = &component["podTemplate"]["spec"];
        let main = &pod["containers"][0];
        assert_eq!(main["command"][2], "dynamo.mocker");
        assert_eq!(main["image"], "a.example/vllm-runtime:1.5.0");
        assert_eq!(main["args"][1], "/opt/model-cache/qwen");
        assert_eq!(pod["volumes"][0]["persistentVolumeClaim"]["claimName"], "models");
    }
    assert_eq!(without_effect(&document), [""; 0]);
    assert_eq!((&planner["name"], &planner["type"]), (&json!("Planner"), &json!("planner")));
    let main = &planner["podTemplate"]["spec"]["containers"][0];
    let config: Value =
        serde_json::from_str(main["args"][1].as_str().expect("text")).expect("JSON");
    // The request's targets, unless the planner has its own.
    assert_eq!((&config["ttft_ms"], &config["itl_ms"]), (&json!(800), &json!(30.0)));
    let settings = crate::objects::OperatorSettings::new(Default::default());
    crate::plan::plan_graph(&graph, &crate::plan::ClusterView::default(), &settings)
        .expect("the operator understands the graph");
    let other = json!({ "overrides": { "dgd": { "kind": "Deployment" } } });
    assert!(graph_faults(&request(other))[0].contains("overrides.dgd.kind"));
}
