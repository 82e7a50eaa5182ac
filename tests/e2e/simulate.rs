//! `stator simulate` with KV tiers on a trace that is small enough to be worked out by hand.

use serde_json::Value;
use stator_tests::process::Process;
use std::path::Path;

/// Three prompts of 1,636 tokens, three whole blocks each: the third is the first once more. Long before
/// the next one comes everything is written.
const TRACE: &str = r#"
{"timestamp": 0, "input_length": 1636, "output_length": 1, "hash_ids": [1, 2, 3, 4]}
{"timestamp": 60000, "input_length": 1636, "output_length": 1, "hash_ids": [11, 12, 13, 14]}
{"timestamp": 120000, "input_length": 1636, "output_length": 1, "hash_ids": [1, 2, 3, 5]}
"#;
/// Tokens of a block, and of all prompts.
const BLOCK: f64 = 512.0;
const TOKENS: f64 = 3.0 * 1636.0;
/// One worker whose device has room for one prompt.
const FLEET: [&str; 6] = [
    "--policy=stator",
    "--workers=1",
    "--block-size=512",
    "--kv-tokens=2048",
    "--max-running=1",
    "--speed=1",
];

/// Cached blocks, and what the tiers did.
async fn simulated(home: &Path, flags: &[&str]) -> (f64, Value) {
    let (trace, json) = (home.join("trace.jsonl"), home.join("report.json"));
    std::fs::write(&trace, TRACE).unwrap();
    let (trace, json_flag) =
        (format!("--trace={}", trace.display()), format!("--json={}", json.display()));
    let args = ["simulate", &*trace, &*json_flag].into_iter().chain(FLEET);
    let args: Vec<_> = args.chain(flags.iter().copied()).collect();
    let mut process = Process::start(&args);
    assert!(process.ended().await.success(), "{}", process.log());
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let outcome = report["outcomes"][0].clone();
    (outcome["cached_share"].as_f64().unwrap() * TOKENS / BLOCK, outcome["tiers"].clone())
}

fn assert_blocks(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found} blocks, not {expected}");
}

#[tokio::test]
async fn a_simulated_fleet_with_tiers_has_the_hits_that_are_worked_out_by_hand() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    // The second prompt takes the place of the first.
    let (cached, tiers) = simulated(home, &[]).await;
    assert_blocks(cached, 0.0);
    assert_eq!(tiers["host_written"], 0);

    // Host memory of eight blocks has all six.
    let (cached, tiers) = simulated(home, &["--host-kv-tokens=4096"]).await;
    assert_blocks(cached, 3.0);
    assert_eq!((&tiers["host"], &tiers["host_written"]), (&3.into(), &6.into()));

    // Of four blocks it has the first of the first prompt: of one prompt the last goes first. The disk has
    // the two behind. A second touch writes that first one alone: the others are computed at the very end.
    let below = ["--host-kv-tokens=2048", "--host-policy=lru", "--disk-kv-tokens=8192"];
    let ways = [("through", 3.0, [1, 2, 6]), ("second-touch", 1.0, [1, 0, 1])];
    for (admission, blocks, expected) in ways {
        let admission = format!("--disk-admission={admission}");
        let flags: Vec<_> = below.iter().copied().chain([&*admission]).collect();
        let (cached, tiers) = simulated(home, &flags).await;
        assert_blocks(cached, blocks);
        let found = ["host", "disk", "disk_written"].map(|of| tiers[of].as_u64().unwrap());
        assert_eq!(found, expected, "{admission}");
    }

    // An object store has the two that the disk had. At its usual speed they are computed sooner.
    let objects = ["--host-kv-tokens=2048", "--host-policy=lru", "--object-kv"];
    let near = ["--object-gb-s=20", "--object-latency-ms=1"];
    for (flags, blocks, read) in [(&near[..], 3.0, 2), (&[], 1.0, 0)] {
        let (cached, tiers) = simulated(home, &[&objects[..], flags].concat()).await;
        assert_blocks(cached, blocks);
        let found = ["objects", "objects_written"].map(|of| tiers[of].as_u64().unwrap());
        assert_eq!(found, [read, 6]);
    }
}
