//! Real engines that compute on the CPU: where they are, and how an agent starts one.
//!
//! What is special about an engine is in the module of its name; both load the same tiny model,
//! with blocks and room of the same size.

use crate::tooling::installed;
use crate::{sglang, vllm};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Tokens of a KV block, the fewest that vLLM takes on a CPU.
pub const BLOCK_SIZE: usize = 32;
/// Most tokens of prompt and answer together.
pub const CONTEXT: usize = 2048;
/// KV blocks of one engine, or of each of its ranks: so few that a test can fill them.
pub const TOTAL_BLOCKS: usize = 256;
/// The model's name in requests.
pub const MODEL: &str = "tiny";

/// Longest wait between two of the marks that an engine prints on its way: it compiles and loads
/// for a minute of a core, and tests of other things run beside it.
pub const START_DEADLINE: Duration = Duration::from_secs(240);

/// Whether the suites of all engines were asked for, those that take long and much memory too:
/// `tests/run --engines all`. Says so where they were not, and the test that asked should return.
pub fn all_engines(what: &str) -> bool {
    let all = std::env::var("STATOR_TEST_ENGINES").as_deref() == Ok("all");
    if !all {
        // Past the test harness, which hides what passing tests print.
        let asked = "tests/run --engines all runs it";
        let _ = writeln!(std::io::stderr().lock(), "not run: {what}: {asked}");
    }
    all
}

/// A real engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// What an engine does with KV of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nothing.
    Aggregated,
    /// It computes prompts for others, which get their KV.
    Prefill,
    /// It goes on from prompts that others computed.
    Decode,
}

impl Role {
    /// As an agent's `--role`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl Engine {
    /// As an agent's `--engine`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }

    /// What it prints on its way, once with each start.
    pub fn way(self) -> &'static [&'static str] {
        match self {
            Self::Vllm => &vllm::WAY,
            Self::Sglang => &sglang::WAY,
        }
    }

    /// Environment of an engine of so many data-parallel ranks, and so of the agent that starts it.
    pub fn environment(self, ranks: u16) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::Vllm => vllm::environment(ranks),
            Self::Sglang => sglang::environment(ranks),
        }
    }

    /// The engine's own flags, which an agent takes after `--`.
    pub fn flags(self, role: Role, ranks: u16) -> Vec<String> {
        match self {
            Self::Vllm => vllm::flags(role, ranks),
            Self::Sglang => sglang::flags(role, ranks),
        }
    }

    /// Path and body that ask the engine itself for a greedy answer to a prompt of token ids,
    /// whatever its end-of-text token.
    pub fn question(self, model: &str, prompt: &[u32], max_tokens: u32) -> (&'static str, Value) {
        match self {
            Self::Vllm => vllm::question(model, prompt, max_tokens),
            Self::Sglang => sglang::question(prompt, max_tokens),
        }
    }

    /// The tokens of its answer.
    ///
    /// # Panics
    ///
    /// When it has none.
    pub fn answer(self, reply: &Value) -> Vec<u32> {
        let tokens = match self {
            Self::Vllm => &reply["choices"][0]["token_ids"],
            Self::Sglang => &reply["output_ids"],
        };
        let tokens = serde_json::from_value(tokens.clone());
        tokens.unwrap_or_else(|error| panic!("{error} in {reply}"))
    }

    /// Its gauges of requests in the batch, and of the share of blocks that these use.
    pub fn busy(self) -> [&'static str; 2] {
        match self {
            Self::Vllm => ["vllm:num_requests_running", "vllm:kv_cache_usage_perc"],
            Self::Sglang => ["sglang:num_running_reqs", "sglang:token_usage"],
        }
    }

    /// Its process that computes, the last that an agent's log names.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn core(self, log: &str) -> u32 {
        match self {
            Self::Vllm => vllm::core(log),
            Self::Sglang => sglang::core(log),
        }
    }

    /// Its counter of prompt tokens that it computed itself, and labels of the series.
    pub fn computed(self) -> (&'static str, &'static str) {
        match self {
            Self::Vllm => ("vllm:prompt_tokens_by_source_total", "local_compute"),
            Self::Sglang => ("sglang:realtime_tokens_total", "mode=\"prefill_compute\""),
        }
    }

    /// Its counter of prompt tokens of one rank that were cached, and labels of the series.
    pub fn hits(self, rank: usize) -> (&'static str, String) {
        match self {
            Self::Vllm => ("vllm:prefix_cache_hits_total", format!("engine=\"{rank}\"")),
            Self::Sglang => {
                let labels = r#"engine_type="unified",mode="prefill_cache""#;
                ("sglang:realtime_tokens_total", format!("dp_rank=\"{rank}\",{labels}"))
            }
        }
    }
}

/// Tests that have engines at a time: more that start at once take longer than any deadline.
const TURNS: usize = 2;

/// Waits for a turn among the tests with engines, which ends with the file.
fn turn(folder: &Path) -> File {
    static WAITS: AtomicUsize = AtomicUsize::new(0);
    let file = |number: usize| {
        File::create(folder.join(format!("engines-{number}.lock"))).expect("beside the engines")
    };
    let mut turns: Vec<_> = (0..TURNS).map(file).collect();
    // No lock tells which of several becomes free first: those that wait share them out.
    let free = turns.iter().position(|turn| turn.try_lock().is_ok());
    let chosen = free.unwrap_or_else(|| WAITS.fetch_add(1, Ordering::Relaxed) % TURNS);
    let turn = turns.swap_remove(chosen);
    if free.is_none() {
        turn.lock().expect("a file can be locked");
    }
    turn
}

/// An installed engine and its model.
#[derive(Clone, Debug)]
pub struct Bed {
    engine: Engine,
    program: PathBuf,
    model: PathBuf,
    /// Locked while it lives.
    _turn: Arc<File>,
}

impl Bed {
    /// The engine that `tests/run` installed, for two tests at a time: the call waits for its turn.
    /// `None`, after a word on standard error, if nothing is installed.
    ///
    /// # Panics
    ///
    /// When it is missing in continuous integration.
    pub fn find(engine: Engine) -> Option<Self> {
        let [program, model] = match engine {
            Engine::Vllm => ["STATOR_TEST_VLLM", "STATOR_TEST_VLLM_MODEL"],
            Engine::Sglang => ["STATOR_TEST_SGLANG", "STATOR_TEST_SGLANG_MODEL"],
        };
        let name = engine.name();
        let program = installed(program, name)?;
        let model = installed(model, &format!("the model of {name}"))?;
        // Beside the folders of all engines.
        let cache = model.ancestors().nth(2).expect("the model is in the engine's folder");
        let turn = Arc::new(turn(cache));
        Some(Self { engine, program, model, _turn: turn })
    }

    /// As [`Bed::find`], for a test that runs only where the suites of all engines were asked for.
    /// `what` names the test's subject where it does not run.
    ///
    /// # Panics
    ///
    /// As [`Bed::find`].
    pub fn find_among_all(engine: Engine, what: &str) -> Option<Self> {
        // Before the turn, for which the test would wait in vain.
        if all_engines(what) { Self::find(engine) } else { None }
    }

    /// The engine with another model.
    pub fn with_model(&self, model: PathBuf) -> Self {
        Self { model, ..self.clone() }
    }

    /// Which engine it is.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The program, as an agent's `--engine-program`.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The model's folder, as an agent's `--model`.
    pub fn model(&self) -> &Path {
        &self.model
    }

    /// The folder of a LoRA adapter for the model.
    pub fn adapter(&self) -> PathBuf {
        self.model.with_file_name("adapter")
    }
}
