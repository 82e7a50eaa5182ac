//! Flags that cannot be used are told with their values and what would work.

use super::*;
use crate::model::tests::QWEN_32B;
use clap::{Command, FromArgMatches as _};

/// The faults of flags beside a model and eight GPUs.
fn faults(flags: &str) -> Vec<String> {
    let home = tempfile::tempdir().expect("a folder");
    std::fs::write(home.path().join("config.json"), QWEN_32B).expect("the folder is ours");
    let model = home.path().display().to_string();
    let command = PlanArgs::augment_args(Command::new("x").no_binary_name(true));
    let given = [format!("--model={model}"), "--gpus=8".to_owned()];
    let words = given.into_iter().chain(flags.split_whitespace().map(str::to_owned));
    let matches = command.args_override_self(true).try_get_matches_from(words);
    let args = PlanArgs::from_arg_matches(&matches.expect("known flags")).expect("good values");
    args.request().expect_err(flags).0
}

#[test]
fn an_unknown_gpu_is_told_with_all_that_are_known_and_the_nearest() {
    let found = faults("--gpu h1000-sxm");
    assert!(found[0].starts_with("gpu: \"h1000-sxm\" is none of a100-sxm, "), "{found:?}");
    assert!(found[0].ends_with("; the nearest is h100-sxm"), "{found:?}");
}

#[test]
fn a_model_whose_shape_is_not_understood_is_told_with_its_field() {
    let found = faults("--gpu l4 --model /nowhere");
    assert!(found[0].starts_with("model: ") && found[0].contains("/nowhere"), "{found:?}");
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("config.json");
    let text = QWEN_32B.replace("\"head_dim\": 128", "\"ssm_state_size\": 16");
    std::fs::write(&file, text).expect("the folder is ours");
    let found = faults(&format!("--gpu l4 --model {}", file.display()));
    assert!(found[0].contains("ssm_state_size: state-space layers"), "{found:?}");
}

#[test]
fn lengths_and_bounds_that_contradict_each_other_are_told_with_their_limits() {
    let found =
        faults("--gpu l4 --isl 40 --cached 40 --osl 1 --ttft-ms 0 --attainment-percent 101");
    for part in [
        "cached: 40 is not in 0..=39",
        "osl: 1 is not in 2..=1000000",
        "ttft_ms: 0 is not in 1..=600000",
        "attainment_percent: 101 is not in 50..=100",
    ] {
        assert!(found.iter().any(|fault| fault == part), "{part} is not in {found:#?}");
    }
    let found = faults("--gpu l4 --isl 40000 --osl 1000");
    assert_eq!(
        found,
        ["isl: 40000 and osl 1000 are 41000 tokens, above the model's context of 40960"]
    );
}

#[test]
fn tables_that_cannot_be_used_are_told_with_their_folder() {
    let home = tempfile::tempdir().expect("a folder");
    let flags = format!("--gpu l4 --engine vllm --tables {}", home.path().display());
    let found = faults(&flags);
    assert!(found[0].contains("no folder data in it"), "{found:?}");
    std::fs::create_dir(home.path().join("data")).expect("the folder is ours");
    assert!(faults(&flags)[0].ends_with(": no table of l4 for vllm"), "{:?}", faults(&flags));
}

#[test]
fn tables_of_the_gpu_are_read_for_each_engine() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("data/h100_sxm/gemm/sglang/0.5.14/gemm_perf.parquet");
    stator_tables_testkit::write_products(&file, &[([1, 64, 64], 0.01)]);
    std::fs::write(home.path().join("config.json"), QWEN_32B).expect("the folder is ours");
    let home = home.path().display();
    let command = PlanArgs::augment_args(Command::new("x").no_binary_name(true));
    let words =
        ["--gpu=h100-sxm", "--gpus=8", &format!("--model={home}"), &format!("--tables={home}")];
    let matches = command.try_get_matches_from(words).expect("known flags");
    let args = PlanArgs::from_arg_matches(&matches).expect("good values");
    let tables = args.request().expect("a request").tables;
    assert_eq!(tables.len(), 1, "{tables:?}");
    assert_eq!((tables[0].0, tables[0].1.sources()[0].rows), (EngineKind::Sglang, 1));
}
