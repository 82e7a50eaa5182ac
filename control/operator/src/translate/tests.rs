use super::*;
use crate::kinds::beta::ComponentType;
use serde_json::{Value, json};

/// The container `main` of a pod after translation, and what was lost as `subject: message`.
fn check(kind: ComponentType, main: Value, models: &[(&str, &str)]) -> (Value, Vec<String>) {
    let mut main = main;
    main["name"] = json!("main");
    let (pod, lost) = pod(kind, json!([main]), models);
    (pod["spec"]["containers"][0].clone(), lost)
}

fn pod(kind: ComponentType, containers: Value, models: &[(&str, &str)]) -> (Value, Vec<String>) {
    let substitutes = Substitutes {
        images: [("old".to_owned(), "new".to_owned())].into(),
        models: models.iter().map(|(name, folder)| ((*name).into(), (*folder).into())).collect(),
    };
    let place = PodPlace {
        component: "C",
        kind: Some(kind),
        is_multinode: false,
        discovery: "kubernetes://n".to_owned(),
        scaled: vec!["--mode=aggregated".to_owned(), "--models=m".to_owned()],
        substitutes: &substitutes,
    };
    let template = json!({ "spec": { "containers": containers } });
    let (template, notes) = translate_pod(&template, &place);
    (template, notes.iter().map(|note| format!("{}: {}", note.subject, note.message)).collect())
}

fn has(container: &Value, word: &str) -> bool {
    container["args"].as_array().is_some_and(|args| args.iter().any(|known| known == word))
}

#[test]
fn a_worker_becomes_an_agent_with_the_engines_own_flags_last() {
    let args = [
        "--model",
        "org/m",
        "--disaggregation-mode",
        "prefill",
        "--enforce-eager",
        "--max-model-len",
        "1024",
        "--endpoint",
        "dyn://a.b.c",
        "--kv-transfer-config",
        "{}",
    ];
    let command = ["python3", "-m", "dynamo.vllm"];
    let main = json!({ "image": "old", "command": command, "args": args });
    let (main, lost) = check(ComponentType::Prefill, main, &[("org/m", "/models/m")]);
    assert_eq!(lost, [""; 0]);
    assert_eq!(main["image"], "new");
    assert_eq!(main["command"], json!(["stator"]));
    let words = json!([
        "agent",
        "--engine=vllm",
        "--discovery=kubernetes://n",
        "--listen=0.0.0.0:7000",
        "--advertise-host=$(POD_IP)",
        "--metrics-host=0.0.0.0",
        "--metrics-port=9090",
        "--events-listen=off",
        "--model-name=org/m",
        "--model=/models/m",
        "--role=prefill",
        "--",
        "--enforce-eager",
        "--max-model-len",
        "1024",
        "--kv-transfer-config={}",
    ]);
    assert_eq!(main["args"], words);
    let env = main["env"].as_array().expect("agents know their pod");
    assert!(env.iter().any(|variable| variable["name"] == "POD_IP"), "{main:#}");
}

#[test]
fn what_has_no_counterpart_is_named() {
    let args =
        ["-m", "dynamo.mocker", "--model-path", "org/m", "--startup-time", "3", "--new-flag", "x"];
    let main = json!({ "image": "i", "command": ["python3"], "args": args });
    let (main, lost) = check(ComponentType::Worker, main, &[]);
    let expected = [
        "--startup-time: simulated workers start at once",
        "--new-flag: stator has no such setting",
    ];
    assert_eq!(lost, expected);
    assert!(has(&main, "--model-name=org/m") && has(&main, "--engine=sim"), "{main:#}");
    let script = "export A=1; python3 -m dynamo.vllm";
    let script = json!({ "image": "old", "command": ["/bin/sh", "-c"], "args": [script] });
    let (untouched, lost) = check(ComponentType::Worker, script.clone(), &[]);
    assert_eq!((&untouched["args"], &untouched["image"]), (&script["args"], &script["image"]));
    assert!(lost[0].starts_with("dynamo.vllm: the script stays as it is"), "{lost:?}");
}

#[test]
fn a_name_on_a_hub_needs_its_folder() {
    let main = json!({
        "command": ["python3", "-m", "dynamo.sglang"],
        "args": ["--model-path=$(MODEL)"],
        "env": [{ "name": "MODEL", "value": "org/m" }],
    });
    let (translated, lost) = check(ComponentType::Worker, main.clone(), &[]);
    assert!(has(&translated, "--model=org/m"), "{translated:#}");
    assert_eq!(lost.len(), 1);
    let (translated, lost) = check(ComponentType::Worker, main, &[("org/m", "/m")]);
    assert!(has(&translated, "--model=/m") && has(&translated, "--model-name=org/m"));
    assert_eq!(lost, [""; 0]);
}

