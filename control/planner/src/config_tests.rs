//! Flags that cannot be used are told all at once.

use super::*;
use clap::Args as _;
use clap::{Command, FromArgMatches as _};

fn read(flags: &str) -> Result<RunSettings, ConfigError> {
    let command = PlannerArgs::augment_args(Command::new("x").no_binary_name(true));
    let matches = command.try_get_matches_from(flags.split_whitespace()).expect("known flags");
    PlannerArgs::from_arg_matches(&matches).expect("good values").try_into()
}

fn faults(flags: &str) -> Vec<String> {
    read(flags).expect_err(flags).0
}

#[test]
fn a_first_day_needs_the_model_alone() {
    let settings = read("--models m").expect("good flags");
    assert_eq!(faults(""), ["models: names no model"]);
    assert!(matches!(settings.output, OutputSettings::Advice));
    assert_eq!(settings.graphs[0].law, Law::Thresholds(Thresholds::THROUGHPUT));
    assert_eq!(settings.graphs[0].graph.min, Replicas { aggregated: 1, ..Replicas::default() });
}

#[test]
fn all_faults_are_told_at_once() {
    let found = faults(
        "--models a,b --optimization-target sla --ttft-ms 0 --min-endpoint 9 --max-endpoint 4 \
         --kalman-r 1 --scale decode=pod/x@a --warmup-trace /none",
    );
    for part in [
        "ttft-ms: 0",
        "metrics-url",
        "takes one model",
        "needs timing",
        "max-endpoint: 4",
        "kalman-q-level",
        "scale: \"decode=pod/x@a\"",
        "warmup-trace",
    ] {
        assert!(found.iter().any(|fault| fault.contains(part)), "{part} is not in {found:#?}");
    }
}

/// Dynamo's issue 13465: GPUs that could not be counted were guessed.
#[test]
fn a_budget_without_the_gpus_of_a_worker_is_refused() {
    let found = faults("--models m --max-gpu-budget 8");
    assert!(found[0].contains("worker-gpus"), "{found:?}");
    let found = faults("--models m,n --mode disagg --worker-gpus 4 --max-gpu-budget 8");
    assert!(found[0].contains("16 GPUs, max_gpu_budget is 8"), "{found:?}");
    assert!(read("--models m --worker-gpus 4 --max-gpu-budget 8").is_ok());
}

#[test]
fn thresholds_in_the_wrong_order_are_refused() {
    let found = faults(
        "--models m --optimization-target load --decode-scale-up-kv-percent 40 \
         --decode-scale-down-kv-percent 60",
    );
    assert_eq!(
        found,
        ["decode-scale-down-kv-percent: 60 is not below decode-scale-up-kv-percent, 40"]
    );
}

#[test]
fn times_of_steps_come_from_a_preset_or_a_file() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let timing =
        r#"{"step_s": 0.01, "token_s": 1e-5, "prefill_pair_s": 0, "decode_kv_token_s": 0}"#;
    std::fs::write(file.path(), timing).expect("the file is ours");
    let sla = "--models m --optimization-target sla --metrics-url http://127.0.0.1:9/metrics";
    assert!(read(&format!("{sla} --timing h100-llama-8b")).is_ok());
    assert!(read(&format!("{sla} --timing {}", file.path().display())).is_ok());
    let found = faults(&format!("{sla} --timing h1000"));
    assert!(found[0].contains("h100-llama-8b") && found[0].contains("no file"), "{found:?}");
    assert_eq!(found.len(), 1, "{found:?}");
    // Prefill workers have times of their own; both may be the text itself.
    let timing = timing.replace(' ', "");
    let both = format!("{sla} --timing h100-llama-8b --prefill-timing {timing}");
    let Law::Sla(law) = read(&both).expect("good flags").graphs[0].law.clone() else {
        panic!("the target is sla")
    };
    assert_eq!((law.prefill.timing.step_s, law.prefill.timing.token_s), (0.01, 1e-5));
    assert_ne!(law.decode.timing, law.prefill.timing);
    let found = faults(&format!("{sla} --timing {timing} --prefill-timing {{\"step_s\":-1}}"));
    assert!(found[0].starts_with("prefill-timing: "), "{found:?}");
}

#[test]
fn authorities_of_metrics_pages_are_read_at_once() {
    let page = "--models m --metrics-url https://127.0.0.1:9/metrics";
    let found = faults(&format!("{page} --metrics-ca-file /none/ca.pem"));
    assert!(found[0].contains("metrics-url") && found[0].contains("/none/ca.pem"), "{found:?}");
}
