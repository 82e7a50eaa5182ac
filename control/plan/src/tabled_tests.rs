use super::*;
use crate::engine::EngineKind;
use crate::gpu::Gpu;
use crate::model::tests::{DEEPSEEK, QWEN_32B};
use crate::operation::{OperationKind, OperationTime};
use crate::step::StepModel;
use proptest::prelude::*;
use stator_tables::{TableNeeds, TablesFolder};
use stator_tables_testkit::{TableColumn, write_products, write_table};
use std::path::Path;
use std::sync::LazyLock;
use tempfile::TempDir;

/// Milliseconds of a product for each token, output and input; of attention for each token of a
/// sequence, or pair of a prompt; of a sum for each number; of experts for each token.
const PRODUCT_MS: f64 = 1e-11;
const CONTEXT_MS: f64 = 1e-6;
const PAIR_MS: f64 = 1e-10;
const NUMBER_MS: f64 = 1e-8;
const EXPERTS_MS: f64 = 1.0;

fn same(count: u32, rows: usize) -> TableColumn {
    TableColumn::counts(vec![count; rows])
}

/// Writes matrix products that take a time for each multiplication.
fn write_plain_products(folder: &Path) {
    let mut rows = Vec::new();
    for m in [1, 8_192] {
        for n in [64, 65_536] {
            for k in [64, 65_536] {
                rows.push(([m, n, k], PRODUCT_MS * f64::from(m) * f64::from(n) * f64::from(k)));
            }
        }
    }
    write_products(&folder.join("gemm/vllm/0.24.0/gemm_perf.parquet"), &rows);
}

/// Writes attention of 32 heads that share 4 of KV: Qwen3 32B's on two GPUs.
fn write_plain_attention(folder: &Path) {
    let file =
        |name: &str| folder.join(format!("attention/vllm/0.24.0/{name}_attention_perf.parquet"));
    let write = |name: &str, columns: [TableColumn; 4]| {
        let [batch, new, before, latency] = columns;
        let columns = [
            ("attn_dtype", TableColumn::word("bfloat16", 4)),
            ("kv_cache_dtype", TableColumn::word("bfloat16", 4)),
            ("num_heads", same(32, 4)),
            ("num_key_value_heads", same(4, 4)),
            ("head_dim", same(128, 4)),
            ("batch_size", batch),
            ("isl", new),
            ("step", before),
            ("latency", latency),
        ];
        write_table(&file(name), &columns);
    };
    let at = [(1, 100), (1, 10_000), (64, 100), (64, 10_000)];
    let batch = || TableColumn::counts(at.map(|(batch, _)| batch));
    let decoding = at.map(|(b, tokens)| CONTEXT_MS * f64::from(b) * f64::from(tokens));
    let before = TableColumn::counts(at.map(|(_, tokens)| tokens - 1));
    write("generation", [batch(), same(1, 4), before, TableColumn::numbers(decoding)]);
    let prompts = at.map(|(b, tokens)| PAIR_MS * f64::from(b) * f64::from(tokens).powi(2));
    let tokens = TableColumn::counts(at.map(|(_, tokens)| tokens));
    write("context", [batch(), tokens, same(0, 4), TableColumn::numbers(prompts)]);
}

/// Writes sums over two GPUs.
fn write_plain_sums(folder: &Path) {
    let numbers = [1_024, 1 << 30];
    let columns = [
        ("num_gpus", same(2, 2)),
        ("message_size", TableColumn::counts(numbers)),
        ("latency", TableColumn::numbers(numbers.map(|count| NUMBER_MS * f64::from(count)))),
    ];
    write_table(&folder.join("comm/vllm/0.24.0/custom_allreduce_perf.parquet"), &columns);
}

/// Writes DeepSeek V3's experts in 16 bits on one GPU.
fn write_plain_experts(folder: &Path) {
    let columns = [
        ("moe_dtype", TableColumn::word("bfloat16", 2)),
        ("distribution", TableColumn::word("power_law_1.2", 2)),
        ("hidden_size", same(7_168, 2)),
        ("inter_size", same(2_048, 2)),
        ("topk", same(8, 2)),
        ("num_experts", same(256, 2)),
        ("moe_tp_size", same(1, 2)),
        ("moe_ep_size", same(1, 2)),
        ("num_tokens", TableColumn::counts([1, 1_000])),
        ("latency", TableColumn::numbers([EXPERTS_MS, 1_000.0 * EXPERTS_MS])),
    ];
    write_table(&folder.join("moe/vllm/0.24.0/moe_perf.parquet"), &columns);
}

