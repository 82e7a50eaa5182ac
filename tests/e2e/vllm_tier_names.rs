//! Names of blocks in the KV tiers of a vLLM.

use crate::vllm_tiers::SHIMS;
use serde_json::Value;
use stator_tests::stock::{Bed, Engine};
use std::process::Command;

/// Keys that vLLM computed once, with the names that the agent makes of them, which its own tests
/// compare.
const KEYS: &str = include_str!("../../worker-agent/kv/fixtures/vllm-0.32.0-keys.json");

/// Two processes of the engine name the blocks of a prompt alike, and as they did when KV was stored
/// that is on disks by now. Python's own hashes differ between these processes.
#[test]
fn hash_vectors_equal_the_engine() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let expected: Vec<Value> = serde_json::from_str(KEYS).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/engines/block_keys.py");
    for _ in 0..2 {
        let mut engine = Command::new(bed.program().with_file_name("python"));
        engine.args(["-B", script]).env("PYTHONPATH", SHIMS).env_remove("PYTHONHASHSEED");
        let told = engine.output().unwrap();
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        // Modules of vLLM may print lines of their own before.
        let told: Vec<Value> = serde_json::from_str(told.lines().last().unwrap()).unwrap();
        assert_eq!(told.len(), expected.len());
        for (told, expected) in told.iter().zip(&expected) {
            assert_eq!(told["keys"], expected["keys"], "{}", expected["prompt"]);
        }
    }
}
