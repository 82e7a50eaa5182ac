//! Step times of `stator plan` against times that others measured on real GPUs.
//!
//! The rows come from `systems/silicon_sample.csv` of the Python wheel `aiconfigurator-core`
//! 0.12.0 (Apache-2.0), the models' shapes from its `model_configs`. Neither is in this
//! repository: unpack the wheel, and run
//!
//! ```sh
//! cargo run --release -p stator-plan --example measured -- FOLDER/aiconfigurator_core
//! ```
//!
//! The program prints the error of the time between tokens by kind of model, engine, GPU and model, of rows
//! that the coefficients were not fitted to, and how often a pick under a latency bound breaks it.
//! With `--fit` after the folder it fits the coefficients again first; with `--tables` the wheel's
//! tables take the place of the roofline where they have an operation.

use anyhow::{Context, Result, ensure};
use stator_plan::{EngineKind, Gpu, ModelShape, Precision, StepFit, StepModel, WorkerShape};
use stator_tables::{EngineTables, TableNeeds, TablesFolder};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::rc::Rc;

/// A measured run: so many requests at a time, each followed by another.
struct Row {
    model: ModelShape,
    model_name: String,
    gpu: &'static Gpu,
    worker: WorkerShape,
    kv: Precision,
    sequences: f64,
    input: f64,
    output: f64,
    measured_ms: f64,
    /// Whether the coefficients were fitted to it.
    is_fitted: bool,
    /// Measured operations of its engine on its GPU.
    tables: Option<Rc<EngineTables>>,
}

/// Configurations of the models that the rows name; others are not understood or not there.
const CONFIGS: [(&str, &str); 12] = [
    ("deepseek-ai/DeepSeek-R1", "deepseek-ai--DeepSeek-V3"),
    ("deepseek-ai/DeepSeek-V3", "deepseek-ai--DeepSeek-V3"),
    ("nvidia/DeepSeek-R1-NVFP4", "deepseek-ai--DeepSeek-V3"),
    ("MiniMaxAI/MiniMax-M2.5", "MiniMaxAI--MiniMax-M2.5"),
    ("openai/gpt-oss-120b", "openai--gpt-oss-120b"),
    ("meta-llama/Llama-3.1-70B", "meta-llama--Meta-Llama-3.1-70B"),
    ("Qwen/Qwen3-32B", "Qwen--Qwen3-32B"),
    ("nvidia/Qwen3-32B-NVFP4", "Qwen--Qwen3-32B"),
    ("Qwen/Qwen3-235B-A22B-FP8", "Qwen--Qwen3-235B-A22B"),
    ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama--Meta-Llama-3.1-8B"),
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "meta-llama--Meta-Llama-3.1-8B"),
    ("moonshotai/Kimi-K2.5", "moonshotai--Kimi-K2.5"),
];
/// Bounds of the picks, milliseconds.
const BOUNDS_MS: [f64; 4] = [15.0, 25.0, 50.0, 100.0];
/// Margin of the picks: the default of `stator plan`.
const MARGIN: f64 = 1.15;

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).context("the wheel's folder is missing")?;
    let mut rows = read(Path::new(&folder))?;
    if std::env::args().any(|argument| argument == "--tables") {
        add_tables(&mut rows, Path::new(&folder))?;
    }
    ensure!(!rows.is_empty(), "no row names a model that is understood");
    let mut fits = BTreeMap::from(EngineKind::ALL.map(|engine| (engine.name(), engine.fit())));
    if std::env::args().any(|argument| argument == "--fit") {
        refit(&rows, &mut fits);
        fits.iter().for_each(|(engine, fit)| println!("{engine}: {fit:?}"));
    }
    let held: Vec<&Row> = rows.iter().filter(|row| !row.is_fitted).collect();
    println!("{} rows, {} of them not fitted to", rows.len(), held.len());
    println!("{:44} {:>5} {:>7} {:>7} {:>6}", "", "rows", "mean %", "median", "bias");
    type Key = fn(&Row) -> String;
    let by: [(&str, Key); 4] = [
        ("experts", |row| row.model.experts.is_some().to_string()),
        ("engine", |row| format!("{} {}", row.model.experts.is_some(), row.worker.engine.name())),
        ("GPU", |row| format!("{} {}", row.model.experts.is_some(), row.gpu.name)),
        ("model", |row| row.model_name.clone()),
    ];
    for (name, key) in by {
        let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for row in &held {
            groups.entry(key(row)).or_default().push(row.ratio(&fits));
        }
        for (group, ratios) in groups {
            show(&format!("{name} {group}"), ratios);
        }
    }
    picks(&held, &fits);
    Ok(())
}

