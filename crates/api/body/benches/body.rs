//! What reading and changing a body costs: `cargo bench -p stator-body`.
//!
//! Plain loops and plain printing; the figures are nanoseconds of one thread and the bytes of the
//! body that pass in that time. The two ways of serde_json that stand beside are the ones that a
//! picker would otherwise take: a structure of raw values, and a tree.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use stator_body::{
    Body, Field, ModelNameRewriter, ParserSet, UsageTail, prompt_bytes, scan, write_token_ids,
};
use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long each line is measured.
const MEASURE: Duration = Duration::from_millis(400);
/// How long a batch is at least, once their length has settled.
const BATCH_NANOS: f64 = 300_000.0;

/// The fields of a chat that are read in any case; the others are skipped.
#[derive(Deserialize)]
struct RawChat<'a> {
    model: String,
    stream: Option<bool>,
    #[serde(borrow)]
    messages: &'a RawValue,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
}

/// Measures `work` over `size` bytes and prints what one run takes: the quickest of many short
/// batches, which is the one that nothing else on the machine disturbed.
fn measure(name: &str, size: usize, mut work: impl FnMut()) {
    let start = Instant::now();
    let (mut runs, mut best) = (1_u32, f64::MAX);
    while start.elapsed() < MEASURE {
        let batch = Instant::now();
        (0..runs).for_each(|_| work());
        let nanos = batch.elapsed().as_secs_f64() * 1e9;
        best = best.min(nanos / f64::from(runs));
        if nanos < BATCH_NANOS {
            runs *= 2;
        }
    }
    println!("{name:<44} {best:>12.0} ns {:>8.2} GB/s", size as f64 / best);
}

/// About `size` bytes of text; a line ends after `line` words.
fn text(size: usize, line: usize) -> String {
    let words = ["the", "prefill", "worker", "reads", "a", "block", "from", "\"host\"", "memory"];
    let mut text = String::with_capacity(size + 16);
    let mut at = 0;
    while text.len() < size {
        let _ = write!(
            text,
            "{}{}",
            words[at % words.len()],
            if at % line == line - 1 { '\n' } else { ' ' }
        );
        at += 1;
    }
    text
}

/// A chat of about `size` bytes: a system message of half of it and turns of 600 bytes.
fn chat(size: usize, text: impl Fn(usize) -> String) -> Vec<u8> {
    let mut messages = vec![serde_json::json!({"role": "system", "content": text(size / 2)})];
    for turn in 0..size / 2 / 640 {
        let role = ["user", "assistant"][turn % 2];
        messages.push(serde_json::json!({"role": role, "content": text(600)}));
    }
    let body = serde_json::json!({"model": "bench/model-8b", "stream": true, "max_tokens": 256,
        "temperature": 0.7, "stream_options": {"include_usage": true}, "messages": messages});
    body.to_string().into_bytes()
}

fn scanning(name: &str, body: &[u8]) {
    let size = body.len();
    println!("{name}, {size} bytes");
    measure("  scan", size, || {
        black_box(scan(black_box(body)).expect("the body is sound"));
    });
    measure("  serde_json, raw values", size, || {
        let chat: RawChat<'_> = serde_json::from_slice(black_box(body)).expect("the body is sound");
        black_box((chat.model, chat.stream, chat.messages.get(), chat.tools.map(RawValue::get)));
    });
    measure("  serde_json, tree", size, || {
        let tree: serde_json::Value = serde_json::from_slice(black_box(body)).expect("it is sound");
        black_box(tree);
    });
    let fields = scan(body).expect("the body is sound");
    measure("  prompt_bytes", size, || {
        black_box(prompt_bytes(black_box(body), &fields).map(<[u8]>::len).sum::<usize>());
    });
}

fn splicing(body: Vec<u8>) {
    let size = body.len();
    let bytes = Bytes::from(body);
    let parsers = ParserSet::default();
    println!("request path, {size} bytes");
    measure("  parse", size, || {
        black_box(parsers.parse("/v1/chat/completions", black_box(&bytes)).expect("it is sound"));
    });
    let fields = scan(&bytes).expect("the body is sound");
    let mut chunks = Body::new(1 << 30);
    chunks.push(bytes.clone()).expect("the body fits");
    measure("  replace the model, pieces of 62,000", size, || {
        let mut editor = stator_body::Editor::new(&bytes, &fields);
        editor.set_string(Field::Model, "adapter-7");
        let edits = editor.finish();
        black_box(edits.pieces(&chunks, 62_000).map(|piece| piece.len()).sum::<usize>());
    });
    let ids: Vec<u32> = (0..50_000).map(|id| id * 37 % 128_000).collect();
    let mut out = Vec::new();
    write_token_ids(&ids, &mut out);
    measure("  write 50,000 token ids", out.len(), || {
        out.clear();
        write_token_ids(black_box(&ids), &mut out);
    });
}

fn responses() {
    let event = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\
        \"model\":\"bench/model-8b\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\
        \"finish_reason\":null}]}\n\n";
    let chunk = Bytes::from_static(event.as_bytes());
    println!("response chunk, {} bytes", chunk.len());
    let mut usage = UsageTail::new();
    measure("  UsageTail", chunk.len(), || usage.push(black_box(&chunk)));
    let mut rewriter = ModelNameRewriter::new("bench/model-8b", "client");
    let mut out = Vec::with_capacity(8);
    measure("  ModelNameRewriter", chunk.len(), || {
        out.clear();
        rewriter.push(black_box(&chunk).clone(), &mut out);
    });
    measure("  UsageTail::finish", 8 << 10, || {
        black_box(usage.finish());
    });
}

fn main() {
    for size in [1 << 10, 20 << 10, 220 << 10] {
        scanning("chat, short lines", &chat(size, |size| text(size, 12)));
    }
    scanning("chat, long strings", &chat(220 << 10, |size| "plain words ".repeat(size / 12)));
    scanning("chat, Chinese", &chat(220 << 10, |size| "预填充和解码分离".repeat(size / 24)));
    splicing(chat(220 << 10, |size| text(size, 12)));
    responses();
}
