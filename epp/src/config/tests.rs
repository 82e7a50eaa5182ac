use super::args::{ZapEncoder, ZapLevel};
use super::*;
use clap::{CommandFactory, FromArgMatches, Parser};
use stator_runtime::config;
use stator_runtime::log::{Format, LogArgs};
use stator_runtime::tls::{CertificateSource, CipherSuites, Version};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: EppArgs,
}

fn args(flags: &str) -> EppArgs {
    let words = std::iter::once("epp").chain(flags.split_whitespace());
    Line::try_parse_from(words).expect("the flags are known").args
}

fn settings(flags: &str) -> Result<EppSettings, ConfigError> {
    args(flags).try_into()
}

/// What a configuration comes to with these flags.
pub(crate) fn configured(flags: &[&str], text: &str) -> Result<EppSettings, ConfigError> {
    let line = ["epp", "--config-text", text];
    let line = Line::try_parse_from(line.iter().chain(flags)).expect("the flags are known");
    line.args.try_into()
}

pub(crate) fn good(flags: &str) -> EppSettings {
    settings(flags).unwrap_or_else(|error| panic!("{flags}: {error}"))
}

#[track_caller]
fn refused(flags: &str, faults: &[&str]) {
    let error = settings(flags).err().expect("it is refused");
    assert_eq!(error.0, faults);
}

#[test]
fn the_flags_of_llm_d_mean_what_they_mean_there() {
    let settings = good(
        "--pool-name=vllm --pool-namespace=models --grpc-port=9102 --secure-serving=false \
         --enable-cert-reload --refresh-metrics-interval=100ms --grpc-max-recv-msg-size=10Mi \
         --drain-timeout=1m30s --ha-enable-leader-election=true --metrics-endpoint-auth=false",
    );
    let pool = &settings.pools[0];
    assert_eq!((&*pool.namespace, &*pool.name, pool.listen.port()), ("models", "vllm", 9102));
    let group = "inference.networking.k8s.io".to_owned();
    assert_eq!(pool.source, PoolSource::Kubernetes { group });
    assert!(settings.tls.ext_proc.is_none() && settings.leader_election && !settings.metrics_auth);
    assert_eq!(settings.scrape_interval, Duration::from_millis(100));
    assert_eq!(settings.ext_proc.max_message_bytes, 10 << 20);
    assert_eq!(settings.drain_timeout, Duration::from_secs(90));
}

#[test]
fn agents_are_reached_as_the_flags_of_the_request_plane_say() {
    let agent = ([127, 0, 0, 1], 7000).into();
    let plain = good("--pool-name=vllm --agent-port=7000");
    assert_eq!(plain.dial.endpoint(agent), "http://127.0.0.1:7000");
    let alone = "--request-tls-server-name: needs request-tls-ca-file";
    refused("--pool-name=vllm --request-tls-server-name=agents", &[alone]);

    let error = settings("--pool-name=vllm --request-tls-ca-file=/nowhere/ca.crt").err();
    let faults = error.expect("there is no such file").0;
    assert!(faults[0].starts_with("--request-tls-ca-file: cannot read"), "{faults:?}");
}

#[test]
fn all_bodies_together_may_be_no_smaller_than_one() {
    let limits = |flags: &str| good(&format!("--pool-name=vllm {flags}")).ext_proc.body_budget;
    assert_eq!(limits("").limit_bytes(), 1 << 30);
    assert_eq!(limits("--max-bodies-bytes=64MiB").limit_bytes(), 64 << 20);
    let fault = "--max-bodies-bytes: 1048576 is less than --max-body-bytes, 67108864";
    refused("--pool-name=vllm --max-bodies-bytes=1MiB", &[fault]);
}

#[test]
fn defaults_are_secure_and_those_of_the_ports_table() {
    let settings = good("--pool-name=vllm");
    assert_eq!(settings.pools[0].listen.port(), 9002);
    assert_eq!(settings.health_listen.port(), 9003);
    assert_eq!(settings.metrics_listen.map(|listen| listen.port()), Some(9090));
    assert!(settings.tls.ext_proc.is_some() && settings.metrics_auth);
    assert!(settings.tls.metrics.is_none() && settings.without_effect.is_empty());
    assert_eq!(settings.ext_proc, ExtProcSettings::default());
    assert_eq!(settings.interest, Interest::Nothing);
    assert!(settings.plan.plan.program.uses_kv);
}

#[test]
fn further_pools_have_ports_of_their_own() {
    let settings = good("--pool-name=a --pool=models/b=9012,models/c=9013");
    let found: Vec<_> =
        settings.pools.iter().map(|pool| (&*pool.name, pool.listen.port())).collect();
    assert_eq!(found, [("a", 9002), ("b", 9012), ("c", 9013)]);
}

