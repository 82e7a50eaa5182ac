//! Hits of each eviction policy, and of the selected one, on a trace of prompts.
//!
//! `cargo run --release -p stator-kv --example policies -- TRACE [SLOTS]...`, where TRACE has one
//! JSON object a line with `hash_ids`, the blocks of a prompt, as in Mooncake's traces.

use serde_json::Value;
use stator_kv::policy::{PolicyName, PolicySelector, ShadowCache};
use stator_protos::name::BlockName;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let trace = arguments.next().expect("the path of a trace");
    let trace = std::fs::read_to_string(trace).expect("a trace that can be read");
    let prompts: Vec<Vec<BlockName>> = trace.lines().map(prompt).collect();
    let asked: usize = prompts.iter().map(Vec::len).sum();
    let mut slots: Vec<usize> =
        arguments.map(|slots| slots.parse().expect("a number of slots")).collect();
    if slots.is_empty() {
        slots = vec![1_000, 3_000, 10_000, 30_000, 60_000];
    }
    println!("{} prompts, {asked} blocks; hits in percent", prompts.len());
    for slots in slots {
        print!("{slots:>6} slots");
        for name in PolicyName::ALL {
            let mut cache = ShadowCache::new(name.build(slots), slots);
            prompts.iter().for_each(|prompt| cache.ask(prompt));
            print!("  {name:?} {:.1}", percent(cache.hits(), asked));
        }
        let mut cache = ShadowCache::new(PolicySelector::new(slots), slots);
        for prompt in &prompts {
            cache.policy_mut().ask(prompt);
            cache.ask(prompt);
        }
        let end = cache.policy_mut().current();
        println!("  selected {:.1} ({end:?} at the end)", percent(cache.hits(), asked));
    }
}

fn prompt(line: &str) -> Vec<BlockName> {
    let line: Value = serde_json::from_str(line).expect("a JSON object a line");
    let ids = line["hash_ids"].as_array().expect("a list of blocks");
    ids.iter().map(|id| BlockName(id.as_u64().expect("a number").into())).collect()
}

fn percent(hits: u64, of: usize) -> f64 {
    100.0 * hits as f64 / of as f64
}
