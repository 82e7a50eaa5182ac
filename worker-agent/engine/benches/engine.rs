//! How fast the built-in and the simulated engine are. Prints a table; takes about half a minute.
//!
//! `cargo bench -p stator-engine --bench engine [part of a line's name]`
//!
//! The model has 4.0 million random weights in bf16. CPU time is that of the whole process, all
//! threads together, and is what a noisy machine distorts least.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stator_engine::cpu::{self, Model};
use stator_engine::model_files::ModelFiles;
use stator_engine::sim::{self, SimOptions};
use stator_engine::tiers::{OuterBlock, OuterLookup, OuterTiers};
use stator_engine::{AnswerRules, Engine, EngineOptions, ModelInfo, Request, RequestKey, Step};
use stator_guide::{Guide, GuideFactory};
use stator_protos::name::BlockName;
use stator_protos::worker::Sampling;
use stator_protos::worker::guide::Form;
use stator_timing::Timing;

#[path = "../fixtures/random.rs"]
#[allow(unreachable_pub)] // The engine's tests use it, too.
mod random;

const CONFIG: &str = r#"{"model_type": "qwen3", "hidden_size": 256, "intermediate_size": 768,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 4096, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": true}"#;

/// A form that 256 tokens do not complete: a long list of objects.
const SCHEMA: &str = r#"{"type": "array", "minItems": 300, "items": {"type": "object",
    "additionalProperties": false, "required": ["name", "count", "tags"], "properties": {
    "name": {"type": "string"}, "count": {"type": "integer"}, "tags": {"type": "array",
    "items": {"enum": ["red", "green", "blue"]}}}}}"#;

fn main() {
    let files = ModelFiles::embedded(&random::files(CONFIG));
    let model = Arc::new(Model::load(&files).expect("the configuration above"));
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    println!("{:<28} {:>6} {:>12} {:>14}", "", "batch", "tokens/s", "CPU us/token");
    let report = |what: &str, batch: usize, measured: &dyn Fn() -> Measured| {
        if only.as_ref().is_none_or(|only| what.contains(only.as_str())) {
            report(what, batch, measured());
        }
    };
    let options = EngineOptions { max_running: 4096, ..EngineOptions::default() };
    let builtin = || cpu::engine(model.clone(), options.clone()).expect("valid options");
    report("prefill of 512", 1, &|| prefill(builtin(), 512));
    report("prefill of 4096", 1, &|| prefill(builtin(), 4096));
    report("prefill of 4096, KV kept", 1, &|| {
        prefill(builtin().with_tiers(Box::new(KeptCopies::default())), 4096)
    });
    for batch in [1, 8, 32] {
        report("decode after 32", batch, &|| decode(builtin(), batch, 32, None));
    }
    report("decode after 2048", 1, &|| decode(builtin(), 1, 2048, None));
    for batch in [1, 64, 2048] {
        report("simulated decode", batch, &|| decode(simulated(&options), batch, 32, None));
    }
    let guides = guides();
    let guide = guides.compile(&Form::JsonSchema(SCHEMA.into())).expect("a sound schema");
    for batch in [1, 8] {
        report("decode after 32, by a schema", batch, &|| {
            decode(builtin(), batch, 32, Some(&guide))
        });
    }
    report("compile the schema", 1, &|| compile(&guides));
}

/// Guides for the vocabulary: all bytes, words of one to three letters, and the answer's end.
fn guides() -> GuideFactory {
    let letter = |number: usize| b'a' + (number % 26) as u8;
    let token = |id: usize| match id {
        0..256 => vec![id as u8],
        _ if id.is_multiple_of(2) => vec![letter(id), letter(id / 26), letter(id / 676)],
        _ => vec![b' ', letter(id), letter(id / 26)],
    };
    let tokens: Vec<_> = (0..4096).map(token).collect();
    GuideFactory::new(tokens, vec![(4095, "<end>".into())], &[4095]).expect("a vocabulary")
}

/// The CPU time of a form's guide, once for each request: a "token" is a guide.
fn compile(guides: &GuideFactory) -> Measured {
    let form = Form::JsonSchema(SCHEMA.into());
    measure(|| {
        guides.compile(&form).expect("a sound schema");
        1
    })
}