#[test]
fn each_pool_may_have_the_tokenizer_of_its_model() {
    let pools = "--pool-name=a --pool=models/b=9012,models/c=9013";
    let tokenizers = |flags: &str| {
        let pools = good(&format!("{pools} {flags}")).pools;
        pools.into_iter().map(|pool| pool.tokenizer).collect::<Vec<_>>()
    };
    let path = |path: &str| TokenizerSettings { path: Some(path.into()), model: None };
    let named = |model: &str| TokenizerSettings { path: None, model: Some(model.into()) };
    let none = TokenizerSettings::default();
    // What is said of a pool comes before what is said of all, whatever it is.
    let own = "--tokenizer-path=/all=of,models/b=/b --tokenizer-model=models/c=org/c";
    assert_eq!(tokenizers(own), [path("/all=of"), path("/b"), named("org/c")]);
    let one = "--tokenizer-model=models/b=org/b";
    assert_eq!(tokenizers(one), [none.clone(), named("org/b"), none]);
    refused(
        &format!(
            "{pools} --tokenizer-path=/one,models/c= --tokenizer-path=/two \
             --tokenizer-model=models/x=org/x,models/b=org/b,models/b=org/c"
        ),
        &[
            "--tokenizer-path: \"models/c=\" has no value",
            "--tokenizer-path: \"/two\" is the second for the same pool",
            "--tokenizer-model: \"models/x\" is none of the pools \
             [\"default/a\", \"models/b\", \"models/c\"]",
            "--tokenizer-model: \"models/b=org/c\" is the second for the same pool",
        ],
    );
}

#[test]
fn a_selectors_pool_has_a_name_that_a_lease_may_have() {
    let name = |selector: &str| {
        let flags = format!("--endpoint-target-ports=8000 --endpoint-selector={selector}");
        good(&flags).pools.swap_remove(0).name
    };
    let long = format!("app={}", "x".repeat(63));
    let selectors = ["app=engine", "app-engine=", "App.io/Name=Llama_3,tier=a", &long];
    let names = selectors.map(name);
    for (name, selector) in names.iter().zip(selectors) {
        let valid = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-');
        let edges = name.starts_with('-') || name.ends_with('-');
        assert!(name.chars().all(valid) && !edges && name.len() <= 63, "{selector}: {name}");
    }
    assert!(names[2].starts_with("app-io-name-llama-3-tier-a-"), "{names:?}");
    assert_ne!(names[0], names[1]);
}

#[test]
fn all_faults_are_told_at_once() {
    refused(
        "--pool=x --pool-name=a --pool=n/b=9002 --cert-path=/certs --secure-serving=false \
         --metrics-staleness-threshold=10ms --config-text=plugins:[]",
        &[
            "--pool: \"x\" is not namespace/name=port",
            "--pool: \"a\" and \"b\" have the same port, 9002",
            "--config-text: expected a mapping, got a text",
            "--cert-path: has no use with --secure-serving=false",
            "--metrics-staleness-threshold: 10ms is shorter than --refresh-metrics-interval, 50ms",
        ],
    );
}

#[test]
fn something_must_be_picked_for() {
    let fault = "one of --pool-name, --pool, --endpoint-selector and --endpoints-file is needed";
    refused("", &[fault]);
    refused("--endpoint-selector=app=x", &["--endpoint-target-ports: 0 ports are not 1 to 8"]);
}

#[test]
fn a_configuration_file_that_is_not_there_is_named() {
    let error = settings("--pool-name=a --config-file=/nowhere/at/all.yaml").err();
    let error = error.expect("it is refused").to_string();
    assert!(error.starts_with("--config-file: cannot read \"/nowhere/at/all.yaml\": "), "{error}");
}

#[test]
fn an_explanation_loads_again() {
    let text = explain(&args("--pool-name=a")).expect("the default is sound");
    assert!(text.contains("kv-aware"), "{text}");
    stator_epp_config::load(&text, LoadOptions::default()).expect("it loads");
}

#[test]
fn the_command_line_is_consistent() {
    Line::command().debug_assert();
}

#[test]
fn tls_is_chosen_for_both_ports() {
    let suite = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    let flags = "--pool-name=a --tls-min-version=VersionTLS13 --metrics-cert-dir=/certs \
                 --metrics-client-ca-file=/ca.crt --tls-cipher-suites";
    let tls = good(&format!("{flags}={suite},TLS_AES_128_GCM_SHA256")).tls;
    let names = [suite, "TLS_AES_128_GCM_SHA256"].map(str::to_owned);
    assert_eq!(Ok(tls.cipher_suites), CipherSuites::named(&names));
    let (streams, metrics) = tls.ext_proc.zip(tls.metrics).expect("both are over TLS");
    assert_eq!((streams.min_version, metrics.min_version), (Version::Tls13, Version::Tls13));
    assert_eq!((streams.client_ca, metrics.client_ca), (None, Some("/ca.crt".into())));
    assert_eq!(metrics.certificate, CertificateSource::Folder("/certs".into()));
    assert!(metrics.reload && !streams.reload);
}

