//! Replay of recorded traces in Mooncake's format.
//!
//! Source: Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025, and the
//! traces published with it: a JSON object a line, with `timestamp` in milliseconds, lengths in
//! tokens, and one hash id for each 512 tokens of the prompt. An id stands for its block *and all
//! before it*, so equal leading ids are equal prefixes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::args::TraceArgs;
use crate::seed::{Purpose, Seed};

use super::{Content, Session, SessionSource};

/// Tokens of one block of a trace, before scaling.
const BLOCK_TOKENS: u32 = 512;
/// Longest prompt that a line may ask for, before scaling.
const INPUT_MAX: u64 = 10_000_000;
/// Longest answer that a line may ask for, before scaling.
const OUTPUT_MAX: u64 = 1_000_000;
/// Longest time that a line may stand for: a year.
const TIMESTAMP_MAX_MS: f64 = 366.0 * 86_400_000.0;

/// A trace in memory: about 8 bytes a block.
#[derive(Clone, Debug)]
pub struct Trace {
    entries: Vec<Entry>,
    content: Content,
    seed: u64,
    block_len: usize,
}

/// One request of a trace, scaled.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    at: Duration,
    prompt_tokens: usize,
    output_tokens: u32,
    blocks: Vec<u64>,
}

/// One line of a trace; fields that other traces add are ignored.
#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

impl Trace {
    /// Reads a trace from a file of JSON lines.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, has no request, or has a line that is none; the message
    /// names the line.
    pub fn read(path: &Path, args: &TraceArgs, content: Content, seed: u64) -> Result<Self> {
        let name = path.display();
        let file = File::open(path).with_context(|| format!("trace {name}"))?;
        Self::parse(BufReader::new(file), args, content, seed)
            .with_context(|| format!("trace {name}"))
    }

    /// Reads a trace from JSON lines.
    ///
    /// # Errors
    ///
    /// For a trace without a request, or with a line that is none; the message names the line.
    pub fn parse(
        reader: impl BufRead,
        args: &TraceArgs,
        content: Content,
        seed: u64,
    ) -> Result<Self> {
        let mut entries = Vec::new();
        for (number, line) in (1..).zip(reader.lines()) {
            if entries.len() as u64 >= args.limit {
                break;
            }
            let line = line.with_context(|| format!("line {number}"))?;
            if !line.trim().is_empty() {
                entries.push(entry(&line, args).with_context(|| format!("line {number}"))?);
            }
        }
        ensure!(!entries.is_empty(), "has no request");
        // Lines may be slightly out of order; replay needs ascending times that begin at zero.
        entries.sort_by_key(|entry| entry.at);
        let start = entries[0].at;
        for entry in &mut entries {
            entry.at = (entry.at - start).div_f64(args.speed);
        }
        let block_len = scale(u64::from(BLOCK_TOKENS), args.length_scale) as usize;
        Ok(Self { entries, content, seed, block_len })
    }

    /// Number of requests, at least 1.
    #[allow(clippy::len_without_is_empty)] // It is never empty.
    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Times of arrival, ascending from zero.
    pub fn times(&self) -> Vec<Duration> {
        self.entries.iter().map(|entry| entry.at).collect()
    }
}

impl SessionSource for Trace {
    /// # Panics
    ///
    /// When `index` is not below [`Trace::len`].
    fn session(&self, index: u64) -> Session {
        let entry = &self.entries[index as usize];
        let mut prompt = self.content.empty(entry.prompt_tokens);
        let mut missing = entry.prompt_tokens;
        for id in &entry.blocks {
            let len = missing.min(self.block_len);
            self.content.extend(&mut prompt, len, Seed::of(self.seed, Purpose::Block, *id));
            missing -= len;
        }
        // Where there are fewer hash ids than the length needs, the rest is shared with nobody.
        self.content.extend(&mut prompt, missing, Seed::of(self.seed, Purpose::Request, index));
        Session::single(prompt, entry.output_tokens)
    }
}

