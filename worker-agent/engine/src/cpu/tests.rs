use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::model_files::ModelFiles;
use crate::pool::BlockId;
use crate::testkit::tiers::{FakeTiers, SharedStore};
use crate::testkit::{Answer, Cargo, Driver, alone, request_with};
use crate::{Engine, FinishReason, Request, RequestKey, Rest, Reusable, TokenLogprobs};
use stator_protos::worker::{LogitBias, Sampling};

#[path = "../../fixtures/random.rs"]
#[allow(unreachable_pub)] // A benchmark uses it, too.
mod random;

pub(super) const MODELS: [&str; 6] = ["llama", "llama3", "linear", "qwen2", "qwen3", "mistral"];

/// What `fixtures/record.py` wrote of a model.
#[derive(Deserialize)]
struct Recorded {
    cases: Vec<Case>,
    greedy: Greedy,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    /// Some rows of logits by position.
    logits: BTreeMap<usize, Vec<f32>>,
}

#[derive(Deserialize)]
struct Greedy {
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

pub(super) fn model(name: &str) -> Model {
    Model::load(&ModelFiles::open(&fixture(name)).unwrap()).unwrap()
}

fn recorded(name: &str) -> Recorded {
    serde_json::from_slice(&std::fs::read(fixture(name).join("logits.json")).unwrap()).unwrap()
}

pub(super) fn tokens(start: u32, len: usize) -> Vec<u32> {
    (start..).map(|i| (i * i + i / 3) % 50).take(len).collect()
}

/// A model and the KV of a few sequences, each in blocks that are far apart.
struct Bench {
    model: Model,
    kv: Kv,
    block_size: usize,
}

impl Bench {
    const SEQUENCES: u32 = 4;

    fn new(model: Model, block_size: usize) -> Self {
        let layout = Layout::new(&model.config, block_size);
        let kv = Kv::new(layout, Self::SEQUENCES * 256).unwrap();
        Self { model, kv, block_size }
    }

    /// The blocks of a sequence, in no order.
    fn blocks(&self, sequence: u32, len: usize) -> Vec<BlockId> {
        let count = len.div_ceil(self.block_size) as u32;
        (0..count).map(|i| BlockId(sequence + Self::SEQUENCES * (i * 37 % 256))).collect()
    }

    /// Computes parts of sequences together: tokens, start and end of each. Returns the logits of
    /// every token in turn.
    fn step(&mut self, parts: &[(&[u32], usize, usize)]) -> Vec<Vec<f32>> {
        let blocks: Vec<_> =
            (0..).zip(parts).map(|(i, (tokens, ..))| self.blocks(i, tokens.len())).collect();
        let parts = parts.iter().zip(&blocks);
        let items: Vec<Item<'_>> = parts
            .map(|(&(tokens, start, end), blocks)| Item {
                tokens,
                start,
                end,
                blocks,
                draw: None,
                prompt_logprobs: None,
                pool: None,
            })
            .collect();
        let rows: usize = items.iter().map(|item| item.end - item.start).sum();
        let wanted: Vec<usize> = (0..rows).collect();
        let mut activations = Activations::default();
        self.model.forward(&items, &mut self.kv, KvCopies::default(), &mut activations);
        let logits = self.model.project_to_vocabulary(&wanted, &mut activations);
        wanted.iter().map(|row| logits.row(*row).to_vec()).collect()
    }

    /// The logits of every token of one sequence, computed in chunks of `chunk`.
    fn chunked(&mut self, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
        let starts = (0..tokens.len()).step_by(chunk);
        let ends = starts.map(|start| (start, (start + chunk).min(tokens.len())));
        ends.flat_map(|(start, end)| self.step(&[(tokens, start, end)])).collect()
    }
}

/// Compares by bits: `==` would call zero and minus zero equal.
#[track_caller]
fn assert_same_bits(got: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(got.len(), expected.len());
    for (position, (got, expected)) in got.iter().zip(expected).enumerate() {
        let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(got), bits(expected), "logits of position {position}");
    }
}

