use super::*;
use crate::model::tests::QWEN_32B;
use crate::replay::replay_at;
use crate::search::search;
use crate::search::tests::request;
use crate::tabled::tests::tables;
use stator_tables::{EngineTables, TableNeeds, TablesFolder};
use stator_tables_testkit::{TableColumn, write_table};
use std::sync::Arc;

/// The sources of the best plan of two GPUs.
fn sources(request: &PlanRequest) -> StepTimeSources {
    let found = search(request);
    let best = found.candidates.first().unwrap_or_else(|| panic!("{:?}", found.reach));
    let plan = replay_at(request, best, 0.02).expect("no rule is broken");
    StepTimeSources::of(request, &plan)
}

#[test]
fn a_roofline_says_its_error() {
    let found = sources(&request(QWEN_32B, "h100-sxm", 2));
    assert_eq!((found.source, found.itl_error_percent), ("roofline", Some(9.0)));
    let text = found.text();
    assert!(
        text.starts_with("Step times come from a roofline with fitted coefficients.\n"),
        "{text}"
    );
    assert!(text.contains("models like this one: 9 %"), "{text}");
    assert!(found.operations.iter().all(|of| of.source == "roofline"));
}

#[test]
fn tables_are_named_with_their_versions_and_what_they_lack() {
    let mut request = request(QWEN_32B, "h100-sxm", 2);
    // Without attention apart, the tables lack it.
    let read = tables(TableNeeds { experts: false, latent: true });
    request.tables = vec![(request.engines[0], Arc::new(read))];
    request.forms.disaggregated = false;
    let found = sources(&request);
    assert_eq!(found.source, "tables");
    let text = found.text();
    assert!(text.contains("the tables gemm_perf 0.24.0, custom_allreduce_perf 0.24.0"), "{text}");
    assert!(text.contains("; the roofline has attention (prompt), attention (decode)."), "{text}");
    let of = |step, operation| {
        let of = found.operations.iter().find(|of| (of.step, of.operation) == (step, operation));
        of.expect("both steps have products").source
    };
    assert_eq!(of("prompt", "matrix products"), "tables");
    assert_eq!(of("decode", "attention"), "roofline");
}

#[test]
fn narrow_products_that_are_slower_than_wide_ones_are_told() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("data/h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet");
    let columns = [
        (
            "gemm_dtype",
            TableColumn::Words(["bfloat16", "fp8"].map(|of| Some(of.to_owned())).to_vec()),
        ),
        ("m", TableColumn::counts([1, 1])),
        ("n", TableColumn::counts([64, 64])),
        ("k", TableColumn::counts([64, 64])),
        ("latency", TableColumn::numbers([0.01, 0.02])),
    ];
    write_table(&file, &columns);
    let folder = TablesFolder::find(home.path()).expect("a folder with tables");
    let needs = TableNeeds { experts: false, latent: false };
    let read = EngineTables::read(&folder, "h100-sxm", "vllm", needs).expect("sound tables");
    let mut request = request(QWEN_32B, "h100-sxm", 2);
    request.tables = vec![(request.engines[0], Arc::new(read))];
    assert!(sources(&request).suspicions.is_empty());
    request.model.weights = Precision::Fp8;
    let text = sources(&request).text();
    assert!(
        text.contains("Warning: the tables have 5.1 ms for matrix products of fp8 weights"),
        "{text}"
    );
    assert!(text.contains("and 2.6 ms in 16 bits; the rows of fp8 are suspect"), "{text}");
}
