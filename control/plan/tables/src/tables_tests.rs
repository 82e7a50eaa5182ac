use super::*;
use crate::attention::KvFormat;
use stator_tables_testkit::{TableColumn, write_products, write_table};
use std::path::Path;
use tempfile::TempDir;

const NEEDS: TableNeeds = TableNeeds { experts: true, latent: false };

fn read(home: &Path, gpu: &str, needs: TableNeeds) -> Result<EngineTables, TableError> {
    EngineTables::read(&TablesFolder::find(home)?, gpu, "vllm", needs)
}

fn products(home: &Path, version: &str, ms: f64) {
    let file = format!("systems/data/h100_sxm/gemm/vllm/{version}/gemm_perf.parquet");
    write_products(&home.join(file), &[([1, 64, 64], ms), ([4, 64, 64], 4.0 * ms)]);
}

#[test]
fn the_newest_complete_version_counts() {
    let home = TempDir::new().expect("a folder");
    for (version, ms) in [("0.9.0", 1.0), ("0.10.0", 2.0), ("0.11.0rc1", 3.0)] {
        products(home.path(), version, ms);
    }
    let ms = || {
        let tables = read(home.path(), "h100-sxm", NEEDS).expect("tables");
        let version = tables.sources()[0].version.clone();
        let seconds = tables.product_s(&["bfloat16"], 1.0, 64.0, 64.0).expect("a product");
        (version, (seconds * 1e3).round())
    };
    assert_eq!(ms(), ("0.11.0rc1".to_owned(), 3.0));
    let slots = "defaults:\n  vllm: {current: '0.10.0', previous: null}\n";
    std::fs::write(home.path().join("systems/query_versions.yaml"), slots).expect("a file");
    assert_eq!(ms(), ("0.10.0".to_owned(), 2.0));
    let slots = format!("{slots}overrides:\n  h100_sxm:\n    vllm: {{current: '0.9.0'}}\n");
    std::fs::write(home.path().join("systems/query_versions.yaml"), slots).expect("a file");
    assert_eq!(ms(), ("0.9.0".to_owned(), 1.0));
}

#[test]
fn formats_are_tried_in_their_order() {
    let home = TempDir::new().expect("a folder");
    products(home.path(), "0.24.0", 1.0);
    let tables = read(home.path(), "h100-sxm", NEEDS).expect("tables");
    let product = |formats: &[&str]| tables.product_s(formats, 2.0, 64.0, 64.0);
    assert_eq!(product(&["fp8"]), None);
    let seconds = product(&["fp8", "bfloat16"]).expect("the second format");
    assert!((seconds - 0.002).abs() < 1e-12, "{seconds}");
    let source = &tables.sources()[0];
    assert_eq!((source.table, source.rows, source.gap_error), ("gemm_perf", 2, None));
}

#[test]
fn what_no_table_has_is_none() {
    let home = TempDir::new().expect("a folder");
    products(home.path(), "0.24.0", 1.0);
    let tables = read(home.path(), "h100-sxm", NEEDS).expect("tables");
    let shape =
        AttentionShape { heads: 8, kv_heads: 1, head_dim: 128, window: 0, kv: KvFormat::Bf16 };
    assert_eq!(tables.decode_attention_s(shape, 1.0, 100.0), None);
    assert_eq!(tables.prompt_attention_s(shape, 100.0), None);
    assert_eq!(tables.reduce_s(2, 100.0), None);
    let nowhere = read(home.path(), "b200-sxm", NEEDS).expect("no tables are no fault");
    assert!(nowhere.sources().is_empty());
}

#[test]
fn attention_is_read_by_shape_and_window() {
    let home = TempDir::new().expect("a folder");
    let folder = home.path().join("aiconfigurator_core/systems/data/h100_sxm/attention/vllm/1");
    let rows = [(8, 100, 0), (8, 200, 0), (8, 100, 64), (4, 100, 0)];
    let count = |of: fn(&(u32, u32, u32)) -> u32| TableColumn::counts(rows.iter().map(of));
    let columns = [
        ("attn_dtype", TableColumn::word("bfloat16", 4)),
        ("kv_cache_dtype", TableColumn::word("fp8", 4)),
        ("num_heads", count(|row| row.0)),
        ("num_key_value_heads", count(|_| 1)),
        ("head_dim", count(|_| 128)),
        ("window_size", count(|row| row.2)),
        ("batch_size", count(|_| 2)),
        ("isl", count(|_| 1)),
        ("step", count(|row| row.1 - 1)),
        ("latency", TableColumn::numbers([1.0, 2.0, 0.5, 0.25])),
    ];
    write_table(&folder.join("generation_attention_perf.parquet"), &columns);
    let tables = read(home.path(), "h100-sxm", NEEDS).expect("tables");
    let shape =
        |heads, window, kv| AttentionShape { heads, kv_heads: 1, head_dim: 128, window, kv };
    let ms = |shape, tokens| tables.decode_attention_s(shape, 2.0, tokens).map(|s| s * 1e3);
    let close = |found: Option<f64>, ms: f64| (found.expect("a time") / ms - 1.0).abs() < 1e-9;
    assert!(close(ms(shape(8, 0, KvFormat::Fp8), 150.0), 1.5));
    assert!(close(ms(shape(8, 64, KvFormat::Fp8), 100.0), 0.5));
    assert!(close(ms(shape(4, 0, KvFormat::Fp8), 100.0), 0.25));
    // A window that was not measured is a context of its length.
    assert!(close(ms(shape(8, 150, KvFormat::Fp8), 9_000.0), 1.5));
    assert_eq!(ms(shape(8, 0, KvFormat::Bf16), 100.0), None);
    assert_eq!(ms(shape(16, 0, KvFormat::Fp8), 100.0), None);
}

