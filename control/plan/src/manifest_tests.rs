use super::*;
use crate::model::tests::{DEEPSEEK, QWEN_32B};
use crate::search::search;
use crate::search::tests::request;

#[test]
fn commands_carry_parallelism_and_batch() {
    let request = request(QWEN_32B, "h100-sxm", 8);
    let found = search(&request);
    let of = |splits: bool| {
        let is = |layout: &Layout| matches!(layout, Layout::Disaggregated { .. }) == splits;
        let found = found.candidates.iter().find(|c| is(&c.layout)).expect("a candidate");
        (commands(&request, &found.layout), found.layout)
    };
    let (whole, layout) = of(false);
    let group = layout.answering();
    assert!(whole.contains(&format!("--max-num-seqs {}", group.batch_max)), "{whole}");
    assert!(!whole.contains("--role"), "{whole}");
    let (split, _) = of(true);
    assert!(split.contains("--role prefill") && split.contains("--role decode"), "{split}");
}

#[test]
fn a_graph_names_every_group_and_its_gpus() {
    let request = request(DEEPSEEK, "h200-sxm", 32);
    let layout = search(&request).candidates[0].layout;
    let graph: Value = serde_yaml_ng::from_str(&graph(&request, &layout)).expect("YAML");
    let components = graph["spec"]["components"].as_array().expect("a list");
    let gpus: u64 = components
        .iter()
        .map(|component| {
            let limits = &component["podTemplate"]["spec"]["containers"][0]["resources"]["limits"];
            let gpus =
                limits["nvidia.com/gpu"].as_str().map_or(0, |gpus| gpus.parse().expect("a number"));
            let nodes = component["multinode"]["nodeCount"].as_u64().unwrap_or(1);
            gpus * nodes * component["replicas"].as_u64().expect("a number")
        })
        .sum();
    assert_eq!(gpus, u64::from(layout.gpus()));
}

#[test]
fn names_are_as_kubernetes_takes_them() {
    assert_eq!(resource_name("Qwen/Qwen3-32B_FP8"), "qwen-qwen3-32b-fp8");
    assert_eq!(resource_name("///"), "model");
}
