//! The load generator against the real endpoint.

use crate::support::up;
use serde_json::Value;
use stator_tests::process::Process;

#[tokio::test]
async fn a_trace_is_replayed_and_reported() {
    let up = up(&["--engine=sim", "--sim-preset=none"]).await;
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    let rows: Vec<String> = (0..12)
        .map(|n| {
            format!(
                r#"{{"timestamp": {}, "input_length": {}, "output_length": 20, "hash_ids": [0, 1, {}]}}"#,
                n * 40,
                1200 + n,
                n + 2
            )
        })
        .collect();
    std::fs::write(at("trace.jsonl"), rows.join("\n")).unwrap();
    let url = format!("--url=http://{}", up.client.address());
    let (trace, json, html) = (
        format!("--trace={}", at("trace.jsonl")),
        format!("--json={}", at("r.json")),
        format!("--html={}", at("r.html")),
    );
    let pid = format!("--pid={}", up.process.id());
    let mut bench = Process::start(&[
        "bench",
        &url,
        &trace,
        "--limit=10",
        "--speed=2",
        "--length-scale=0.25",
        &json,
        &html,
        &pid,
    ]);
    assert!(bench.ended().await.success(), "{}", bench.log());

    let report: Value = serde_json::from_slice(&std::fs::read(at("r.json")).unwrap()).unwrap();
    assert_eq!(report["requests"]["succeeded"], 10, "{report}");
    assert!(report["tokens"]["cached_share"].as_f64().unwrap() > 0.2, "{report}");
    assert!(report["latency"]["ttft"]["p50_ms"].as_f64().unwrap() > 0.0, "{report}");
    let page = std::fs::read_to_string(at("r.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("src=\"http"), "the page is self-contained");
}