#[test]
fn experts_take_the_most_uneven_spread() {
    let home = TempDir::new().expect("a folder");
    let folder = home.path().join("data/h100_sxm/moe/vllm/1");
    let spreads = ["power_law_1.2", "balanced", "power_law_1.01", "something_new"];
    let words = spreads.map(|spread| Some(spread.to_owned())).to_vec();
    let same = |count: u32| TableColumn::counts([count; 4]);
    let columns = [
        ("moe_dtype", TableColumn::word("fp8_block", 4)),
        ("distribution", TableColumn::Words(words)),
        ("hidden_size", same(7_168)),
        ("inter_size", same(2_048)),
        ("topk", same(8)),
        ("num_experts", same(256)),
        ("moe_tp_size", same(8)),
        ("moe_ep_size", same(1)),
        ("num_tokens", same(16)),
        ("latency", TableColumn::numbers([3.0, 1.0, 2.0, 9.0])),
    ];
    write_table(&folder.join("moe_perf.parquet"), &columns);
    let tables = read(home.path(), "h100-sxm", NEEDS).expect("tables");
    let shape =
        ExpertShape { hidden: 7_168, inner: 2_048, active: 8, count: 256, tensor: 8, spread: 1 };
    let ms = |shape| tables.experts_s(shape, &["fp8_block"], 16.0).map(|s| (s * 1e3).round());
    assert_eq!(ms(shape), Some(3.0));
    assert_eq!(ms(ExpertShape { tensor: 4, ..shape }), None);
    let without = TableNeeds { experts: false, ..NEEDS };
    let tables = read(home.path(), "h100-sxm", without).expect("tables");
    assert!(tables.sources().is_empty(), "a table that no model needs is not read");
}

#[test]
fn latent_attention_comes_with_its_products_or_without() {
    for (name, format, includes) in [
        ("mla_generation_module_perf", Some("fp8_block"), true),
        ("generation_mla_perf", None, false),
    ] {
        let home = TempDir::new().expect("a folder");
        let prompts = name.replace("generation", "context");
        for name in [name, &prompts] {
            let path = home.path().join(format!("data/h100_sxm/mla/vllm/1/{name}.parquet"));
            let mut columns = vec![
                ("kv_cache_dtype", TableColumn::word("bfloat16", 2)),
                ("num_heads", TableColumn::counts([16, 16])),
                ("batch_size", TableColumn::counts([1, 1])),
                ("isl", TableColumn::counts([1, 1])),
                ("step", TableColumn::counts([99, 199])),
                ("latency", TableColumn::numbers([1.0, 2.0])),
            ];
            columns.extend(format.map(|format| ("gemm_type", TableColumn::word(format, 2))));
            write_table(&path, &columns);
        }
        let needs = TableNeeds { experts: false, latent: true };
        let tables = read(home.path(), "h100-sxm", needs).expect("tables");
        assert_eq!(tables.latent_includes_products(), includes, "{name}");
        let shape = LatentShape { heads: 16, kv: KvFormat::Bf16, formats: &["nvfp4", "fp8_block"] };
        let seconds = tables.latent_decode_s(shape, 1.0, 150.0).expect("a time");
        assert!((seconds - 0.0015).abs() < 1e-9, "{seconds}");
        assert!(tables.latent_prompt_s(shape, 100.0).is_some());
    }
}

#[test]
fn a_sum_is_read_by_its_gpus() {
    let home = TempDir::new().expect("a folder");
    let path = home.path().join("data/h100_sxm/comm/vllm/1/custom_allreduce_perf.parquet");
    // Two kernels of two GPUs: the faster one counts.
    let columns = [
        ("num_gpus", TableColumn::counts([2, 2, 4])),
        ("message_size", TableColumn::counts([1_024, 1_024, 1_024])),
        ("latency", TableColumn::numbers([0.02, 0.005, 0.008])),
    ];
    write_table(&path, &columns);
    let tables = read(home.path(), "h100-sxm", NEEDS).expect("tables");
    let microseconds = |gpus| tables.reduce_s(gpus, 1_024.0).map(|s| (s * 1e6).round());
    assert_eq!([2, 4, 8].map(microseconds), [Some(5.0), Some(8.0), None]);
}

#[test]
fn a_folder_without_tables_and_a_bad_file_are_named() {
    let home = TempDir::new().expect("a folder");
    let fault = read(home.path(), "h100-sxm", NEEDS).expect_err("nothing in it").to_string();
    assert!(fault.contains("no folder data in it"), "{fault}");
    products(home.path(), "0.24.0", 0.0);
    let fault = read(home.path(), "h100-sxm", NEEDS).expect_err("a time of 0").to_string();
    assert!(
        fault.ends_with("gemm_perf.parquet: column latency, row 1: 0 is not above 0"),
        "{fault}"
    );
    let versions = home.path().join("systems/query_versions.yaml");
    std::fs::write(&versions, "defaults: [").expect("a file");
    let fault = read(home.path(), "h100-sxm", NEEDS).expect_err("no YAML").to_string();
    assert!(fault.contains("query_versions.yaml"), "{fault}");
}