impl Row {
    /// The predicted time between tokens over the measured one. In the steps of one answer the
    /// prompts of all other sequences are computed once.
    fn ratio(&self, fits: &BTreeMap<&str, StepFit>) -> f64 {
        self.predicted_ms(&fits[self.worker.engine.name()]) / self.measured_ms
    }

    fn predicted_ms(&self, fit: &StepFit) -> f64 {
        let step = StepModel::new(&self.model, self.gpu, self.kv, self.worker);
        let step = StepModel { fit: *fit, ..step }.tabled(self.tables.as_deref());
        let decode_s = step.decode_s(self.sequences, self.input + self.output / 2.0);
        let share = self.sequences / f64::from(self.worker.data);
        (decode_s + share * step.prefill_s(self.input, 0.0) / self.output) * 1e3
    }
}

fn show(group: &str, mut ratios: Vec<f64>) {
    ratios.sort_by(f64::total_cmp);
    let bias = ratios[ratios.len() / 2];
    let mut errors: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs() * 1e2).collect();
    errors.sort_by(f64::total_cmp);
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let median = errors[errors.len() / 2];
    println!("{group:44} {:>5} {mean:>7.1} {median:>7.1} {bias:>6.2}", errors.len());
}

/// Of runs that differ in parallelism and batch alone, the one with the most predicted tokens per
/// GPU under a bound: how often it was measured beyond the bound by more than 5 %.
fn picks(rows: &[&Row], fits: &BTreeMap<&str, StepFit>) {
    let mut groups: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        let Row { model, model_name, gpu, worker, input, output, .. } = row;
        let (gpu, engine, format) = (gpu.name, worker.engine.name(), model.weights.name());
        let key = format!("{model_name} {gpu} {engine} {format} {input} {output}");
        groups.entry(key).or_default().push(row);
    }
    for has_experts in [false, true] {
        let (mut picks, mut broken) = (0, 0);
        let alike =
            |rows: &&Vec<&Row>| rows.len() > 3 && rows[0].model.experts.is_some() == has_experts;
        for rows in groups.values().filter(alike) {
            for bound in BOUNDS_MS {
                let predicted = |row: &Row| row.predicted_ms(&fits[row.worker.engine.name()]);
                let within = rows.iter().filter(|row| predicted(row) * MARGIN <= bound);
                let rate =
                    |row: &Row| row.sequences / predicted(row) / f64::from(row.worker.gpus());
                let Some(pick) = within.max_by(|a, b| rate(a).total_cmp(&rate(b))) else {
                    continue;
                };
                picks += 1;
                broken += u32::from(pick.measured_ms > bound * 1.05);
            }
        }
        println!("experts {has_experts}: {broken} of {picks} picks broke their bound");
    }
}

/// Fits the coefficients anew: one after the other is moved up and down by steps that shrink,
/// while the mean |ln ratio| falls. Models without experts fit theirs first.
fn refit(rows: &[Row], fits: &mut BTreeMap<&'static str, StepFit>) {
    type Field = fn(&mut StepFit) -> &mut f64;
    let shared: [Field; 4] = [
        |fit| &mut fit.shares.weights,
        |fit| &mut fit.shares.kv,
        |fit| &mut fit.shares.decode,
        |fit| &mut fit.shares.prefill,
    ];
    let own: [Field; 2] = [|fit| &mut fit.overhead.layer_s, |fit| &mut fit.overhead.reduce_s];
    let of_experts: [Field; 1] = [|fit| &mut fit.overhead.expert_layer_s];
    let imbalance: [Field; 1] = [|fit| &mut fit.shares.imbalance];
    for (has_experts, common, own) in
        [(false, &shared[..], &own[..]), (true, &imbalance[..], &of_experts[..])]
    {
        let fitted = |row: &&Row| row.is_fitted && row.model.experts.is_some() == has_experts;
        let rows: Vec<&Row> = rows.iter().filter(fitted).collect();
        let loss = |fits: &BTreeMap<&str, StepFit>| {
            rows.iter().map(|row| row.ratio(fits).ln().abs()).sum::<f64>()
        };
        let engines = EngineKind::ALL.map(EngineKind::name);
        let mut moves: Vec<(Field, Vec<&str>)> = Vec::new();
        moves.extend(common.iter().map(|field| (*field, engines.to_vec())));
        let each = own.iter().flat_map(|field| engines.map(|engine| (*field, vec![engine])));
        moves.extend(each);
        let mut best = loss(fits);
        for factor in [1.5_f64, 1.2, 1.1, 1.05, 1.02, 1.01] {
            for _ in 0..20 {
                let before = best;
                for (field, engines) in &moves {
                    for factor in [factor, factor.recip()] {
                        let mut moved = fits.clone();
                        for engine in engines {
                            let fit = moved.get_mut(engine).expect("every engine has one");
                            *field(fit) *= factor;
                        }
                        // Kernels reach no more than the hardware has.
                        let sound = moved.values().all(|fit| {
                            let shares = fit.shares;
                            [shares.weights, shares.kv, shares.decode, shares.prefill]
                                .iter()
                                .all(|share| *share <= 1.0)
                        });
                        let now = loss(&moved);
                        if sound && now < best {
                            (best, *fits) = (now, moved);
                        }
                    }
                }
                if best >= before {
                    break;
                }
            }
        }
    }
}

