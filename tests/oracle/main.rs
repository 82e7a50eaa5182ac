//! Answers of models, read by our parsers and by vLLM's: what each makes of them.
//!
//! `differences.json` lists where the two differ, and why. A difference that the file does not
//! explain fails, and so does an explanation of nothing. `tests/run` installs vLLM; where it is
//! missing, the test says so and does not run.

#[path = "../../crates/model/markup/tests/answers/mod.rs"]
mod answers;

use answers::{Answer, answers};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Deserialize;
use serde_json::{Value, json};
use stator_api::json::Json;
use stator_api::tools::Function;
use stator_markup::tools::KnownTools;
use stator_markup::{OutputEvent, OutputParser, ReasoningFamily, ToolFamily};
use stator_tests::tooling::installed;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Random cuts of each answer, beside the answer in one piece and in single tokens.
const RANDOM_CUTS: usize = 4;
/// Most tokens of a piece.
const PIECE_MAX: usize = 12;
/// The functions of all requests.
const FUNCTIONS: [&str; 2] = ["f", "g"];
/// Their parameters.
const SCHEMA: &str = r#"{"type":"object","properties":{"n":{"type":"integer"},
    "s":{"type":"string"},"o":{"type":"object"},"b":{"type":"boolean"}}}"#;

/// A difference, and why it is there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    /// The family of calls, or of thoughts where an answer has none.
    family: String,
    /// The answer; all of the family without it.
    answer: Option<String>,
    /// `whole` or `streamed`; both without it.
    read: Option<String>,
    why: String,
}

/// Content of an answer: thoughts and text without white space around them, and calls.
#[derive(Clone, Debug, Default, PartialEq)]
struct Reading {
    reasoning: String,
    content: String,
    calls: Vec<(String, Value)>,
}

impl Reading {
    fn new(reasoning: &str, content: &str, calls: Vec<(String, String)>) -> Self {
        // Numbers and spaces are as the model wrote them with us, and as Python writes them there.
        let value = |text: String| serde_json::from_str(&text).unwrap_or(Value::String(text));
        let calls = calls.into_iter().map(|(name, arguments)| (name, value(arguments))).collect();
        Self { reasoning: reasoning.trim().into(), content: content.trim().into(), calls }
    }

    /// A reading by vLLM.
    fn of_vllm(read: &Value) -> Result<Self, String> {
        if let Some(error) = read["error"].as_str() {
            return Err(error.to_owned());
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let call = |call: &Value| (text(&call["name"]), text(&call["arguments"]));
        let calls = read["calls"].as_array().into_iter().flatten().map(call).collect();
        Ok(Self::new(&text(&read["reasoning"]), &text(&read["content"]), calls))
    }
}

/// Our reading of an answer in these pieces.
fn ours((tools, reasoning, inside, _, _): Answer, pieces: &[&str]) -> Reading {
    let schema: Json<'_> = serde_json::from_str(SCHEMA).expect("JSON");
    let parameters = schema.into_owned();
    let function = |name: &str| Function {
        name: name.to_owned().into(),
        parameters: Some(parameters.clone()),
        strict: false,
        custom: None,
    };
    let known = KnownTools::new(FUNCTIONS.map(function).to_vec());
    let families = (ReasoningFamily::find(reasoning), ToolFamily::find(tools));
    let mut parser = OutputParser::new(families.0, families.1, known, inside);
    let (mut thoughts, mut text, mut calls) = (String::new(), String::new(), Vec::new());
    let mut sink = |event: OutputEvent<'_>| match event {
        OutputEvent::Reasoning(piece) => thoughts.push_str(piece),
        OutputEvent::Text(piece) => text.push_str(piece),
        OutputEvent::CallStart { name, .. } => calls.push((name.to_owned(), String::new())),
        OutputEvent::Arguments(piece) => calls.last_mut().expect("a call").1.push_str(piece),
        OutputEvent::CallEnd => {}
    };
    pieces.iter().for_each(|piece| parser.push(piece, &mut sink));
    parser.finish(&mut sink);
    Reading::new(&thoughts, &text, calls)
}

/// Sizes of pieces in tokens, each list repeated to the answer's end.
fn cuts(random: &mut ChaCha8Rng) -> Vec<Vec<usize>> {
    let mut below = |limit: usize| random.next_u32() as usize % limit;
    let mut cuts = vec![vec![usize::MAX >> 1], vec![1]];
    for _ in 0..RANDOM_CUTS {
        let pieces = 1 + below(8);
        cuts.push((0..pieces).map(|_| 1 + below(PIECE_MAX)).collect());
    }
    cuts
}

