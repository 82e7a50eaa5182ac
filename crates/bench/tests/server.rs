//! Whole measurements against a small server that answers as OpenAI-compatible engines do.

#![allow(clippy::unwrap_used)] // A test that cannot go on panics.

mod fake;

use std::io::Write;

use clap::Parser;
use fake::Fake;
use stator_bench::report::Report;
use stator_bench::run::measure;
use stator_bench::{LoadArgs, report};
use stator_runtime::Shutdown;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    load: LoadArgs,
}

fn args(server: &Fake, more: &[&str]) -> LoadArgs {
    let url = server.url();
    let first = ["bench", "--url", &url, "--timeout-s", "20"];
    Cli::try_parse_from(first.iter().chain(more)).unwrap().load
}

async fn run(server: &Fake, more: &[&str]) -> Report {
    let (_trigger, shutdown) = Shutdown::new();
    measure(&args(server, more), &shutdown).await.unwrap()
}

#[tokio::test]
async fn a_closed_loop_counts_tokens_and_times() {
    let server = Fake::start().await;
    let report =
        run(&server, &["--requests", "40", "--concurrency", "4", "--output-tokens", "8"]).await;

    assert_eq!((report.requests.sent, report.requests.succeeded), (40, 40));
    assert_eq!((report.tokens.output, report.tokens.prompt), (320, 40 * 256));
    assert_eq!(report.latency.ttft.count, 40);
    assert_eq!(report.latency.itl.count, 40);
    assert_eq!(report.latency.inter_chunk.count, 40 * 7);
    assert!(report.latency.e2e.p50_ms >= report.latency.ttft.p50_ms);
    assert_eq!(report.model, "fake");
    assert_eq!(report.tokens.uncounted_answers, 0);
}

#[tokio::test]
async fn a_closed_loop_keeps_its_concurrency_and_its_connections() {
    let server = Fake::start().await;
    let more = ["--model", "gather 3", "--requests", "60", "--concurrency", "3"];
    run(&server, &more).await;
    assert_eq!((server.most_in_flight(), server.connections()), (3, 3));

    let server = Fake::start().await;
    run(&server, &["--requests", "20", "--concurrency", "1"]).await;
    assert_eq!(server.connections(), 1, "the list of models came on the same connection");
}

#[tokio::test]
async fn a_steady_load_is_measured_without_its_beginning_and_its_end() {
    let server = Fake::start().await;
    let more = ["--concurrency", "4", "--ramp", "50ms", "--duration", "200ms", "--quickack"];
    let report = run(&server, &more).await;
    assert!(report.requests.succeeded > 0);
    assert_eq!(report.requests.failed, 0);
    assert!(report.requests.unfinished <= 4, "those in flight at the end were cut off");
    assert!(server.most_in_flight() <= 4);
    assert!(report.machine.is_none_or(|machine| machine.cpus > 0));
}

#[tokio::test]
async fn a_server_that_closes_idle_connections_is_no_failure() {
    let server = Fake::start().await;
    let more = ["--model", "close", "--requests", "30", "--concurrency", "2"];
    let report = run(&server, &more).await;
    assert_eq!(report.requests.succeeded, 30);
    assert_eq!(server.connections(), 30);
}

#[tokio::test]
async fn the_share_of_cached_tokens_is_what_the_server_says() {
    let server = Fake::start().await;
    let more = ["--endpoint", "completions", "--prompt-tokens", "100", "--requests", "10"];
    let report = run(&server, &more).await;
    // The fake says that all but the last 20 tokens of a prompt of ids were cached.
    assert_eq!((report.tokens.prompt, report.tokens.cached), (1_000, Some(800)));
    assert_eq!(report.tokens.cached_share, Some(0.8));
}

#[tokio::test]
async fn whole_answers_are_measured_without_a_first_token() {
    let server = Fake::start().await;
    let report = run(&server, &["--no-stream", "--requests", "5", "--output-tokens", "4"]).await;
    assert_eq!((report.requests.succeeded, report.tokens.output), (5, 20));
    assert_eq!((report.latency.ttft.count, report.latency.e2e.count), (0, 5));
}

#[tokio::test]
async fn failures_are_told_apart() {
    let server = Fake::start().await;
    for (model, expected) in [
        ("busy", "http 429 rate_limit_error"),
        ("broken", "connection broken"),
        ("truncated", "stream cut short"),
        ("lost", "in stream worker_lost"),
        ("garbage", "malformed answer"),
    ] {
        let report =
            run(&server, &["--model", model, "--requests", "6", "--concurrency", "2"]).await;
        let failures: Vec<_> = report.requests.failures.iter().collect();
        assert_eq!(failures, [(&expected.to_owned(), &6)], "{model}");
        assert_eq!((report.requests.failed, report.requests.succeeded), (6, 0));
    }
}

#[tokio::test]
async fn silence_is_a_timeout_and_a_closed_port_a_failed_connection() {
    let server = Fake::start().await;
    let silent = ["--model", "silent", "--requests", "2", "--timeout-s", "0.05"];
    let load =
        Cli::try_parse_from(["bench", "--url", &server.url()].iter().chain(&silent)).unwrap();
    let (_trigger, shutdown) = Shutdown::new();
    let report = measure(&load.load, &shutdown).await.unwrap();
    assert_eq!(report.requests.failures["timeout"], 2);

    let url = fake::closed_port().await;
    let closed = ["bench", "--url", &url, "--model", "x", "--requests", "3"];
    let load = Cli::try_parse_from(closed).unwrap().load;
    assert_eq!(measure(&load, &shutdown).await.unwrap().requests.failures["cannot connect"], 3);
    let nameless = Cli::try_parse_from(["bench", "--url", &url]).unwrap().load;
    assert!(measure(&nameless, &shutdown).await.is_err());
}