/// The aggregated rows of models that are understood, on workers of one server.
fn read(folder: &Path) -> Result<Vec<Row>> {
    let path = folder.join("systems/silicon_sample.csv");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().context("an empty file")?.split(',').collect();
    let mut shapes = BTreeMap::new();
    for (model, file) in CONFIGS {
        let path = folder.join(format!("model_configs/{file}_config.json"));
        shapes.insert(model, ModelShape::read(&path)?);
    }
    let mut rows: Vec<Row> = Vec::new();
    for line in lines {
        let cells: BTreeMap<&str, &str> = head.iter().copied().zip(line.split(',')).collect();
        rows.extend(row(&cells, &shapes));
    }
    for (number, row) in rows.iter_mut().enumerate() {
        row.is_fitted = match row.model.experts {
            None => row.gpu.name == "h100-sxm" && number.is_multiple_of(2),
            Some(_) => number.is_multiple_of(5),
        };
    }
    Ok(rows)
}

/// Reads the tables that the rows need, each once.
fn add_tables(rows: &mut [Row], folder: &Path) -> Result<()> {
    let folder = TablesFolder::find(folder)?;
    let mut read = BTreeMap::new();
    for row in rows {
        let (experts, latent) = (row.model.experts.is_some(), row.model.latent.is_some());
        let (gpu, engine) = (row.gpu.name, row.worker.engine.name());
        let tables = match read.entry((gpu, engine, experts, latent)) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(free) => {
                let needs = TableNeeds { experts, latent };
                free.insert(Rc::new(EngineTables::read(&folder, gpu, engine, needs)?))
            }
        };
        row.tables = Some(tables.clone()).filter(|tables| !tables.sources().is_empty());
    }
    Ok(())
}

fn row(cells: &BTreeMap<&str, &str>, shapes: &BTreeMap<&str, ModelShape>) -> Option<Row> {
    let number = |name: &str| match cells[name] {
        "" => Some(1.0),
        text => text.parse::<f64>().ok().filter(|number| *number > 0.0),
    };
    let engine = EngineKind::ALL.into_iter().find(|engine| engine.name() == cells["backend"])?;
    let (tensor, data) = (number("tp_size")?, number("attention_dp_size")?);
    let worker = WorkerShape { engine, tensor: tensor as u32, pipeline: 1, data: data as u32 };
    let mut model = shapes.get(cells["model_path"])?.clone();
    let experts_over = number("moe_tp_size")? * number("moe_ep_size")?;
    let is_whole = model.experts.is_none() || experts_over == tensor * data;
    let is_aggregated = cells["mode"] == "agg" && !cells["silicon_tpot_ms"].is_empty();
    if !is_whole || !is_aggregated || worker.gpus() > 8 {
        return None;
    }
    let format = if model.experts.is_some() { "moe_quant_mode" } else { "gemm_quant_mode" };
    model.weights = match cells[format] {
        "nvfp4" => Precision::Fp4,
        "int4_wo" => Precision::Int4,
        format if format.starts_with("fp8") => Precision::Fp8,
        _ => Precision::Bf16,
    };
    model.has_block_scales = cells[format] == "fp8_block";
    // The rows do not say. TensorRT-LLM keeps KV in 8 bits beside quantised weights by default.
    let is_quantised = model.weights != Precision::Bf16;
    let is_narrow = engine == EngineKind::Trtllm && is_quantised;
    Some(Row {
        model,
        model_name: cells["model_path"].to_owned(),
        gpu: Gpu::named(cells["system"])?,
        worker,
        kv: if is_narrow { Precision::Fp8 } else { Precision::Bf16 },
        sequences: number("batch_size")? * data,
        input: number("isl")?,
        output: number("osl")?,
        measured_ms: number("silicon_tpot_ms")?,
        is_fitted: false,
        tables: None,
    })
}