#[test]
fn logits_agree_with_transformers() {
    for name in MODELS {
        let mut bench = Bench::new(model(name), 16);
        for case in recorded(name).cases {
            let logits = bench.chunked(&case.prompt, case.prompt.len());
            for (row, expected) in &case.logits {
                for (got, expected) in logits[*row].iter().zip(expected) {
                    let off = (got - expected).abs();
                    assert!(off < 1e-4, "{name}, row {row}: {got}, expected {expected}");
                }
            }
        }
    }
}

#[test]
fn greedy_answers_agree_with_transformers() {
    for name in MODELS {
        let Greedy { prompt, answer } = recorded(name).greedy;
        let max_tokens = answer.len() as u32;
        let sampling = Sampling { max_tokens, ignore_eos: true, ..Sampling::neutral() };
        let engine = engine(Arc::new(model(name)), options(64)).unwrap();
        let got = alone(engine, request_with(1, prompt, sampling));
        assert_eq!(got[&(1, 0)].tokens, answer, "{name}");
    }
}

#[test]
fn logits_do_not_depend_on_chunks() {
    for name in MODELS {
        for block_size in [16, 5] {
            let mut bench = Bench::new(model(name), block_size);
            let tokens = tokens(3, 150);
            let whole = bench.chunked(&tokens, 150);
            for chunk in [1, 7, 16, 64] {
                assert_same_bits(&bench.chunked(&tokens, chunk), &whole);
            }
        }
    }
}

#[test]
fn logits_do_not_depend_on_the_batch() {
    for name in MODELS {
        let [a, b, c] = [(1, 90), (7, 40), (11, 71)].map(|(start, len)| tokens(start, len));
        let lone = |tokens: &[u32]| Bench::new(model(name), 16).chunked(tokens, tokens.len());
        let mut bench = Bench::new(model(name), 16);
        let first = bench.step(&[(&a, 0, 33), (&b, 0, 1), (&c, 0, 70)]);
        let second = bench.step(&[(&a, 33, 90), (&b, 1, 40), (&c, 70, 71)]);
        let [mut got_a, mut got_b, mut got_c] = [vec![], vec![], vec![]];
        for (step, lens) in [(first, [33, 1, 70]), (second, [57, 39, 1])] {
            let mut rows = step.into_iter();
            got_a.extend(rows.by_ref().take(lens[0]));
            got_b.extend(rows.by_ref().take(lens[1]));
            got_c.extend(rows);
        }
        assert_same_bits(&got_a, &lone(&a));
        assert_same_bits(&got_b, &lone(&b));
        assert_same_bits(&got_c, &lone(&c));
    }
}

/// Large enough that products and attention are divided among threads.
#[test]
fn logits_do_not_depend_on_the_number_of_threads() {
    let tokens: Vec<u32> = (0..300).map(|i| i * 7 % 512).collect();
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| Bench::new(random_model(), 16).chunked(&tokens, 300))
    };
    let one = run(1);
    assert_same_bits(&run(2), &one);
    assert_same_bits(&run(3), &one);
    let mut steps = Bench::new(random_model(), 16);
    assert_same_bits(&steps.chunked(&tokens, 41), &one);
}

/// A model of a million weights, made in memory.
fn random_model() -> Model {
    let config = r#"{"model_type": "qwen3", "hidden_size": 192, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 32, "vocab_size": 512, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true}"#;
    Model::load(&ModelFiles::embedded(&random::files(config))).unwrap()
}

fn options(total_blocks: u32) -> EngineOptions {
    EngineOptions { total_blocks, max_batched_tokens: 32, ..EngineOptions::default() }
}