#[tokio::test]
async fn conversations_carry_what_was_said() {
    let server = Fake::start().await;
    let more =
        ["--conversations", "3", "--turns", "3", "--prompt-tokens", "10", "--output-tokens", "2"];
    let report = run(&server, &more).await;
    assert_eq!(report.requests.succeeded, 9);
    let mut lengths: Vec<usize> = server.bodies().iter().map(|body| roles(body).len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [2, 2, 2, 4, 4, 4, 6, 6, 6]);
    let bodies = server.bodies();
    let last = bodies.iter().find(|body| roles(body).len() == 6).unwrap();
    assert_eq!(roles(last), ["system", "user", "assistant", "user", "assistant", "user"]);
    assert_eq!(last["messages"][2]["content"], " w0 w1");
}

fn roles(body: &serde_json::Value) -> Vec<&str> {
    let messages = body["messages"].as_array().unwrap();
    messages.iter().map(|message| message["role"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_trace_is_replayed_at_its_times_with_its_prefixes() {
    let server = Fake::start().await;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for (at, ids) in [(5_000, "0,1"), (5_000, "0,2"), (9_000, "0,1,3")] {
        let input = 512 * ids.split(',').count();
        let line = format!(
            r#"{{"timestamp":{at},"input_length":{input},"output_length":96,"hash_ids":[{ids}]}}"#
        );
        writeln!(file, "{line}").unwrap();
    }
    let path = file.path().to_str().unwrap();
    let more =
        ["--endpoint", "completions", "--trace", path, "--speed", "100", "--length-scale", "1/32"];
    let report = run(&server, &more).await;

    assert!(report.open_loop);
    assert_eq!((report.requests.succeeded, report.tokens.output), (3, 9));
    assert!(report.window_s >= 0.04);
    let mut prompts: Vec<Vec<u64>> = server.bodies().iter().map(ids).collect();
    prompts.sort_by_key(Vec::len);
    assert_eq!(prompts.iter().map(Vec::len).collect::<Vec<_>>(), [32, 32, 48]);
    assert_eq!(prompts[0][..16], prompts[1][..16]);
    assert_ne!(prompts[0], prompts[1]);
    assert!(prompts[..2].iter().any(|prompt| prompts[2].starts_with(prompt)));
}

fn ids(body: &serde_json::Value) -> Vec<u64> {
    body["prompt"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[tokio::test]
async fn an_open_loop_does_not_wait_for_answers() {
    let server = Fake::start().await;
    let more = ["--model", "gather 12", "--rate", "2000", "--requests", "12"];
    let report = run(&server, &more).await;
    assert_eq!((report.requests.succeeded, server.most_in_flight()), (12, 12));
    assert_eq!(report.latency.send_lag.count, 12);
}

#[tokio::test]
async fn an_open_loop_keeps_its_bound() {
    let server = Fake::start().await;
    let more = ["--rate", "100000", "--requests", "50", "--concurrency", "2"];
    assert_eq!(run(&server, &more).await.requests.succeeded, 50);
    assert!(server.most_in_flight() <= 2);
}

#[tokio::test]
async fn warm_up_requests_are_not_measured() {
    let server = Fake::start().await;
    let report = run(&server, &["--warmup-requests", "7", "--requests", "5"]).await;
    assert_eq!((report.requests.sent, server.bodies().len()), (5, 12));
}

#[tokio::test]
async fn ending_early_reports_what_was_measured() {
    let server = Fake::start().await;
    let (trigger, shutdown) = Shutdown::new();
    let load = args(&server, &["--model", "silent", "--requests", "9", "--concurrency", "3"]);
    let measuring = tokio::spawn(async move { measure(&load, &shutdown).await.unwrap() });
    server.in_flight(3).await;
    trigger.set();
    let report = measuring.await.unwrap();
    assert_eq!((report.requests.sent, report.requests.unfinished), (3, 3));
    assert!(report::table::render(&report).contains("3 cut off"));
}

#[tokio::test]
async fn a_duration_ends_an_endless_workload() {
    let server = Fake::start().await;
    let report = run(&server, &["--duration", "50ms", "--concurrency", "2"]).await;
    assert_eq!(report.requests.sent, report.requests.succeeded);
    // The first arrival lies beyond the duration, so that nothing is sent at all.
    let report = run(&server, &["--duration", "1ms", "--rate", "0.001"]).await;
    assert_eq!(report.requests.sent, 0);
}

#[tokio::test]
async fn contradictions_are_refused_before_anything_is_sent() {
    let server = Fake::start().await;
    let (_trigger, shutdown) = Shutdown::new();
    for (more, expected) in [
        (&["--no-stream", "--slo-ttft-ms", "5"][..], "slo-ttft-ms"),
        (&["--prompt-kind", "tokens"], "prompt-kind"),
        (&["--trace", "no-such-file"], "no-such-file"),
        (&["--url", "https://localhost"], "needs TLS"),
    ] {
        let load = Cli::try_parse_from(["bench"].iter().chain(more)).unwrap().load;
        let error = format!("{:#}", measure(&load, &shutdown).await.unwrap_err());
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn reports_are_written_in_every_form() {
    let server = Fake::start().await;
    let report = run(&server, &["--requests", "20", "--slo-ttft-ms", "60000"]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    stator_report::write_json(&path, &report).unwrap();
    let again = report::json::read(&path).unwrap();
    assert_eq!(again.requests, report.requests);
    assert_eq!(again.goodput.map(|goodput| goodput.good), Some(20));
    assert_eq!(report::html::render(&report).matches("<svg").count(), 6);
}
