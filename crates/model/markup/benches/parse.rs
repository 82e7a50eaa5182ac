//! Cost of reading markup: `cargo bench -p stator-markup --bench parse [-- part of a name]`.
//!
//! An answer comes in pieces of four bytes, about a token each: thoughts, text and a call with a
//! long string. Plain loops and plain printing; the figures are nanoseconds a piece, of one thread.

use stator_api::json::Json;
use stator_api::tools::Function;
use stator_markup::tools::KnownTools;
use stator_markup::{OutputEvent, OutputParser, ReasoningFamily, ToolFamily};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Length of each measurement.
const MEASURE: Duration = Duration::from_millis(400);
const SCHEMA: &str = r#"{"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}"#;

/// A family of calls, a family of thoughts, and one call; `@` stands for a long text.
const ANSWERS: &[(&str, &str, &str)] = &[
    (
        "hermes",
        "qwen3",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"@\"}}\n</tool_call>",
    ),
    ("llama3_json", "", "{\"name\": \"f\", \"parameters\": {\"s\": \"@\"}}"),
    ("mistral", "mistral", "[TOOL_CALLS]f[ARGS]{\"s\": \"@\"}"),
    (
        "kimi_k2",
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\": \"@\"}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "qwen3_coder",
        "qwen3",
        "<tool_call>\n<function=f>\n<parameter=s>\n@\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "glm45",
        "glm45",
        "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>@</arg_value>\n</tool_call>",
    ),
    (
        "deepseek_v3_2",
        "deepseek_v3_2",
        "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"s\" string=\"true\">@</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
    ),
    (
        "minimax_m3",
        "minimax_m3",
        "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<s>@]<]minimax[>[</s>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
    ),
    ("pythonic", "", "[f(s='@')]"),
    ("gemma4", "gemma4", "<|tool_call>call:f{s:<|\"|>@<|\"|>}<tool_call|>"),
    (
        "harmony",
        "gpt_oss",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"s\": \"@\"}<|call|>",
    ),
    (
        "muse_glimmer",
        "muse_glimmer",
        " to=f<|message|><atem:function_calls><atem:invoke name=\"f\"><atem:parameter name=\"s\">@</atem:parameter></atem:invoke></atem:function_calls><|eom|>",
    ),
];

/// Pieces of an answer, all of four bytes but the last.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for c in text.chars() {
        if pieces.last().is_some_and(|piece| piece.len() >= 4) {
            pieces.push(String::new());
        }
        pieces.last_mut().expect("there is one").push(c);
    }
    pieces
}

/// Nanoseconds a piece of an answer.
fn measure(tools: &str, reasoning: &str, inside: bool, text: &str) -> f64 {
    let schema: Json<'_> = serde_json::from_str(SCHEMA).expect("JSON");
    let parameters = Some(schema.into_owned());
    let known = KnownTools::new(vec![Function {
        name: "f".into(),
        parameters,
        strict: false,
        custom: None,
    }]);
    let families = (ReasoningFamily::find(reasoning), ToolFamily::find(tools));
    let pieces = pieces(text);
    let mut bytes = 0;
    let mut read = || {
        let mut parser = OutputParser::new(families.0, families.1, known.clone(), inside);
        let mut sink = |event: OutputEvent<'_>| match event {
            OutputEvent::Reasoning(it) | OutputEvent::Text(it) | OutputEvent::Arguments(it) => {
                bytes += black_box(it).len();
            }
            OutputEvent::CallStart { .. } | OutputEvent::CallEnd => {}
        };
        pieces.iter().for_each(|piece| parser.push(black_box(piece), &mut sink));
        parser.finish(&mut sink);
    };
    // A tenth of the time warms caches up.
    let start = Instant::now();
    while start.elapsed() < MEASURE / 10 {
        read();
    }
    let (start, mut runs) = (Instant::now(), 0);
    while start.elapsed() < MEASURE {
        read();
        runs += 1;
    }
    let nanos = start.elapsed().as_secs_f64() * 1e9 / f64::from(runs) / pieces.len() as f64;
    assert!(bytes > 0, "the answer says something");
    nanos
}

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let words = "A piece of text, a bit of it < or { here and there. ".repeat(40);
    println!("{:<16} {:>12} {:>12} {:>12}", "", "thoughts", "text", "call");
    for (tools, reasoning, call) in ANSWERS {
        if only.as_ref().is_some_and(|only| !tools.contains(only.as_str())) {
            continue;
        }
        let channels = ["harmony", "muse_glimmer"].contains(tools);
        let text = match channels {
            true => format!("<|message|>{words}"),
            false => words.clone(),
        };
        let columns = [
            measure(tools, reasoning, !reasoning.is_empty(), &words),
            measure(tools, reasoning, false, &text),
            measure(tools, reasoning, false, &call.replace('@', &words)),
        ];
        let [thoughts, text, call] = columns.map(|nanos| format!("{nanos:.0} ns"));
        println!("{tools:<16} {thoughts:>12} {text:>12} {call:>12}");
    }
}