fn entry(line: &str, args: &TraceArgs) -> Result<Entry> {
    let Line { timestamp, input_length, output_length, hash_ids } = serde_json::from_str(line)?;
    ensure!(
        (0.0..=TIMESTAMP_MAX_MS).contains(&timestamp),
        "timestamp: {timestamp} is not in 0..={TIMESTAMP_MAX_MS}"
    );
    ensure!(input_length <= INPUT_MAX, "input_length: {input_length} is not in 0..={INPUT_MAX}");
    ensure!(
        output_length <= OUTPUT_MAX,
        "output_length: {output_length} is not in 0..={OUTPUT_MAX}"
    );
    let prompt_tokens = scale(input_length, args.length_scale);
    let output_tokens = scale(output_length, args.length_scale);
    Ok(Entry {
        at: Duration::from_secs_f64(timestamp / 1e3),
        prompt_tokens: prompt_tokens.min(args.prompt_tokens_max.unwrap_or(u32::MAX)) as usize,
        output_tokens: output_tokens.min(args.output_tokens_max.unwrap_or(u32::MAX)),
        blocks: hash_ids,
    })
}

/// A scaled length, at least 1. Lengths and scale are bounded, so it fits.
fn scale(len: u64, factor: f64) -> u32 {
    (len as f64 * factor).round().max(1.0) as u32
}

#[cfg(test)]
mod tests {
    use super::super::PromptInput;
    use super::*;

    fn args(length_scale: f64, speed: f64) -> TraceArgs {
        TraceArgs {
            trace: None,
            limit: 100,
            speed,
            length_scale,
            prompt_tokens_max: None,
            output_tokens_max: None,
        }
    }

    fn parse(lines: &str, args: &TraceArgs) -> Result<Trace> {
        Trace::parse(lines.as_bytes(), args, Content::tokens(100_000), 1)
    }

    fn prompts(trace: &Trace) -> Vec<Vec<u32>> {
        let prompt = |index| match trace.session(index).turns.remove(0).prompt {
            PromptInput::Tokens(ids) => ids,
            PromptInput::Text(text) => panic!("text: {text}"),
        };
        (0..trace.len()).map(prompt).collect()
    }

    const TRACE: &str = r#"{"timestamp": 1000, "input_length": 1300, "output_length": 64, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1500, "output_length": 3, "hash_ids": [0, 1, 9], "chat": "x"}

{"timestamp": 2500, "input_length": 700, "output_length": 500, "hash_ids": [0]}"#;

    #[test]
    fn equal_leading_ids_are_equal_prefixes() {
        let prompts = prompts(&parse(TRACE, &args(1.0 / 32.0, 1.0)).unwrap());
        let lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
        assert_eq!(lengths, [41, 22, 47]);
        assert_eq!(prompts[0][..32], prompts[2][..32]);
        assert_eq!(prompts[0][..16], prompts[1][..16]);
        assert_ne!(prompts[0][32..], prompts[2][32..41]);
        assert_ne!(prompts[0][16..22], prompts[1][16..22]);
    }

    #[test]
    fn times_begin_at_zero_and_are_divided_by_the_speed() {
        let times = parse(TRACE, &args(1.0, 10.0)).unwrap().times();
        assert_eq!(times, [0, 150, 200].map(Duration::from_millis));
    }

    #[test]
    fn lengths_scale_and_stay_at_least_one() {
        let trace = parse(TRACE, &args(1.0 / 32.0, 1.0)).unwrap();
        let outputs: Vec<u32> = trace.entries.iter().map(|entry| entry.output_tokens).collect();
        assert_eq!(outputs, [2, 16, 1]);
    }

    #[test]
    fn lengths_are_cut_where_asked() {
        let args = TraceArgs {
            prompt_tokens_max: Some(20),
            output_tokens_max: Some(4),
            ..args(0.03125, 1.0)
        };
        let trace = parse(TRACE, &args).unwrap();
        assert!(prompts(&trace).iter().all(|prompt| prompt.len() == 20));
        assert!(trace.entries.iter().all(|entry| entry.output_tokens <= 4));
    }

    #[test]
    fn the_limit_counts_requests() {
        assert_eq!(parse(TRACE, &TraceArgs { limit: 2, ..args(1.0, 1.0) }).unwrap().len(), 2);
    }

    #[test]
    fn a_bad_line_is_named() {
        let check = |lines: &str, expected: &[&str]| {
            let error = format!("{:#}", parse(lines, &args(1.0, 1.0)).unwrap_err());
            assert!(expected.iter().all(|part| error.contains(part)), "{error}");
        };
        let good = TRACE.lines().next().unwrap();
        check(&format!("{good}\nno json"), &["line 2"]);
        check(
            r#"{"timestamp":-1,"input_length":1,"output_length":1}"#,
            &["line 1", "timestamp: -1"],
        );
        check(
            r#"{"timestamp":1,"input_length":99999999999,"output_length":1}"#,
            &["input_length: 99999999999"],
        );
        check("\n", &["has no request"]);
    }
}
