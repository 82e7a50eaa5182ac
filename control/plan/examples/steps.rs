//! Step times of `stator plan --tables` beside those of the AIConfigurator CLI 0.12.0.
//!
//! Both read the tables of the Python wheel `aiconfigurator-core` 0.12.0 (Apache-2.0), which is not in
//! this repository: unpack it, and run
//!
//! ```sh
//! cargo run --release -p stator-plan --example steps -- FOLDER/aiconfigurator_core
//! ```
//!
//! The other tool's times are its answers to `aiconfigurator cli estimate --estimate-mode static` with
//! the same model, system, engine, lengths, batch and tensor parallelism (`--moe-tp-size` for models
//! with experts).

use anyhow::{Context, Result};
use stator_plan::{EngineKind, Gpu, ModelShape, StepModel, WorkerShape};
use stator_tables::{EngineTables, TableNeeds, TablesFolder};
use std::path::Path;

/// A worker and its load, and the other tool's milliseconds of the step over all prompts and of the
/// mean step in which all sequences decode.
struct Point {
    model: &'static str,
    gpu: &'static str,
    worker: WorkerShape,
    batch: u32,
    input: u32,
    output: u32,
    prompts_ms: f64,
    step_ms: f64,
}

/// Engines, by their first letters.
const V: EngineKind = EngineKind::Vllm;
const S: EngineKind = EngineKind::Sglang;
const T: EngineKind = EngineKind::Trtllm;
const QWEN: &str = "Qwen--Qwen3-32B";
const QWEN_FP8: &str = "Qwen--Qwen3-32B-FP8";
const QWEN_MOE: &str = "Qwen--Qwen3-235B-A22B";
const DEEPSEEK: &str = "deepseek-ai--DeepSeek-V3";

const POINTS: [Point; 21] = [
    Point::new(QWEN, "h100-sxm", V, 2, [1, 1_024, 256], [55.487, 13.424]),
    Point::new(QWEN, "h100-sxm", V, 2, [1, 8_192, 256], [475.975, 13.649]),
    Point::new(QWEN, "h100-sxm", V, 2, [16, 3_000, 150], [2_508.951, 17.077]),
    Point::new(QWEN, "h100-sxm", V, 2, [64, 2_048, 512], [6_719.370, 22.198]),
    Point::new(QWEN, "h100-sxm", T, 2, [1, 1_024, 256], [58.452, 14.306]),
    Point::new(QWEN, "h100-sxm", T, 2, [64, 2_048, 512], [6_770.071, 21.879]),
    Point::new(QWEN, "h100-sxm", S, 2, [1, 1_024, 256], [55.488, 13.924]),
    Point::new(QWEN, "h100-sxm", S, 2, [64, 2_048, 512], [7_120.741, 21.153]),
    Point::new(QWEN, "h200-sxm", V, 4, [1, 1_024, 256], [34.484, 6.976]),
    Point::new(QWEN, "h200-sxm", V, 4, [64, 2_048, 512], [4_013.396, 10.387]),
    Point::new(QWEN, "a100-sxm", V, 4, [1, 1_024, 256], [97.313, 14.301]),
    Point::new(QWEN, "a100-sxm", V, 4, [16, 3_000, 150], [3_658.772, 17.456]),
    Point::new(QWEN_FP8, "h200-sxm", V, 1, [1, 1_024, 256], [69.132, 20.503]),
    Point::new(QWEN_FP8, "h200-sxm", V, 1, [64, 2_048, 512], [8_034.751, 33.770]),
    Point::new(QWEN_FP8, "b200-sxm", V, 1, [1, 1_024, 256], [63.276, 79.377]),
    Point::new(QWEN_FP8, "b200-sxm", V, 1, [64, 2_048, 512], [3_840.824, 56.653]),
    Point::new(DEEPSEEK, "h200-sxm", T, 8, [1, 2_048, 512], [155.926, 10.626]),
    Point::new(DEEPSEEK, "h200-sxm", T, 8, [64, 2_048, 512], [7_356.869, 34.079]),
    Point::new(DEEPSEEK, "h200-sxm", V, 8, [64, 2_048, 512], [5_687.425, 32.188]),
    Point::new(QWEN_MOE, "h200-sxm", V, 8, [1, 2_048, 512], [74.040, 7.587]),
    Point::new(QWEN_MOE, "h200-sxm", V, 8, [64, 2_048, 512], [3_082.776, 22.790]),
];

impl Point {
    /// A point: batch, tokens in and out; milliseconds of the prompts and of a step.
    const fn new(
        model: &'static str,
        gpu: &'static str,
        engine: EngineKind,
        tensor: u32,
        [batch, input, output]: [u32; 3],
        [prompts_ms, step_ms]: [f64; 2],
    ) -> Self {
        let worker = WorkerShape { engine, tensor, pipeline: 1, data: 1 };
        Self { model, gpu, worker, batch, input, output, prompts_ms, step_ms }
    }

    /// Our milliseconds of a prompt and of the mean step, by the wheel's tables.
    fn ours(&self, folder: &Path) -> Result<[f64; 2]> {
        let file = folder.join(format!("model_configs/{}_config.json", self.model));
        let model = ModelShape::read(&file)?;
        let gpu = Gpu::named(self.gpu).with_context(|| self.gpu.to_owned())?;
        let needs = TableNeeds { experts: model.experts.is_some(), latent: model.latent.is_some() };
        let tables = TablesFolder::find(folder)?;
        let tables = EngineTables::read(&tables, gpu.name, self.worker.engine.name(), needs)?;
        // The other tool keeps KV in 8 bits beside 8-bit weights.
        let kv = model.weights;
        let step = StepModel::new(&model, gpu, kv, self.worker).tabled(Some(&tables));
        let [batch, input, output] = [self.batch, self.input, self.output].map(f64::from);
        let decode_s = step.decode_s(batch, input + output / 2.0);
        Ok([step.prefill_s(input, 0.0), decode_s].map(|seconds| seconds * 1e3))
    }
}

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).context("the wheel's folder is missing")?;
    println!("| model, GPU, engine | batch, in/out | prompt ms | theirs | | step ms | theirs | |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for point in &POINTS {
        let [prompt_ms, step_ms] = point.ours(Path::new(&folder))?;
        // A step over many prompts is not the time of one.
        let (theirs, apart) = match point.batch {
            1 => (format!("{:.1}", point.prompts_ms), difference(prompt_ms, point.prompts_ms)),
            _ => Default::default(),
        };
        println!(
            "| {}, {}, {} {} | {}, {}/{} | {prompt_ms:.1} | {theirs} | {apart} | {step_ms:.2} | {:.2} | {} |",
            point.model,
            point.gpu,
            point.worker.engine.name(),
            point.worker.parallelism(),
            point.batch,
            point.input,
            point.output,
            point.step_ms,
            difference(step_ms, point.step_ms),
        );
    }
    Ok(())
}

/// A difference in percent, with its sign.
fn difference(ours: f64, theirs: f64) -> String {
    format!("{:+.1} %", (ours / theirs - 1.0) * 1e2)
}