/// Greedy, and telling the logprobs of almost the whole vocabulary of 50.
fn telling(key: u64, tokens: Vec<u32>, max_tokens: u32) -> Request {
    let logprobs = Some(20);
    let sampling = Sampling { max_tokens, logprobs, ignore_eos: true, ..Sampling::neutral() };
    request_with(key, tokens, sampling)
}

fn essence(answer: &Answer) -> (&[u32], &[TokenLogprobs]) {
    (&answer.tokens, &answer.logprobs)
}

#[test]
fn answers_do_not_depend_on_reuse_batch_or_preemption() {
    for name in MODELS {
        let model = Arc::new(model(name));
        let requests: Vec<Request> = [(1, 70), (1, 70), (9, 33), (23, 1), (4, 48)]
            .into_iter()
            .zip(0..)
            .map(|((start, len), key)| telling(key, tokens(start, len), 30))
            .collect();
        let lone = |request: &Request| {
            let answers = alone(engine(model.clone(), options(64)).unwrap(), request.clone());
            answers[&(request.key.0, 0)].clone()
        };
        // 17 blocks are too few for all at once.
        for total_blocks in [64, 17] {
            let mut driver = Driver::new(engine(model.clone(), options(total_blocks)).unwrap());
            requests.iter().for_each(|request| driver.submit(request.clone()));
            driver.run();
            let again = Request { key: RequestKey(9), ..requests[0].clone() };
            driver.submit(again);
            driver.run();
            for request in &requests {
                assert_eq!(essence(driver.answer(request.key.0)), essence(&lone(request)));
            }
            assert!(driver.answer(9).cached_tokens() > 0);
            assert_eq!(essence(driver.answer(9)), essence(driver.answer(0)));
        }
    }
}

#[test]
fn answers_do_not_depend_on_which_engine_computed_the_prompt() {
    for name in MODELS {
        let model = Arc::new(model(name));
        let fresh = || Driver::new(engine(model.clone(), options(32)).unwrap());
        let (mut prefill, mut decode) = (fresh(), fresh());
        let mut request = telling(1, tokens(3, 70), 20);
        let Reusable { held, names } = decode.engine.kv().reusable(&mut request);
        assert_eq!(held, 0);
        prefill.submit(Request { sampling: telling(1, vec![1], 1).sampling, ..request.clone() });
        prefill.engine.kv().keep(request.key);
        while prefill.step() {}
        let mut cargo = Cargo::of(prefill.engine.kv(), request.key, 0, &names);
        assert_eq!(decode.engine.kv().import(&request, 0, &mut cargo), 4);
        decode.submit(request.clone());
        decode.run();
        assert_eq!(decode.answer(1).cached_tokens(), 64);
        let expected = &alone(engine(model.clone(), options(32)).unwrap(), request)[&(1, 0)];
        assert_eq!(essence(decode.answer(1)), essence(expected), "{name}");
    }
}

#[test]
fn answers_do_not_depend_on_kv_from_outer_tiers() {
    for name in MODELS {
        let model = Arc::new(model(name));
        let store = SharedStore::default();
        let fresh = || {
            let engine = engine(model.clone(), options(9)).unwrap();
            Driver::new(engine.with_tiers(Box::new(FakeTiers(store.clone()))))
        };
        let expected = |request: &Request| {
            let answers = alone(engine(model.clone(), options(9)).unwrap(), request.clone());
            answers[&(request.key.0, 0)].clone()
        };
        // The second prompt takes all blocks from the first, which comes back for its next turn; at
        // last an engine that has computed nothing yet goes on with it.
        let first = telling(1, tokens(3, 70), 20);
        let turn = [first.tokens.clone(), expected(&first).tokens].concat();
        let second = telling(2, tokens(11, 90), 20);
        let requests = [first, second, telling(3, turn.clone(), 20)];
        let mut driver = fresh();
        for (request, cached) in requests.into_iter().zip([0, 0, 80]) {
            driver.submit(request.clone());
            driver.run();
            let answer = driver.answer(request.key.0);
            assert_eq!(answer.cached_tokens(), cached, "{name}");
            assert_eq!(essence(answer), essence(&expected(&request)), "{name}");
        }
        let (mut other, again) = (fresh(), telling(4, turn, 20));
        other.submit(again.clone());
        other.run();
        assert_eq!(other.answer(4).cached_tokens(), 80, "{name}");
        assert_eq!(essence(other.answer(4)), essence(&expected(&again)), "{name}");
        // Blocks come and leave beside the layers of a step in which another sequence computes.
        let roomy = engine(model.clone(), options(20)).unwrap();
        let mut both = Driver::new(roomy.with_tiers(Box::new(FakeTiers(store.clone()))));
        let long = telling(5, tokens(17, 40), 30);
        both.submit(long.clone());
        both.step();
        both.submit(again.clone());
        both.run();
        assert_eq!(both.answer(4).cached_tokens(), 80, "{name}");
        for request in [long, again] {
            let answer = both.answer(request.key.0);
            assert_eq!(essence(answer), essence(&expected(&request)), "{name}");
        }
    }
}