/// Tables of an H100 under vLLM, without latent attention.
pub(crate) fn tables(needs: TableNeeds) -> EngineTables {
    let home = TempDir::new().expect("a folder");
    let folder = home.path().join("data/h100_sxm");
    write_plain_products(&folder);
    write_plain_attention(&folder);
    write_plain_sums(&folder);
    write_plain_experts(&folder);
    let found = TablesFolder::find(home.path()).expect("a folder with tables");
    EngineTables::read(&found, "h100-sxm", "vllm", needs).expect("sound tables")
}

/// Tables as a model without experts needs them.
static DENSE: LazyLock<EngineTables> =
    LazyLock::new(|| tables(TableNeeds { experts: false, latent: false }));

fn worker(tensor: u32) -> WorkerShape {
    WorkerShape { engine: EngineKind::Vllm, tensor, pipeline: 1, data: 1 }
}

fn close(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 1e-6
}

fn seconds(operations: &[OperationTime; 5], kind: OperationKind) -> f64 {
    operations.iter().find(|of| of.kind == kind).expect("every kind is there").seconds
}

proptest! {
    /// A step's products take a time for each weight, if a product takes that time for each
    /// multiplication.
    #[test]
    fn all_weights_are_multiplied_once(sequences in 1.0_f64..512.0, context in 200.0_f64..9_000.0) {
        let (tables, model) = (&*DENSE, ModelShape::parse(QWEN_32B).expect("a model"));
        let gpu = Gpu::named("h100-sxm").expect("a GPU");
        let step = StepModel::new(&model, gpu, Precision::Bf16, worker(2)).tabled(Some(tables));
        let operations = step.decode_operations(sequences, context);
        let weights = (model.dense_weights + model.head_weights) / 2.0;
        let of = |kind| seconds(&operations, kind) * 1e3;
        prop_assert!(close(of(OperationKind::Products), PRODUCT_MS * sequences * weights));
        let attention = 64.0 * CONTEXT_MS * sequences * context;
        prop_assert!(close(of(OperationKind::Attention), attention));
        let sums = 128.0 * NUMBER_MS * sequences * 5_120.0;
        prop_assert!(close(of(OperationKind::Exchange), sums));
        let is_tabled = |of: &OperationTime| of.is_tabled || of.seconds == 0.0;
        prop_assert!(operations.iter().filter(|of| of.kind != OperationKind::Experts).all(is_tabled));
        let all: f64 = operations.iter().map(|of| of.seconds).sum();
        prop_assert!(close(step.decode_s(sequences, context), all));
    }

    /// Cached tokens leave the pairs that the new ones have.
    #[test]
    fn a_prompt_has_the_pairs_of_its_new_tokens(tokens in 100.0_f64..5_000.0, cached in 0.0_f64..5_000.0) {
        let (tables, model) = (&*DENSE, ModelShape::parse(QWEN_32B).expect("a model"));
        let gpu = Gpu::named("h100-sxm").expect("a GPU");
        let step = StepModel::new(&model, gpu, Precision::Bf16, worker(2)).tabled(Some(tables));
        let operations = step.prompt_operations(tokens, cached);
        let pairs = (tokens + cached).powi(2) - cached.powi(2);
        let attention = seconds(&operations, OperationKind::Attention) * 1e3;
        prop_assert!(close(attention, 64.0 * PAIR_MS * pairs));
        // The head computes the last token alone.
        let weights = tokens * model.dense_weights + model.head_weights;
        let products = seconds(&operations, OperationKind::Products) * 1e3;
        prop_assert!(close(products, PRODUCT_MS * weights / 2.0));
    }
}

