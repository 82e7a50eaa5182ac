use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: EppArgs,
}

fn settings(flags: &str) -> Result<EppSettings, ConfigError> {
    let words = std::iter::once("epp").chain(flags.split_whitespace());
    Line::try_parse_from(words).expect("the flags are known").args.try_into()
}

fn good(flags: &str) -> EppSettings {
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
    assert!(settings.tls.is_none() && settings.leader_election && !settings.metrics_auth);
    assert_eq!(settings.scrape_interval, Duration::from_millis(100));
    assert_eq!(settings.ext_proc.max_message_bytes, 10 << 20);
    assert_eq!(settings.drain_timeout, Duration::from_secs(90));
}

#[test]
fn defaults_are_secure_and_those_of_the_ports_table() {
    let settings = good("--pool-name=vllm");
    assert_eq!(settings.pools[0].listen.port(), 9002);
    assert_eq!(settings.health_listen.port(), 9003);
    assert_eq!(settings.metrics_listen.map(|listen| listen.port()), Some(9090));
    assert!(settings.tls.is_some() && settings.metrics_auth);
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
    let line = Line::try_parse_from(["epp", "--pool-name=a"]).expect("the flags are known");
    let text = explain(&line.args).expect("the default is sound");
    assert!(text.contains("kv-aware"), "{text}");
    stator_epp_config::load(&text, Options::default()).expect("it loads");
}