#[test]
fn kv_of_another_model_or_another_block_size_is_of_another_form() {
    let form = |name: &str, block_size| {
        let options = EngineOptions { block_size, ..options(8) };
        engine(Arc::new(model(name)), options).unwrap().kv().form()
    };
    assert_eq!(form("llama", 16), form("llama", 16));
    assert_ne!(form("llama", 16).fingerprint, form("llama", 8).fingerprint);
    assert_ne!(form("llama", 16).fingerprint, form("qwen2", 16).fingerprint);
}

#[test]
fn an_engine_that_slept_answers_the_same_afterwards() {
    let request = || telling(1, tokens(5, 40), 12);
    let fresh = || engine(Arc::new(random_model()), options(20)).unwrap();
    let mut driver = Driver::new(fresh());
    driver.submit(request());
    driver.step();
    driver.step();
    driver.engine.rest(Rest::Asleep);
    assert!(!driver.step());
    driver.engine.rest(Rest::Awake);
    driver.run();
    let expected = &alone(fresh(), request())[&(1, 0)];
    assert_eq!(essence(driver.answer(1)), essence(expected));
}

#[test]
fn sampled_choices_do_not_depend_on_each_other_and_can_be_resumed() {
    let model = Arc::new(model("qwen3"));
    let sampling = Sampling {
        temperature: 1.0,
        top_p: 0.9,
        repetition_penalty: 1.2,
        frequency_penalty: 0.3,
        seed: 5,
        max_tokens: 20,
        ignore_eos: true,
        ..Sampling::neutral()
    };
    let run = |request| alone(engine(model.clone(), options(64)).unwrap(), request);
    let several = Request { choices: 3, ..request_with(1, tokens(2, 40), sampling.clone()) };
    let answers = run(several.clone());
    assert_ne!(answers[&(1, 0)].tokens, answers[&(1, 1)].tokens);
    for choice in 0..3 {
        let whole = &answers[&(1, choice)].tokens;
        let tokens = [several.tokens.clone(), whole[..8].to_vec()].concat();
        let rest = request_with(1, tokens, sampling.clone());
        let rest = run(Request { resumed: 8, first_choice: choice, ..rest });
        assert_eq!(rest[&(1, choice)].tokens, whole[8..]);
    }
}

#[test]
fn prompt_logprobs_are_those_of_the_whole_prompt() {
    let mut bench = Bench::new(model("llama"), 16);
    let tokens = tokens(2, 100);
    let logits = bench.chunked(&tokens, 100);
    let sampling = Sampling { prompt_logprobs: Some(2), logprobs: Some(1), ..Sampling::neutral() };
    let engine = engine(Arc::new(model("llama")), options(64)).unwrap();
    let answer = &alone(engine, request_with(1, tokens.clone(), sampling))[&(1, 0)];
    let pairs = logits.iter().zip(&tokens[1..]);
    let expected: Vec<_> = pairs.map(|(row, token)| sampling::logprobs(row, *token, 2)).collect();
    assert_eq!(answer.prompt_logprobs, expected);
    assert_eq!(answer.logprobs[0], sampling::logprobs(&logits[99], answer.tokens[0], 1));
}