#[test]
fn variables_give_flags_that_the_command_line_does_not() {
    let env = json!([{ "name": "DYN_ROUTER_MODE", "value": "kv" }]);
    let main = |args: Value| json!({ "command": ["python3", "-m", "dynamo.frontend"], "args": args, "env": env });
    let (frontend, _) = check(ComponentType::Frontend, main(json!([])), &[]);
    assert!(has(&frontend, "--router-mode=kv"), "{frontend:#}");
    let (frontend, lost) =
        check(ComponentType::Frontend, main(json!(["--router-mode", "random"])), &[]);
    assert!(has(&frontend, "--router-mode=random") && !has(&frontend, "--router-mode=kv"));
    assert_eq!(lost, [""; 0]);
}

#[test]
fn a_frontend_beside_an_engine_is_its_door() {
    let door = json!({ "name": "door", "command": ["python3"], "args": ["-m", "dynamo.frontend", "--router-mode", "direct"] });
    let main = json!({ "name": "main", "command": ["python3", "-m", "dynamo.sglang"], "args": ["--model", "/m"] });
    let (pod, lost) = pod(ComponentType::Decode, json!([main, door]), &[]);
    let [main, door] = [0, 1].map(|at| pod["spec"]["containers"][at].clone());
    assert!(has(&main, "--engine-port=8200") && door["args"][0] == "sidecar", "{pod:#}");
    // Each has a port for metrics, and the engine stays until the sidecar's is closed.
    assert!(has(&main, "--metrics-port=9090") && has(&main, "--outlive=127.0.0.1:9091"), "{pod:#}");
    assert!(has(&door, "--metrics-port=9091"), "{pod:#}");
    assert!(has(&door, "--engine-port=8200") && has(&door, "--connector=sglang"), "{pod:#}");
    assert_eq!(lost, [""; 0]);
}

#[test]
fn the_picker_keeps_its_arguments() {
    let main = json!({ "image": "i", "args": ["--pool-name", "p", "-v", "4"], "env": [{ "name": "DYN_KV_CACHE_BLOCK_SIZE", "value": "32" }] });
    let (picker, _) = check(ComponentType::Epp, main, &[]);
    let words = json!([
        "epp",
        "--agent-port=7000",
        "--shutdown-delay=20s",
        "--pool-name",
        "p",
        "-v",
        "4",
        "--block-size=32"
    ]);
    assert_eq!(picker["args"], words);
}

#[test]
fn other_containers_stay_as_they_are() {
    let other =
        json!([{ "name": "main", "image": "old", "command": ["nginx"] }, { "name": "log" }]);
    let (pod, lost) = pod(ComponentType::Worker, other.clone(), &[]);
    assert_eq!(pod["spec"]["containers"], other);
    assert_eq!(lost, [""; 0]);
}

#[test]
fn a_planner_scales_what_its_graph_says_and_its_keys_have_fates() {
    let config = json!({
        "environment": "kubernetes", "mode": "disagg", "optimization_target": "latency",
        "load_adjustment_interval_seconds": 7, "advisory": true, "max_gpu_budget": -1,
        "load_predictor": "prophet", "report_interval_hours": 24, "isl": null,
    });
    let command = ["python3", "-m", "dynamo.planner"];
    let main = json!({ "command": command, "args": ["--config", config.to_string()] });
    let (main, lost) = check(ComponentType::Planner, main, &[]);
    assert_eq!(lost, ["--config: report_interval_hours: stator has no such setting"]);
    let args = main["args"].as_array().expect("words");
    assert_eq!(args[0], "planner");
    for word in [
        "--discovery=kubernetes://n",
        "--models=m",
        "--mode=disaggregated",
        "--optimization-target=latency",
        "--load-adjustment-interval-s=7",
        "--advisory",
        "--load-predictor=seasonal",
    ] {
        assert!(has(&main, word), "{word} is not in {args:?}");
    }
    assert!(!has(&main, "--mode=aggregated"));
    let main = json!({ "command": command, "args": ["--config", "/etc/planner.yaml"] });
    let (_, lost) = check(ComponentType::Planner, main, &[]);
    assert_eq!(lost, ["--config: it is read where it is JSON, and not from a file"]);
}
