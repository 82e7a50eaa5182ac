//! `stator plan`: from a model's configuration to a layout, its page and its manifest.

use crate::support::up;
use serde_json::{Value, json};
use stator_tables_testkit::write_products;
use stator_tests::process::Process;
use std::path::Path;

/// The published sizes of Qwen3 32B.
fn model(home: &Path) -> String {
    let config = json!({
        "num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 25600,
        "vocab_size": 151_936, "max_position_embeddings": 40_960,
    });
    std::fs::write(home.join("config.json"), config.to_string()).unwrap();
    format!("--model={}", home.display())
}

async fn plan(args: &[&str]) -> (bool, String) {
    let mut process = Process::start(&[&["plan", "--gpu=h100-sxm"], args].concat());
    let ended = process.ended().await;
    (ended.success(), process.log())
}

#[tokio::test]
async fn a_rate_and_two_targets_give_a_layout_a_page_and_a_manifest() {
    let home = tempfile::tempdir().unwrap();
    let model = model(home.path());
    let at = |name: &str| home.path().join(name);
    let file = |flag: &str, name: &str| format!("--{flag}={}", at(name).display());
    let (json, html) = (file("json", "p.json"), file("html", "p.html"));
    let manifest = file("manifest", "p.yaml");
    let args = [&model, "--gpus=16", "--rate=4", "--engine=vllm", &json, &html, &manifest];
    let (is_found, log) = plan(&args).await;
    assert!(is_found, "{log}");
    assert!(log.contains("stator agent --engine vllm --model"), "{log}");

    let report: Value = serde_json::from_slice(&std::fs::read(at("p.json")).unwrap()).unwrap();
    let best = &report["plans"][0];
    assert!(best["attainment"].as_f64().unwrap() >= 0.95, "{best}");
    assert_eq!(best["rate"], 4.0, "{best}");
    let page = std::fs::read_to_string(at("p.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("src=\"http"), "the page is self-contained");
    let graph = std::fs::read_to_string(at("p.yaml")).unwrap();
    assert!(graph.contains("kind: DynamoGraphDeployment"), "{graph}");
}

#[tokio::test]
async fn every_bad_flag_is_named_at_once() {
    let home = tempfile::tempdir().unwrap();
    let args = [&model(home.path()), "--gpus=0", "--isl=0", "--itl-ms=0", "--osl=100000"];
    let (is_found, log) = plan(&args).await;
    assert!(!is_found);
    for expected in
        ["gpus: 0 is not in 1", "isl: 0 is not in 1", "itl_ms: 0 is not", "context of 40960"]
    {
        assert!(log.contains(expected), "{expected} is missing in {log}");
    }
}

#[tokio::test]
async fn a_target_that_nothing_meets_is_told_with_the_nearest_that_works() {
    let home = tempfile::tempdir().unwrap();
    let model = model(home.path());
    let (is_found, log) = plan(&[&model, "--gpus=8", "--itl-ms=1"]).await;
    assert!(!is_found);
    let nearest = log.split("itl_ms: 1.0 is met by no layout; the nearest is ").nth(1).expect(&log);
    let nearest: f64 = nearest.split(',').next().unwrap().parse().unwrap();
    // The figure is rounded to a tenth.
    let nearest = format!("--itl-ms={:.1}", nearest + 0.1);
    let (is_found, log) = plan(&[&model, "--gpus=8", &nearest]).await;
    assert!(is_found, "{log}");
}

/// An engine is measured, and the plan takes its times: a step of 20 ms leaves no faster answer.
#[tokio::test]
async fn times_that_were_measured_on_an_engine_are_those_of_the_plan() {
    let up = up(&["--engine=sim", "--sim-step-ms=20"]).await;
    let home = tempfile::tempdir().unwrap();
    let profile = home.path().join("profile.json");
    let url = format!("--url=http://{}", up.client.address());
    let file = format!("--profile={}", profile.display());
    let grid = ["--profile-prompts=64,512", "--profile-batches=1,4", "--profile-repeats=1"];
    let mut bench = Process::start(&[&["bench", &url, &file][..], &grid].concat());
    assert!(bench.ended().await.success(), "{}", bench.log());
    let measured: Value = serde_json::from_slice(&std::fs::read(&profile).unwrap()).unwrap();
    assert!(measured["timing"]["step_s"].as_f64().unwrap() >= 0.015, "{measured}");
    assert_eq!(measured["decode"].as_array().unwrap().len(), 4, "{measured}");

    let model = model(home.path());
    let (is_found, log) = plan(&[&model, "--gpus=8", "--itl-ms=10", &file]).await;
    assert!(!is_found && log.contains("itl_ms: 10.0 is met by no layout"), "{log}");
    std::fs::write(&profile, measured.to_string().replace("\"version\":1", "\"version\":2"))
        .unwrap();
    let (is_found, log) = plan(&[&model, "--gpus=8", &file]).await;
    assert!(!is_found && log.contains("version: 2 is not 1"), "{log}");
}

/// A folder of tables with matrix products of `ms` milliseconds, whatever their shape.
fn tables(home: &Path, ms: f64) -> String {
    let file = "aiconfigurator_core/systems/data/h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet";
    write_products(&home.join(file), &[([1, 64, 64], ms), ([4096, 64, 64], ms)]);
    format!("--tables={}", home.display())
}

/// Four products of 0.1 ms in each of 64 layers leave no faster answer than 25 ms.
#[tokio::test]
async fn measured_products_take_the_place_of_the_roofline() {
    let home = tempfile::tempdir().unwrap();
    let (model, tables) = (model(home.path()), tables(home.path(), 0.1));
    let json = home.path().join("p.json");
    let args = [&model, "--gpus=8", "--engine=vllm", "--rate=1", &tables];
    let file = format!("--json={}", json.display());
    let (is_found, log) = plan(&[&args[..], &[&file]].concat()).await;
    assert!(is_found, "{log}");
    assert!(
        log.contains("Step times come from the tables gemm_perf 0.24.0; the roofline has"),
        "{log}"
    );
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["step_times"]["source"], "tables", "{report}");
    let products = &report["step_times"]["operations"][0];
    assert_eq!(
        (&products["operation"], &products["source"]),
        (&json!("matrix products"), &json!("tables"))
    );
    assert!(report["plans"][0]["itl_ms"]["mean"].as_f64().unwrap() >= 25.0, "{report}");

    let (is_found, log) = plan(&[&args[..], &["--itl-ms=10"]].concat()).await;
    assert!(!is_found && log.contains("itl_ms: 10.0 is met by no layout"), "{log}");
}

#[tokio::test]
async fn a_table_that_cannot_be_used_is_told_with_file_column_and_row() {
    let home = tempfile::tempdir().unwrap();
    let (model, tables) = (model(home.path()), tables(home.path(), -1.0));
    let (is_found, log) = plan(&[&model, "--gpus=8", "--engine=vllm", &tables]).await;
    assert!(!is_found);
    assert!(log.contains("gemm_perf.parquet: column latency, row 1: -1 is not above 0"), "{log}");
    let file = home
        .path()
        .join("aiconfigurator_core/systems/data/h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet");
    std::fs::write(&file, "no table").unwrap();
    let (is_found, log) = plan(&[&model, "--gpus=8", "--engine=vllm", &tables]).await;
    assert!(!is_found && log.contains("gemm_perf.parquet: "), "{log}");
}
