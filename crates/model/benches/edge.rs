//! Times of the pure parts of a request: `cargo bench -p stator-model --bench edge [-- MODEL_DIR]`.
//!
//! Plain loops and plain printing; the figures are microseconds of one thread. Without a model
//! folder the small tokenizer of the tests is used, whose words have more tokens than real ones.

use bytes::Bytes;
use stator_api::delta::{Identity, Usage};
use stator_api::openai::chat;
use stator_api::openai::response::{EventWriter, UsageMode};
use stator_api::{Api, Conversation, Delta, Input};
use stator_model::{Model, StopMatcher};
use std::fmt::Write;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Length of each measurement.
const MEASURE: Duration = Duration::from_millis(400);
const FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
];

/// Measures `work`, which gets the number of the run, and prints microseconds per unit.
fn measure(name: &str, units: usize, mut work: impl FnMut(usize)) {
    // A tenth of the time warms caches up.
    let mut runs = 0;
    let mut start = Instant::now();
    let mut warm = false;
    while start.elapsed() < if warm { MEASURE } else { MEASURE / 10 } || !warm {
        if !warm && start.elapsed() >= MEASURE / 10 {
            (warm, runs, start) = (true, 0, Instant::now());
        }
        work(runs);
        runs += 1;
    }
    let micros = start.elapsed().as_secs_f64() * 1e6 / (runs * units) as f64;
    println!("{name:<58} {micros:>10.3} us");
}

fn model_files() -> Vec<(String, Bytes)> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let folder = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).map(PathBuf::from);
    match &folder {
        Some(folder) => FILES
            .iter()
            .filter_map(|name| {
                Some(((*name).to_owned(), std::fs::read(folder.join(name)).ok()?.into()))
            })
            .collect(),
        None => [
            ("tokenizer.json", "tokenizers/llama3.json"),
            ("chat_template.jinja", "templates/thinking.jinja"),
        ]
        .map(|(name, path)| {
            (name.to_owned(), std::fs::read(fixtures.join(path)).expect(path).into())
        })
        .into(),
    }
}

/// `count` words that look like text; `salt` makes them other words.
fn words(count: usize, salt: usize) -> String {
    const SYLLABLES: [&str; 16] = [
        "the", "in", "er", "and", "re", "on", "st", "to", "ly", "ing", "a", "of", "be", "con",
        "un", "al",
    ];
    let mut text = String::new();
    let mut state = salt as u64 * 2 + 1;
    for at in 0..count {
        for _ in 0..1 + at % 2 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            text.push_str(SYLLABLES[(state >> 60) as usize]);
        }
        text.push(if at % 16 == 15 { '.' } else { ' ' });
    }
    text
}

fn chat_body(system: &str, user: &str) -> Vec<u8> {
    let body = serde_json::json!({"model": "bench", "stream": true, "max_tokens": 16, "temperature": 0,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]});
    body.to_string().into_bytes()
}

fn main() {
    let files = model_files();
    let start = Instant::now();
    let model = Model::load("bench", &files).expect("the model loads");
    println!(
        "load {:.0} ms, fast path {}",
        start.elapsed().as_secs_f64() * 1e3,
        model.tokenizer().is_fast()
    );
    parse_and_render(&model);
    tokenize(&model);
    let (_, json) = files.iter().find(|(name, _)| name == "tokenizer.json").expect("there is one");
    compare(&model, json);
    stream(&model);
}

/// Measures the tokenizer library on the same text, for comparison.
fn compare(model: &Model, tokenizer_json: &[u8]) {
    let library = tokenizers::Tokenizer::from_bytes(tokenizer_json).expect("the tokenizer loads");
    let text = words(3000, 4);
    let ids = model.encode_prompt(&text, false).expect("tokens");
    measure(&format!("the library alone: encode {} tokens", ids.len()), 1, |_| {
        let encoding = library.encode_fast(black_box(text.as_str()), false).expect("tokens");
        assert_eq!(encoding.get_ids(), ids);
    });
}

fn conversation(body: &[u8]) -> Conversation<'_> {
    match chat::read(body).expect("a valid body").input {
        Input::Conversation(conversation) => conversation,
        Input::Prompts { .. } => panic!("a chat has no tokens here"),
    }
}

fn parse_and_render(model: &Model) {
    let short = chat_body("Be brief.", &words(24, 1));
    let long = chat_body(&words(1500, 1), &words(1500, 2));
    for (name, body) in [("short", &short), ("long", &long)] {
        let conversation = conversation(body);
        measure(&format!("parse a {name} chat, {} bytes", body.len()), 1, |_| {
            black_box(chat::read(black_box(body)).expect("a valid body"));
        });
        measure(&format!("render a {name} chat"), 1, |_| {
            black_box(model.render_chat(black_box(&conversation), UNIX_EPOCH).expect("a prompt"));
        });
    }
}

fn tokenize(model: &Model) {
    let encode = |text: &str| model.encode_prompt(text, false).expect("tokens");
    let short = words(24, 3);
    let tokens = encode(&short).len();
    measure(&format!("encode {tokens} tokens"), 1, |_| {
        black_box(encode(black_box(&short)));
    });
    // Every run has a text that was not there before, of words that were.
    let base = words(3000, 4);
    let tokens = encode(&base).len();
    let mut text = String::new();
    measure(&format!("encode {tokens} tokens, new text"), 1, |run| {
        text.clear();
        let _ = write!(text, "{run} {base}");
        black_box(encode(&text));
    });
    measure(&format!("encode {tokens} tokens, seen before"), 1, |_| {
        black_box(encode(black_box(&base)));
    });
    let half = words(1500, 5);
    let system = words(1500, 6);
    let mut prompt = Vec::new();
    measure("parse, render and encode a chat, half of it seen before", 1, |run| {
        prompt = chat_body(&system, &format!("{run} {half}"));
        black_box(model.encode_chat(&conversation(&prompt), UNIX_EPOCH).expect("tokens"));
    });
    measure("  of which making the body", 1, |run| {
        prompt = chat_body(&system, &format!("{run} {half}"));
    });
    let mut salt = 0;
    measure("encode 300 words that were never seen, per word", 300, |_| {
        salt += 1;
        let text: String = (0..300).map(|at| format!(" q{salt}x{at}")).collect();
        black_box(encode(&text));
    });
}

fn stream(model: &Model) {
    let ids = model.encode_prompt(&words(500, 7), false).expect("tokens");
    let mut text = String::new();
    measure("detokenize, per token", ids.len(), |_| {
        let mut detokenizer = model.detokenizer(true);
        text.clear();
        for id in &ids {
            detokenizer.push(std::slice::from_ref(id), &mut text);
        }
        black_box(&text);
    });
    let stops = ["\n\n".to_owned(), "END".to_owned()];
    measure("stop strings (two), per 4-byte piece", 500, |_| {
        let mut matcher = StopMatcher::new(&stops, false).expect("there are stop strings");
        text.clear();
        for _ in 0..500 {
            matcher.push(black_box("word"), &mut text);
        }
    });
    let identity = Identity { id: "0123456789abcdef", created: 1_700_000_000, model: "bench" };
    let writer = EventWriter::new(Api::ChatCompletions, &identity, UsageMode::Off);
    let mut out = Vec::new();
    measure("write a chunk", 500, |_| {
        out.clear();
        for _ in 0..500 {
            let delta = Delta { text: black_box(" word"), ..Delta::default() };
            writer.delta(&mut out, &delta, Usage::default());
        }
        black_box(&out);
    });
}