#[test]
fn versions_of_tls_have_the_names_of_llm_d_too() {
    for (name, version) in [
        ("1.2", Version::Tls12),
        ("VersionTLS10", Version::Tls12),
        ("VersionTLS12", Version::Tls12),
        ("1.3", Version::Tls13),
    ] {
        assert_eq!(args(&format!("--tls-min-version={name}")).tls.tls_min_version, version);
    }
}

#[test]
fn tls_that_would_not_be_in_force_is_refused() {
    refused(
        "--pool-name=a --metrics-client-ca-file=/ca.crt",
        &["--metrics-client-ca-file: needs --metrics-cert-dir"],
    );
    refused(
        "--pool-name=a --no-metrics --metrics-cert-dir=/certs --metrics-client-ca-file=/ca.crt",
        &[
            "--metrics-cert-dir: has no use with --no-metrics",
            "--metrics-client-ca-file: has no use with --no-metrics",
        ],
    );
    let error = settings("--pool-name=a --tls-cipher-suites=TLS_X").err().expect("it is refused");
    let expected = "--tls-cipher-suites: TLS_X not supported, only these are: TLS_AES";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn files_that_no_port_can_be_served_with_are_all_named() {
    let tls = good("--pool-name=a --cert-path=/nowhere/a --metrics-cert-dir=/nowhere/b").tls;
    let refused = tls.check().expect_err("there are no such files").to_string();
    let lines: Vec<_> = refused.lines().collect();
    let begins = ["TLS of ext-proc: cannot read \"/nowhere/a/", "TLS of metrics: cannot read \"/n"];
    assert_eq!(lines.len(), begins.len(), "{refused}");
    assert!(lines.iter().zip(begins).all(|(line, begin)| line.starts_with(begin)), "{refused}");
    assert!(good("--pool-name=a").tls.check().is_ok());
}

#[test]
fn limits_of_streams_can_be_chosen_within_their_range() {
    let chosen = good(
        "--pool-name=a --max-header-bytes=64KiB --max-headers=100 --max-streamed-bytes=32Ki \
         --max-concurrent-streams=1000",
    )
    .ext_proc;
    let expected = ExtProcSettings {
        max_header_bytes: 64 << 10,
        max_headers: 100,
        max_streamed_bytes: 32 << 10,
        max_concurrent_streams: 1000,
        ..ExtProcSettings::default()
    };
    assert_eq!(chosen, expected);
    for flag in [
        "--max-header-bytes=17Mi",
        "--max-headers=0",
        "--max-streamed-bytes=1",
        "--max-concurrent-streams=0",
        "--grpc-max-send-msg-size=much",
        "--zap-log-level=loud",
        "--zap-encoder=xml",
        "--v=-1",
    ] {
        assert!(Line::try_parse_from(["epp", flag]).is_err(), "{flag}");
    }
}

#[test]
fn flags_without_effect_are_taken_and_told() {
    let told = good(
        "--pool-name=a --grpc-max-send-msg-size=10MiB --refresh-prometheus-metrics-interval=5s \
         --enable-pprof=false --health-checking --zap-devel=true --zap-stacktrace-level=panic \
         --zap-time-encoding=rfc3339nano --tracing -v 4 --zap-encoder=json",
    )
    .without_effect;
    let expected = [
        "--grpc-max-send-msg-size",
        "--refresh-prometheus-metrics-interval",
        "--enable-pprof",
        "--health-checking",
        "--zap-devel",
        "--zap-stacktrace-level",
        "--zap-time-encoding",
    ];
    assert_eq!(told, expected);
}

/// The log's settings for `flags`, where `chosen` of its own flags were given too.
#[track_caller]
fn check_log(flags: &str, chosen: &[&str], expected: (&str, Format)) {
    let own = LogArgs { log_level: "own".into(), log_format: Format::Text };
    let log = args(flags).telemetry.log(&own, |flag| chosen.contains(&flag));
    assert_eq!((&*log.log_level, log.log_format), expected, "{flags}");
}

#[test]
fn verbosity_counts_where_our_own_flags_were_not_given() {
    check_log("", &[], ("own", Format::Text));
    for flag in ["-v 2", "-v=2", "--v=2", "--v 2", "--zap-log-level=info", "--zap-log-level=1"] {
        check_log(flag, &[], ("info", Format::Text));
    }
    check_log("-v4", &[], ("info,stator=debug", Format::Text));
    check_log("-v=9", &[], ("info,stator=trace", Format::Text));
    check_log("--zap-log-level=debug -v=9", &[], ("info,stator=debug", Format::Text));
    check_log("--zap-log-level=panic", &[], ("error", Format::Text));
    check_log("--zap-encoder=json", &[], ("own", Format::Json));
    let both = ["log_level", "log_format"];
    check_log("-v=9 --zap-log-level=info --zap-encoder=json", &both, ("own", Format::Text));
    check_log("-v=9 --zap-encoder=json", &both[..1], ("own", Format::Json));
}

#[test]
fn a_file_of_flags_holds_them_like_the_command_line() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/testdata/flags.yaml");
    let role = Line::command().name("epp").arg(config::config_arg());
    let line = ["stator", "epp", "--max-headers=60", "--config"].map(Into::into);
    let line = line.into_iter().chain([file.into()]).collect();
    let matches = config::parse(clap::Command::new("stator").subcommand(role), line);
    let matches = matches.expect("the file is sound");
    let (_, matches) = matches.subcommand().expect("there is a role");
    let args = Line::from_arg_matches(matches).expect("the flags are there").args;

    assert_eq!(args.tls.tls_cipher_suites.len(), 2);
    assert_eq!((args.requests.max_headers, args.requests.max_header_bytes), (60, 16 << 10));
    let telemetry = &args.telemetry;
    assert_eq!((telemetry.verbosity, telemetry.tracing), (Some(4), false));
    assert_eq!(telemetry.zap_log_level, Some(ZapLevel::Error));
    assert_eq!(telemetry.zap_encoder, Some(ZapEncoder::Json));
    let settings = EppSettings::try_from(args).expect("the settings are sound");
    assert!(settings.tls.metrics.is_some());
    assert_eq!(settings.without_effect, ["--enable-pprof", "--zap-time-encoding"]);
}