#[test]
fn what_tables_lack_has_the_time_of_the_roofline() {
    let (tables, model) = (&*DENSE, ModelShape::parse(QWEN_32B).expect("a model"));
    let gpu = Gpu::named("h100-sxm").expect("a GPU");
    // Neither attention of 16 heads nor sums over four GPUs were measured.
    let roofline = StepModel::new(&model, gpu, Precision::Bf16, worker(4));
    let tabled = roofline.tabled(Some(tables)).decode_operations(8.0, 1_000.0);
    let roofline = roofline.decode_operations(8.0, 1_000.0);
    for kind in [OperationKind::Attention, OperationKind::Exchange] {
        assert_eq!(seconds(&tabled, kind), seconds(&roofline, kind), "{kind:?}");
    }
    let products = OperationKind::Products;
    assert_ne!(seconds(&tabled, products), seconds(&roofline, products));
    assert!(tabled.iter().any(|of| of.kind == products && of.is_tabled));
    // An 8-bit KV was not measured either.
    let fp8 = StepModel::new(&model, gpu, Precision::Fp8, worker(2)).tabled(Some(tables));
    let operations = fp8.decode_operations(8.0, 1_000.0);
    assert!(operations.iter().all(|of| of.kind != OperationKind::Attention || !of.is_tabled));
}

#[test]
fn experts_and_latent_attention_have_their_products() {
    let needs = TableNeeds { experts: true, latent: true };
    let (tables, mut model) = (tables(needs), ModelShape::parse(DEEPSEEK).expect("a model"));
    model.weights = Precision::Bf16;
    let gpu = Gpu::named("h100-sxm").expect("a GPU");
    let step = StepModel::new(&model, gpu, Precision::Bf16, worker(1)).tabled(Some(&tables));
    // One of 256 experts for all tokens, in 58 of 61 layers.
    let shared = 58.0 * 3.0 * 7_168.0 * 2_048.0;
    let ms = |operations: &[OperationTime; 5], kind| seconds(operations, kind) * 1e3;
    let decoding = step.decode_operations(4.0, 1_000.0);
    let weights = model.dense_weights - shared + model.head_weights;
    let products = ms(&decoding, OperationKind::Products);
    assert!(close(products, PRODUCT_MS * 4.0 * weights), "{products}");
    // Beside the others, which take longer.
    let experts = ms(&decoding, OperationKind::Experts);
    assert!(close(experts, 58.0 * EXPERTS_MS * 4.0), "{experts}");
    let prompt = step.prompt_operations(100.0, 0.0);
    let experts = ms(&prompt, OperationKind::Experts);
    let both = 58.0 * EXPERTS_MS * 100.0 + PRODUCT_MS * 100.0 * shared;
    assert!(close(experts, both), "{experts}");
    // Two GPUs' experts were not measured: the roofline has them, and products the shared one.
    let step = StepModel { worker: worker(2), ..step };
    let decoding = step.decode_operations(4.0, 1_000.0);
    assert!(decoding.iter().all(|of| of.kind != OperationKind::Experts || !of.is_tabled));
    let router = 58.0 * 7_168.0 * 256.0;
    let latent = 61.0 * 7_168.0 * (1_536.0 + 512.0 + 64.0);
    // Routers, and the first products of the attention, are on every GPU as a whole.
    let weights = (model.dense_weights + model.head_weights + router + latent) / 2.0;
    let products = ms(&decoding, OperationKind::Products);
    assert!(close(products, PRODUCT_MS * 4.0 * weights), "{products}");
}

#[test]
fn the_models_format_chooses_the_rows() {
    let of = |weights, has_block_scales| {
        let model = ModelShape::parse(QWEN_32B).expect("a model");
        product_formats(&ModelShape { weights, has_block_scales, ..model })[0]
    };
    assert_eq!(of(Precision::Bf16, false), "bfloat16");
    assert_eq!(of(Precision::Fp8, true), "fp8_block");
    assert_eq!(of(Precision::Fp8, false), "fp8");
    assert_eq!(of(Precision::Fp4, false), "nvfp4");
    let mut model = ModelShape::parse(DEEPSEEK).expect("a model");
    model.weights = Precision::Int4;
    assert_eq!((product_formats(&model)[0], expert_formats(&model)[0]), ("bfloat16", "int4_wo"));
}