/// Question to vLLM about an answer.
fn question((tools, reasoning, inside, text, _): Answer, cuts: &[Vec<usize>]) -> Value {
    let (calls, thoughts) = (ToolFamily::find(tools), ReasoningFamily::find(reasoning));
    let markers: BTreeSet<_> = [
        calls.map(ToolFamily::markers).unwrap_or_default(),
        thoughts.map(ReasoningFamily::markers).unwrap_or_default(),
    ]
    .concat()
    .into_iter()
    .collect();
    let names = |own: &str, names: Option<&[&str]>| {
        let others = names.unwrap_or_default().iter().copied();
        [own].into_iter().chain(others).map(str::to_owned).collect::<Vec<_>>()
    };
    json!({
        "tools": names(tools, calls.map(|family| family.names)),
        "reasoning": names(reasoning, thoughts.map(|family| family.names)),
        "openers": thoughts.map(|family| family.openers).unwrap_or_default(),
        "inside": inside, "markers": markers, "text": text, "cuts": cuts,
        "functions": FUNCTIONS, "schema": serde_json::from_str::<Value>(SCHEMA).expect("JSON"),
    })
}

/// Checks that all of vLLM's names are known, but for templates that describe answers themselves.
fn knows(names: &Value, known: impl Fn(&str) -> bool) {
    let names = names.as_array().expect("a list").iter().filter_map(Value::as_str);
    let unknown: Vec<_> = names.filter(|name| !known(name)).collect();
    assert_eq!(unknown, ["hf"]);
}

#[test]
fn answers_say_to_us_what_they_say_to_vllm() {
    let Some(vllm) = installed("STATOR_TEST_VLLM", "vLLM") else { return };
    let mut random = ChaCha8Rng::seed_from_u64(23);
    let cuts: Vec<_> = answers().iter().map(|_| cuts(&mut random)).collect();
    let ask = |(answer, cuts): (&Answer, &Vec<Vec<usize>>)| question(*answer, cuts).to_string();
    let questions: Vec<_> = answers().iter().zip(&cuts).map(ask).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("questions");
    std::fs::write(&path, questions.join("\n")).expect("the questions are written");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/oracle/vllm_parsers.py");
    let mut python = Command::new(vllm.with_file_name("python"));
    let output = python.arg(script).arg(&path).output().expect("Python runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let replies = String::from_utf8(output.stdout).expect("UTF-8");
    let replies: Vec<Value> =
        replies.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (names, replies) = replies.split_first().expect("the names come first");
    knows(&names["tools"], |name| ToolFamily::find(name).is_some());
    knows(&names["reasoning"], |name| ReasoningFamily::find(name).is_some());
    assert_eq!(replies.len(), answers().len(), "{errors}");

    let explained: Vec<Difference> =
        serde_json::from_str(include_str!("differences.json")).expect("the list is sound");
    let (mut used, mut unexplained, mut compared) = (BTreeSet::new(), BTreeMap::new(), 0);
    for (answer, reply) in answers().into_iter().zip(replies) {
        if reply["unknown"] == true {
            continue;
        }
        let whole = ours(answer, &[answer.3]);
        let readings = reply["readings"].as_array().expect("readings");
        for (number, read) in readings.iter().enumerate() {
            let how = if number == 0 { "whole" } else { "streamed" };
            compared += 1;
            let theirs = Reading::of_vllm(read);
            if theirs.as_ref() == Ok(&whole) {
                continue;
            }
            let explains = |it: &Difference| {
                it.family == (if answer.0.is_empty() { answer.1 } else { answer.0 })
                    && it.answer.as_ref().is_none_or(|text| text == answer.3)
                    && it.read.as_ref().is_none_or(|read| read == how)
            };
            match explained.iter().position(explains) {
                Some(at) => drop(used.insert(at)),
                None => {
                    let difference = format!(
                        "{} {} {how}\n  {}\n  ours   {whole:?}\n  vLLM's {theirs:?}",
                        answer.0, answer.1, answer.3
                    );
                    *unexplained.entry(difference).or_insert(0) += 1;
                }
            }
        }
        for pieces in readings.iter().filter_map(|read| read["pieces"].as_array()) {
            let pieces: Vec<_> = pieces.iter().filter_map(Value::as_str).collect();
            assert_eq!(ours(answer, &pieces), whole, "in pieces: {pieces:?}");
        }
    }
    let differ: Vec<_> = unexplained
        .iter()
        .map(|(difference, times)| format!("{times} times {difference}"))
        .collect();
    assert!(differ.is_empty(), "nothing explains these:\n{}", differ.join("\n"));
    assert!(compared > 500, "only {compared} readings were compared");
    let idle = explained.iter().enumerate().filter(|(at, _)| !used.contains(at));
    let idle: Vec<_> = idle.map(|(_, it)| format!("{}: {}", it.family, it.why)).collect();
    assert!(idle.is_empty(), "these explain nothing: {idle:#?}");
}
