use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

type Builder = fn(&Options) -> Result<EngineCommand, CommandError>;

const BUILDERS: [Builder; 3] = [vllm, sglang, trtllm];

fn options(extra: &[&str]) -> Options {
    let extra = extra.iter().map(|word| (*word).to_owned()).collect();
    let http = "127.0.0.1:8001".parse().unwrap();
    Options { extra, ..Options::new("/models/tiny", "tiny", http, "/home") }
}

fn with_events(extra: &[&str]) -> Options {
    let events = Events {
        publish: "ipc:///run/w.events".into(),
        replay: "ipc:///run/w.replay".into(),
        topic: "kv".into(),
    };
    Options { events: Some(events), ..options(extra) }
}

fn line(build: Builder, options: &Options) -> String {
    build(options).unwrap().args.join(" ")
}

fn refusal(build: Builder, options: &Options) -> String {
    build(options).unwrap_err().to_string()
}

#[test]
fn a_vllm_publishes_events_and_speaks_token_ids() {
    let command = vllm(&with_events(&["--max-model-len", "2048"])).unwrap();
    assert_eq!(command.program, PathBuf::from("vllm"));
    let events = r#"{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc:///run/w.events","replay_endpoint":"ipc:///run/w.replay","topic":"kv"}"#;
    let expected = [
        ["serve", "/models/tiny"].as_slice(),
        &["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "8001"],
        &["--kv-events-config", events],
        &["--enable-scale-out", "--enable-prompt-tokens-details"],
        &["--disable-uvicorn-access-log", "--max-model-len", "2048"],
    ];
    assert_eq!(command.args, expected.concat());
    let on = |name: &str| (name.to_owned(), "1".to_owned());
    assert_eq!(command.env, [on("PYTHONUNBUFFERED"), on("VLLM_SERVER_DEV_MODE")]);
}

#[test]
fn a_vllm_can_be_operated_and_takes_adapters_where_it_has_one_server() {
    let check = |extra: &[&str], adapters: bool| {
        let env = vllm(&options(extra)).unwrap().env;
        let has = |name: &str| env.iter().any(|(n, value)| n == name && value == "1");
        assert!(has("VLLM_SERVER_DEV_MODE"), "{env:?}");
        assert_eq!(has("VLLM_ALLOW_RUNTIME_LORA_UPDATING"), adapters, "{extra:?}");
    };
    check(&[], false);
    check(&["--no-enable-lora"], false);
    check(&["--enable-lora"], true);
    // It refuses to start with several.
    check(&["--enable-lora", "-dp", "2"], false);
    check(&["--enable-lora", "-asc=2"], false);
    check(&["--enable-lora", "--dp=2", "--api-server-count", "1"], true);
}

#[test]
fn a_node_that_follows_has_the_flags_of_the_first_and_serves_nobody() {
    let nodes = ["--nnodes", "2", "--node-rank", "1"];
    let follower = |of: Options| Options { is_follower: true, ..of };
    let (first, further) = (options(&nodes), follower(options(&nodes)));
    assert_eq!(line(vllm, &further).replace(" --headless", ""), line(vllm, &first));
    assert!(line(vllm, &further).contains(" --headless "));
    // All nodes of an SGLang start alike.
    assert_eq!(line(sglang, &further), line(sglang, &first));
}

#[test]
fn a_prefill_vllm_has_a_connector_and_a_side_channel() {
    let mut options = options(&[]);
    options.role = Role::Prefill;
    options.side_channel = Some("[::1]:5600".parse().unwrap());
    let command = vllm(&options).unwrap();
    let line = command.args.join(" ");
    assert!(line.contains("--kv-transfer-config.kv_connector NixlConnector"), "{line}");
    assert!(line.contains("--kv-transfer-config.kv_role kv_producer"), "{line}");
    let env = |name: &str| command.env.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    assert_eq!(env("VLLM_NIXL_SIDE_CHANNEL_HOST"), Some("::1"));
    assert_eq!(env("VLLM_NIXL_SIDE_CHANNEL_PORT"), Some("5600"));
}

#[test]
fn a_vllm_with_tiers_is_told_where_they_are() {
    let tiers = KvTiers { socket: "/home/kv.sock".into(), modules: "/home".into() };
    let with = |extra: &[&str]| Options { kv_tiers: Some(tiers.clone()), ..options(extra) };
    let command = vllm(&with(&[])).unwrap();
    let at = command.args.iter().position(|word| word == "--kv-transfer-config").unwrap();
    let config: Value = serde_json::from_str(&command.args[at + 1]).unwrap();
    let extra = &config["kv_connector_extra_config"];
    assert_eq!(extra["stator_socket"], "/home/kv.sock");
    assert_eq!(config["kv_load_failure_policy"], "recompute");
    assert_eq!(command.args[at + 2..at + 4], ["--prefix-caching-hash-algo", "sha256_cbor"]);
    let path = command.env.iter().find(|(name, _)| name == "PYTHONPATH");
    assert!(path.unwrap().1.starts_with("/home"), "{path:?}");

    let hashes = line(vllm, &with(&["--prefix-caching-hash-algo=sha256"]));
    assert!(!hashes.contains("cbor"), "{hashes}");
    let refused = refusal(vllm, &with(&["--kv-transfer-config.kv_port", "1"]));
    assert!(refused.contains("--kv-host-gb sets --kv-transfer-config"), "{refused}");
}

#[test]
fn a_vllm_of_a_pair_with_tiers_has_two_connectors() {
    let tiers = Some(KvTiers { socket: "/home/kv.sock".into(), modules: "/home".into() });
    let with =
        |extra: &[&str]| Options { role: Role::Prefill, kv_tiers: tiers.clone(), ..options(extra) };
    let given = |extra: &[&str]| {
        let command = vllm(&with(extra)).unwrap();
        let at = command.args.iter().position(|word| word == "--kv-transfer-config").unwrap();
        assert!(!command.args.iter().any(|word| word.starts_with("--kv-transfer-config.")));
        let config: Value = serde_json::from_str(&command.args[at + 1]).unwrap();
        (config, command.args)
    };
    let (config, _) = given(&[]);
    assert_eq!(
        (&config["kv_connector"], &config["kv_role"]),
        (&json!("MultiConnector"), &json!("kv_producer"))
    );
    assert_eq!(config["kv_load_failure_policy"], "recompute");
    let [first, second] =
        &config["kv_connector_extra_config"]["connectors"].as_array().unwrap()[..]
    else {
        panic!("{config}")
    };
    assert_eq!(first, &json!({"kv_connector": "NixlConnector", "kv_role": "kv_producer"}));
    assert_eq!(second["kv_connector_extra_config"]["stator_socket"], "/home/kv.sock");

    // Parts are of the connector for the role, but for what vLLM reads of the whole alone.
    let (config, args) = given(&[
        "--kv-transfer-config.kv_buffer_device",
        "cpu",
        "--kv-transfer-config.kv_connector_extra_config.kv_lease_duration=5",
        "--kv_transfer_config.kv_load_failure_policy=fail",
        "--seed",
        "7",
    ]);
    let expected = json!({
        "kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"kv_lease_duration": 5},
    });
    assert_eq!(config["kv_connector_extra_config"]["connectors"][0], expected);
    assert_eq!(config["kv_load_failure_policy"], "fail");
    assert_eq!(args[args.len() - 2..], ["--seed", "7"]);

    let refused = refusal(vllm, &with(&["--kv-transfer-config", "{}"]));
    assert!(refused.contains("--kv-host-gb sets --kv-transfer-config"), "{refused}");
}

#[test]
fn an_sglang_with_tiers_is_told_where_they_are() {
    let tiers = KvTiers { socket: "/home/kv.sock".into(), modules: "/home".into() };
    let with = |extra: &[&str]| Options { kv_tiers: Some(tiers.clone()), ..options(extra) };
    let command = sglang(&with(&[])).unwrap();
    let flag = "--hicache-storage-backend-extra-config";
    let at = command.args.iter().position(|word| word == flag).unwrap();
    let config: Value = serde_json::from_str(&command.args[at + 1]).unwrap();
    assert_eq!(config["stator_socket"], "/home/kv.sock");
    assert_eq!(config["hicache_storage_pass_prefix_keys"], true);
    assert_eq!(command.args[at - 2..at], ["--hicache-storage-backend", "dynamic"]);
    assert_eq!(command.args[at + 2], "--enable-hierarchical-cache");
    assert!(command.env.iter().any(|(name, _)| name == "PYTHONPATH"));

    let refused = refusal(sglang, &with(&["--hicache-storage-backend", "file"]));
    assert!(refused.contains("--kv-host-gb sets --hicache-storage-backend"), "{refused}");
    let paired = Options { role: Role::Prefill, ..with(&[]) };
    assert!(refusal(sglang, &paired).contains("--role aggregated"));
    assert!(refusal(trtllm, &with(&[])).contains("--attach"));
}

#[test]
fn a_vllm_with_moriio_is_told_where_it_is() {
    let mut options = options(&[]);
    options.role = Role::Decode;
    options.connector = Some("MoRIIOConnector".into());
    options.side_channel = Some("10.0.0.2:5600".parse().unwrap());
    let told = line(vllm, &options);
    let part = "--kv-transfer-config.kv_connector_extra_config";
    assert!(told.contains(&format!("{part}.http_port 8001 {part}.host_ip 10.0.0.2")), "{told}");

    options.extra = vec![format!("{part}.host_ip=10.9.9.9"), format!("{part}.read_mode=true")];
    let told = line(vllm, &options);
    assert!(told.contains("http_port 8001") && !told.contains("10.0.0.2"), "{told}");
}

#[test]
fn a_user_adds_to_the_connector_or_replaces_it() {
    let mut options = options(&["--kv-transfer-config.kv_buffer_device", "cpu"]);
    options.role = Role::Decode;
    let added = line(vllm, &options);
    assert!(added.contains("--kv-transfer-config.kv_role kv_consumer"), "{added}");
    assert!(added.ends_with("--kv-transfer-config.kv_buffer_device cpu"), "{added}");

    options.extra = vec!["--kv-transfer-config".into(), r#"{"kv_connector":"Mine"}"#.into()];
    let replaced = line(vllm, &options);
    assert!(!replaced.contains("kv_role"), "{replaced}");

    options.extra = vec!["--kv_transfer_config.kv_connector=Mine".into()];
    let part = line(vllm, &options);
    assert!(part.contains("kv_role kv_consumer") && !part.contains("Nixl"), "{part}");
}

#[test]
fn a_users_flag_wins_over_a_default() {
    for flag in ["--no-enable-prompt-tokens-details", "--enable_prompt_tokens_details"] {
        let line = line(vllm, &options(&[flag]));
        assert_eq!(line.matches("prompt").count(), 1, "{line}");
    }
    let line = line(sglang, &options(&["--log-level-http", "info", "--stream-output"]));
    assert!(!line.contains("warning") && !line.contains("incremental"), "{line}");
}

#[test]
fn a_flag_that_the_agent_sets_is_refused_however_it_is_written() {
    for flag in ["--port", "--port=1", "--por", "--served_model_name", "--kv-events-config.topic"] {
        let error = refusal(vllm, &options(&[flag, "1"]));
        let name = flag.split('=').next().unwrap();
        assert!(error.starts_with(&format!("engine flag {name}: set by the agent")), "{error}");
    }
    assert_eq!(
        refusal(sglang, &options(&["--disaggregation-mode", "prefill"])),
        "engine flag --disaggregation-mode: set by the agent, with --role before `--`"
    );
    refusal(trtllm, &options(&["--host", "0.0.0.0"]));
    // Others that begin alike are the user's.
    line(vllm, &options(&["--model-impl", "vllm", "--kv-cache-dtype", "fp8"]));
}

#[test]
fn a_flag_that_comes_twice_is_refused() {
    let error = refusal(vllm, &options(&["--dtype", "auto", "--dtype=half"]));
    assert_eq!(error, "engine flag --dtype: given 2 times, at most once");
    let error = refusal(vllm, &options(&["-tp", "2", "--tensor-parallel-size", "4"]));
    assert_eq!(error, "engine flag -tp: given 2 times, at most once");
    line(vllm, &options(&["--middleware", "a", "--middleware", "b"]));
    line(vllm, &options(&["--limit.image", "1", "--limit.video", "2"]));
}

#[test]
fn a_word_that_is_no_flag_is_refused_where_a_flag_is_expected() {
    assert_eq!(
        refusal(vllm, &options(&["/models/other"])),
        "engine flags: \"/models/other\" is no flag; the model is named with --model, before `--`"
    );
    // A number is a value, whatever it begins with.
    line(vllm, &options(&["--seed", "-1", "--top-p", "-0.5"]));
}

#[test]
fn an_sglang_that_sleeps_over_kv_is_known() {
    let sleeps = |flags: &[&str], role, tiers| {
        let mut options = options(flags);
        options.role = role;
        options.kv_tiers = tiers;
        super::sglang::sleeps_over_kv(&options)
    };
    let tiers = KvTiers { socket: "/run/kv.sock".into(), modules: "/run".into() };
    assert!(sleeps(&["--sleep-on-idle"], Role::Aggregated, Some(tiers.clone())));
    assert!(sleeps(&["--sleep_on_idle"], Role::Decode, None));
    assert!(!sleeps(&["--sleep-on-idle"], Role::Aggregated, None));
    assert!(!sleeps(&["--no-sleep-on-idle"], Role::Prefill, None));
    assert!(!sleeps(&[], Role::Aggregated, Some(tiers)));
}

#[test]
fn an_sglang_takes_its_role_and_a_bootstrap_port() {
    let mut options = with_events(&[]);
    options.role = Role::Prefill;
    options.side_channel = Some("127.0.0.1:8998".parse().unwrap());
    let command = sglang(&options).unwrap();
    assert_eq!(command.program, PathBuf::from("python3"));
    let line = command.args.join(" ");
    assert!(line.starts_with("-m sglang.launch_server --model-path /models/tiny"), "{line}");
    let role = "--disaggregation-mode prefill --disaggregation-transfer-backend mooncake";
    assert!(line.contains(role), "{line}");
    assert!(line.contains("--disaggregation-bootstrap-port 8998"), "{line}");
    let address = ("SGLANG_HOST_IP".into(), "127.0.0.1".into());
    assert!(command.env.contains(&address), "{:?}", command.env);
    options.role = Role::Decode;
    let command = sglang(&options).unwrap();
    assert!(!command.args.join(" ").contains("bootstrap") && command.env.contains(&address));
    options.role = Role::Aggregated;
    assert!(!sglang(&options).unwrap().env.contains(&address));
    // A program of the user's is the server itself.
    options.program = Some("/opt/sglang".into());
    assert_eq!(sglang(&options).unwrap().args[0], "--model-path");
}

#[test]
fn a_trtllm_gets_a_file_that_has_events_and_metrics_on_unless_there_is_one() {
    let command = trtllm(&with_events(&[])).unwrap();
    let line = "/models/tiny --host 127.0.0.1 --port 8001 --backend pytorch \
        --extra_llm_api_options /home/trtllm.yaml";
    assert_eq!(command.args.join(" "), line);
    let file = |command: EngineCommand| {
        let [(path, text)] = &command.files[..] else { panic!("{:?}", command.files) };
        assert_eq!(path, Path::new("/home/trtllm.yaml"));
        serde_json::from_str::<Value>(text).unwrap()
    };
    let (on, events) = (json!(true), json!({"event_buffer_max_size": 16_384}));
    let expected = json!({
        "enable_iter_perf_stats": on, "return_perf_metrics": on, "kv_cache_config": events,
    });
    assert_eq!(file(command), expected);
    // What flags say of the cache says the file too.
    let flags = ["--kv_cache_free_gpu_memory_fraction", "0.5", "--kv_cache_dtype=fp8"];
    let cache = file(trtllm(&with_events(&flags)).unwrap())["kv_cache_config"].take();
    let expected = json!({
        "event_buffer_max_size": 16_384, "free_gpu_memory_fraction": 0.5, "dtype": "fp8",
    });
    assert_eq!(cache, expected);
    assert_eq!(file(trtllm(&options(&[])).unwrap()).get("kv_cache_config"), None);
    for flag in ["--config", "--extra_llm_api_options", "--extra-llm-api-options"] {
        let own = trtllm(&with_events(&[flag, "mine.yaml"])).unwrap();
        assert!(own.files.is_empty() && own.args.ends_with(&words([flag, "mine.yaml"])), "{own:?}");
        assert!(!own.args.join(" ").contains("trtllm.yaml"), "{own:?}");
    }
}

#[test]
fn a_trtllm_with_a_role_needs_a_file() {
    let mut options = options(&[]);
    options.role = Role::Decode;
    assert_eq!(
        refusal(trtllm, &options),
        "trtllm cannot be started: role decode needs --config FILE with cache_transceiver_config after `--`"
    );
    options.extra = vec!["--extra_llm_api_options".into(), "options.yaml".into()];
    line(trtllm, &options);
}

#[test]
fn a_key_is_given_where_nobody_else_reads_it() {
    let mut options = options(&[]);
    options.key = Some(Key("hu\"sh".into()));
    let command = vllm(&options).unwrap();
    assert!(command.env.contains(&("VLLM_API_KEY".into(), "hu\"sh".into())), "{:?}", command.env);
    let other = sglang(&options).unwrap();
    assert!(other.args.ends_with(&words(["--config", "/home/sglang.yaml"])), "{:?}", other.args);
    let file = ("/home/sglang.yaml".into(), r#"{"api-key":"hu\"sh"}"#.into());
    assert_eq!(other.files, [file]);
    for command in [command, other] {
        assert_eq!(command.secrets, ["hu\"sh"]);
        assert!(!command.args.join(" ").contains("hu"), "{:?}", command.args);
        assert!(!format!("{command:?} {options:?}").contains("hu\\\"sh"), "{command:?}");
    }
    assert_eq!(refusal(trtllm, &options), "trtllm cannot be started: its server asks for no key");
    // There can be one file; who names it has the key there.
    options.extra = vec!["--config".into(), "mine.yaml".into()];
    let own = sglang(&options).unwrap();
    assert_eq!((own.files.len(), own.secrets.len()), (0, 1));
    assert_eq!(own.args.iter().filter(|word| *word == "--config").count(), 1);
    options.extra = vec!["--api-key".into(), "loud".into()];
    for build in [vllm, sglang] {
        let error = refusal(build, &options);
        let advice = "set by the agent, with --engine-api-key-file before `--`";
        assert_eq!(error, format!("engine flag --api-key: {advice}"));
    }
}

#[test]
fn nobody_starts_an_encoder() {
    for build in BUILDERS {
        refusal(build, &Options { role: Role::Encode, ..options(&[]) });
    }
}

#[test]
fn the_users_data_parallel_ranks_are_known() {
    let check = |extra: &[&str], ranks| {
        let extra: Vec<_> = extra.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(data_parallel_ranks(&extra), ranks, "{extra:?}");
    };
    check(&[], 1);
    check(&["--data-parallel-size", "4"], 4);
    check(&["--seed", "7", "-dp=2"], 2);
    check(&["--dp-size", "8", "--x"], 8);
    check(&["--dp", "many"], 1);
    check(&["--dp", "0"], 1);
}

proptest! {
    /// Whatever the user's flags: they are refused, or they come last and as they are, and no
    /// flag comes twice.
    #[test]
    fn users_flags_come_last_and_nothing_comes_twice(
        extra in vec("(--|-|--no-)?(port|dtype|tp|enable-scale-out|kv-transfer-config(\\.kv_role)?)(=1)?", 0..5),
    ) {
        let words: Vec<_> = extra.iter().map(String::as_str).collect();
        for build in BUILDERS {
            let Ok(command) = build(&Options { role: Role::Aggregated, ..options(&words) }) else {
                continue;
            };
            prop_assert!(command.args.ends_with(&extra));
            let names = command.args.iter().filter(|word| word.starts_with("--"));
            let mut names: Vec<_> = names.map(|word| word.split('=').next()).collect();
            names.sort_unstable();
            prop_assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{:?}", command.args);
        }
    }
}