fn simulated(options: &EngineOptions) -> impl Engine + use<> {
    let model = ModelInfo { context_length: 8192, vocab_size: 4096, eos_token_ids: vec![0] };
    let sim = SimOptions { model, answer_tokens: Arc::new([]), timing: Timing::NONE, speedup: 1.0 };
    let options = EngineOptions { total_blocks: 65_536, ..options.clone() };
    sim::engine(sim, options).expect("valid options")
}

/// Tokens, and the wall and CPU time they took.
type Measured = (usize, Duration, Option<Duration>);

fn report(what: &str, batch: usize, (tokens, wall, cpu): Measured) {
    let rate = tokens as f64 / wall.as_secs_f64();
    let per_token = |cpu: Duration| format!("{:.2}", cpu.as_secs_f64() * 1e6 / tokens as f64);
    let cpu = cpu.map_or_else(|| "-".into(), per_token);
    println!("{what:<28} {batch:>6} {rate:>12.0} {cpu:>14}");
}

/// Prompts of `len` tokens without a common prefix, one after the other.
fn prefill(mut engine: impl Engine, len: usize) -> Measured {
    let mut key = 0;
    measure(|| {
        key += 1;
        engine.submit(request(key, len, 1)).expect("room for one");
        finish(&mut engine);
        len
    })
}

/// Answers of 256 tokens, `batch` at a time; `guide` has the form of each.
fn decode(mut engine: impl Engine, batch: usize, prompt: usize, guide: Option<&Guide>) -> Measured {
    const TOKENS: usize = 256;
    let mut step = Step::default();
    let mut key = 0;
    measure(|| {
        for _ in 0..batch {
            key += 1;
            let mut request = request(key, prompt, TOKENS as u32);
            request.rules.guide = guide.cloned();
            engine.submit(request).expect("room for a batch");
        }
        // Prompts are not what is measured here, but it is only with short ones that they are
        // little of it; with a long one the first round fills the cache for all others.
        loop {
            step.clear();
            engine.step(&mut step);
            if !step.ran {
                return batch * TOKENS;
            }
        }
    })
}

/// Tiers that cost what a copy costs: they keep the latest blocks, and find none.
#[derive(Default)]
struct KeptCopies {
    memory: Vec<u8>,
    next: usize,
}

impl OuterTiers for KeptCopies {
    fn look_up(
        &mut self,
        _: RequestKey,
        _: &[BlockName],
        _: usize,
    ) -> Option<Box<dyn OuterLookup>> {
        None
    }

    fn store(&mut self, _: &OuterBlock, kv: &[u8]) {
        const BLOCKS: usize = 1024;
        self.memory.resize(BLOCKS * kv.len(), 0);
        self.memory[self.next * kv.len()..][..kv.len()].copy_from_slice(kv);
        self.next = (self.next + 1) % BLOCKS;
    }
}

fn finish(engine: &mut impl Engine) {
    let mut step = Step::default();
    loop {
        step.clear();
        engine.step(&mut step);
        if !step.ran {
            return;
        }
    }
}

/// A prompt that differs from others from its first token on, except where it is long: then all
/// are equal, so that only the first is computed.
fn request(key: u64, len: usize, max_tokens: u32) -> Request {
    let start = if max_tokens > 1 && len > 1000 { 0 } else { key as u32 };
    let tokens = (0..len as u32).map(|i| (i * 31 + start * 17) % 4096).collect();
    let sampling = Sampling { max_tokens, ignore_eos: true, ..Sampling::neutral() };
    Request {
        key: RequestKey(key),
        tokens,
        resumed: 0,
        first_choice: 0,
        choices: 1,
        sampling: Arc::new(sampling),
        cache_salt: None,
        named: None,
        rules: AnswerRules::default(),
    }
}

/// Repeats `round`, which says how many tokens it made, for some seconds after a first time.
fn measure(mut round: impl FnMut() -> usize) -> Measured {
    round();
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut tokens = 0;
    while start.elapsed() < Duration::from_secs(2) {
        tokens += round();
    }
    let spent = cpu_time().zip(cpu).map(|(now, before)| now - before);
    (tokens, start.elapsed(), spent)
}

/// CPU time of this process so far, where the system tells it.
fn cpu_time() -> Option<Duration> {
    /// Length of a tick in `/proc`, the same on all Linux machines that matter.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields = stat.rsplit_once(") ")?.1;
    let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u32>());
    Some(TICK * ticks.sum::<Result<u32, _>>().ok()?)
}
