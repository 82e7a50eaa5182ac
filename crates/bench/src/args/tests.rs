use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,
}

#[track_caller]
fn refused(args: &[&str], expected: &[&str]) {
    let error = Cli::try_parse_from([&["bench"], args].concat()).unwrap_err().to_string();
    assert!(expected.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn no_arguments_are_a_measurement() {
    let args = Cli::try_parse_from(["bench"]).unwrap().bench;
    assert!(args.command.is_none());
    assert_eq!(args.load.target.url, "http://127.0.0.1:8000");
    assert!(args.load.target.stream && args.load.target.ignore_eos);
}

#[test]
fn compare_is_a_subcommand() {
    let args = Cli::try_parse_from(["bench", "compare", "a.json", "b.json", "--markdown", "t.md"]);
    let Some(BenchCommand::Compare(compare)) = args.unwrap().bench.command else {
        panic!("not a comparison");
    };
    assert_eq!(compare.reports.len(), 2);
}

#[test]
fn a_refusal_names_flag_value_and_limit() {
    refused(&["--concurrency", "0"], &["--concurrency", "'0'", "1..=65536"]);
    refused(&["--rate", "0"], &["--rate", "'0'", "0.001..=100000"]);
    refused(&["--shared-prefix-share", "1.5"], &["--shared-prefix-share", "1.5", "0..=1"]);
    refused(&["--length-scale", "1/0"], &["--length-scale", "1/0", "0.0001..=16"]);
    refused(&["--ramp", "1s"], &["--duration"]);
    refused(&["--ramp", "1s", "--duration", "1s", "--rate", "1"], &["--ramp", "--rate"]);
    refused(&["--duration", "soon"], &["--duration", "soon", "not a number"]);
    refused(&["--extra-body", "{\"model\":1}"], &["--extra-body", "\"model\" is set"]);
    refused(&["--trace", "t", "--rate", "1"], &["--trace", "--rate"]);
}

#[test]
fn every_flag_has_an_environment_variable() {
    use clap::CommandFactory;
    let command = Cli::command();
    let flags = command.get_arguments().filter(|arg| arg.get_long().is_some());
    for arg in flags.filter(|arg| !["help", "version"].contains(&arg.get_long().unwrap())) {
        let name = arg.get_long().unwrap().to_uppercase().replace('-', "_");
        let expected = match name.as_str() {
            "API_KEY" => "STATOR_API_KEY".to_owned(),
            _ => format!("STATOR_BENCH_{name}"),
        };
        assert_eq!(arg.get_env().unwrap().to_str(), Some(expected.as_str()));
        assert!(arg.get_help().is_some(), "{name} has no help");
    }
}

#[test]
fn reports_have_neither_secrets_nor_folders() {
    let args = ["bench", "--api-key", "secret", "--trace", "/home/me/t.jsonl", "--duration", "2m"];
    let load = Cli::try_parse_from(args).unwrap().bench.load;
    let report = serde_json::to_value(&load).unwrap();
    assert!(!report.to_string().contains("secret"));
    assert_eq!(report["trace"], "t.jsonl");
    assert_eq!(report["duration_s"], 120.0);
}