#[test]
fn a_configuration_may_name_the_endpoints_and_their_events() {
    let text = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n\
                dataLayer: {discovery: {pluginRef: f}}\n\
                plugins: [{type: file-discovery, name: f, parameters: {path: /pods.yaml}}]";
    let settings = configured(&[], text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        settings.pools[0].source,
        PoolSource::File { path: "/pods.yaml".into(), followed: true }
    );
    assert_eq!(settings.kv_events, None);

    let text = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n\
                plugins: [{type: precise-prefix-cache-producer, parameters: \
                {kvEventsConfig: {podDiscoveryConfig: {socketPort: 5600}}}}]";
    let settings = configured(&["--pool-name=a"], text).unwrap_or_else(|error| panic!("{error}"));
    let ports = Some(KvEventPorts { live: 5600, replay: None });
    assert_eq!(settings.kv_events, Some(KvEventSettings { ports, ..KvEventSettings::default() }));
}

#[test]
fn the_precise_index_is_as_configured() {
    let text = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n\
                plugins: [{type: precise-prefix-cache-producer, parameters: {\
                indexerConfig: {kvBlockIndexConfig: {inMemoryConfig: {size: 2000}}, \
                kvCacheBackendConfigs: [{name: gpu}, {name: cpu, weight: 0.4}]}, \
                kvEventsConfig: {zmqEndpoint: 'tcp://*:5557', topicFilter: 'kv@', \
                discoverPods: false, podDiscoveryConfig: {podNamespace: models}}}}]";
    let of = |flag| configured(&["--pool-name=a", flag], text);
    let settings = of("--max-index-blocks=4096").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(settings.max_index_blocks, 2000);
    assert_eq!(settings.tier_weights, TierWeights { host: 0.4, ..TierWeights::default() });
    let events = settings.kv_events.expect("engines connect");
    assert_eq!((events.ports, events.bind.as_deref()), (None, Some("tcp://0.0.0.0:5557")));
    assert_eq!((&*events.topic, events.pods.namespace.as_deref()), ("kv@", Some("models")));
    let error = of("--pool=n/b=9012").err().expect("one socket cannot serve two pools");
    let fault = "kvEventsConfig.zmqEndpoint: \"tcp://0.0.0.0:5557\" is for the engines of 1 pool, \
                 and there are 2";
    assert_eq!(error.0, [fault]);
}

#[test]
fn a_selector_that_cannot_be_used_is_told_with_the_other_faults() {
    refused(
        "--endpoint-selector=app=a,tier=(x) --endpoint-target-ports=8000 --pool=x",
        &[
            "--endpoint-selector: \"tier=(x)\" is no part of a label selector",
            "--pool: \"x\" is not namespace/name=port",
        ],
    );
    let command = Line::command();
    let selector =
        command.get_arguments().find(|argument| argument.get_id() == "endpoint_selector");
    let help = selector.and_then(|flag| flag.get_help()).expect("it has a help text").to_string();
    let example = help.split('`').nth(1).expect("it has an example");
    good(&format!("--endpoint-selector={example} --endpoint-target-ports=8000"));
}
