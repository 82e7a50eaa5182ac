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
    let graph = graph(&request, &layout, &GraphChoices::of(&request));
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
fn simulated_workers_need_no_gpu_and_keep_their_roles() {
    let mut request = request(QWEN_32B, "h100-sxm", 8);
    request.forms.aggregated = false;
    let layout = search(&request).candidates[0].layout;
    let folder = Some("/opt/model-cache/qwen".to_owned());
    let choices = GraphChoices { is_simulated: true, ..GraphChoices::of(&request) };
    let choices = GraphChoices { model_folder: folder, ..choices };
    let simulated = graph(&request, &layout, &choices);
    let real = graph(&request, &layout, &GraphChoices { is_simulated: false, ..choices });
    for (at, role) in [(1, "prefill"), (2, "decode")] {
        let main = |graph: &Value| {
            graph["spec"]["components"][at]["podTemplate"]["spec"]["containers"][0].clone()
        };
        let (simulated, real) = (main(&simulated), main(&real));
        assert_eq!(simulated["command"][2], "dynamo.mocker");
        assert_eq!(simulated["resources"], Value::Null);
        for container in [&simulated, &real] {
            let text = container["args"].to_string();
            assert!(text.contains(&format!("\"--disaggregation-mode\",\"{role}\"")), "{text}");
            assert!(text.contains("/opt/model-cache/qwen"), "{text}");
        }
    }
}

#[test]
fn names_are_as_kubernetes_takes_them() {
    assert_eq!(resource_name("Qwen/Qwen3-32B_FP8"), "qwen-qwen3-32b-fp8");
    assert_eq!(resource_name("///"), "model");
}