#[test]
fn too_many_blocks_are_refused() {
    let huge =
        EngineOptions { total_blocks: 1 << 24, block_size: 1024, ..EngineOptions::default() };
    let error = engine(Arc::new(random_model()), huge).err().expect("terabytes");
    assert!(error.to_string().starts_with("16777216 KV blocks of "), "{error}");
}

#[test]
fn a_weight_that_is_missing_or_of_another_shape_is_named() {
    let files = ModelFiles::open(&fixture("qwen2")).unwrap();
    let load = |from: &str, to: &str| {
        let config = String::from_utf8(files.get("config.json").unwrap().to_vec()).unwrap();
        assert!(config.contains(from));
        let config = config.replace(from, to).into_bytes().leak();
        let weights = files.get("model.safetensors").unwrap().to_vec().leak();
        let files: [(&str, &'static [u8]); 2] =
            [("config.json", config), ("model.safetensors", weights)];
        Model::load(&ModelFiles::embedded(&files)).unwrap_err().to_string()
    };
    assert_eq!(
        load("\"qwen2\"", "\"qwen3\""),
        "no *.safetensors file has the weight \"model.layers.0.self_attn.q_norm.weight\""
    );
    assert_eq!(
        load("\"intermediate_size\": 40", "\"intermediate_size\": 48"),
        "model.safetensors: model.layers.0.mlp.gate_proj.weight: \
         shape [40, 24], but config.json makes it [48, 24]"
    );
}

#[test]
fn an_answer_ends_at_the_models_own_end() {
    let model = Arc::new(model("llama"));
    let run = |sampling| {
        let engine = engine(model.clone(), options(64)).unwrap();
        alone(engine, request_with(1, tokens(1, 20), sampling))[&(1, 0)].clone()
    };
    let eos = model.info().eos_token_ids[0];
    let biased = Sampling {
        logit_bias: vec![LogitBias { token_id: eos, bias: 100.0 }],
        max_tokens: 9,
        ..Sampling::neutral()
    };
    let ended = run(biased.clone());
    assert_eq!((ended.tokens.as_slice(), ended.reason()), (&[eos][..], FinishReason::Stop(eos)));
    let later = run(Sampling { min_tokens: 4, ..biased.clone() });
    assert_eq!(later.tokens.len(), 4 + 1);
    let ignored = run(Sampling { ignore_eos: true, ..biased });
    assert_eq!(ignored.reason(), FinishReason::Length);
    assert_eq!(ignored.tokens, [eos; 9]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Broken files are refused, or make a model that computes something; nothing panics.
    #[test]
    fn damaged_models_do_not_stop_the_process(
        damage in prop::collection::vec((any::<bool>(), 0..1500_usize, any::<u8>()), 1..4),
    ) {
        let files = ModelFiles::open(&fixture("llama3")).unwrap();
        let mut config = files.get("config.json").unwrap().to_vec();
        let mut weights = files.get("model.safetensors").unwrap().to_vec();
        for (in_config, place, byte) in damage {
            let bytes = if in_config { &mut config } else { &mut weights };
            let len = bytes.len();
            bytes[place % len] = byte;
        }
        let files: [(&str, &'static [u8]); 2] =
            [("config.json", config.leak()), ("model.safetensors", weights.leak())];
        let Ok(model) = Model::load(&ModelFiles::embedded(&files)) else { return Ok(()) };
        if let Ok(engine) = engine(Arc::new(model), options(64)) {
            let mut driver = Driver::new(engine);
            if driver.engine.submit(telling(1, tokens(1, 20), 3)).is_ok() {
                driver.run();
            }
        }
    }
}
