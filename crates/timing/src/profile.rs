//! Profile of an engine: times that were measured on it, and the roofline that fits them best.

use crate::Timing;
use serde::{Deserialize, Serialize};

/// Version of the file's form.
pub const PROFILE_VERSION: u32 = 1;

/// Times of an engine on its hardware, as `stator bench --profile` writes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineProfile {
    /// Version of the file's form: [`PROFILE_VERSION`].
    pub version: u32,
    /// The model.
    pub model: String,
    /// GPUs of the worker, all of which share every layer.
    pub gpus: u32,
    /// Tokens that the engine computes in one step, at most.
    pub step_tokens: u32,
    /// First tokens of prompts that came alone.
    pub prefill: Vec<PrefillTime>,
    /// Steps of sequences that decode together.
    pub decode: Vec<DecodeTime>,
    /// The roofline.
    pub timing: Timing,
    /// Time of a request outside of steps, seconds: the network, the server, the tokenizer.
    pub overhead_s: f64,
    /// Mean of the roofline's errors, as shares of the measured times.
    pub mean_error: f64,
    /// The largest of these errors.
    pub max_error: f64,
}

/// Time to the first token of a prompt that came alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillTime {
    /// Tokens of the prompt, none of them reused.
    pub tokens: f64,
    /// Median time, seconds.
    pub seconds: f64,
}

/// Time of a step of sequences that decode together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeTime {
    /// Sequences.
    pub sequences: f64,
    /// Mean length of a sequence in tokens.
    pub context: f64,
    /// Mean time of a step, seconds.
    pub seconds: f64,
}

/// Too few different measurements for a roofline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{prefill} prompts and {decode} batches are too few for a roofline: at least two lengths of each, and two batches"
)]
pub struct TooFewTimes {
    /// Measured prompts.
    pub prefill: usize,
    /// Measured batches.
    pub decode: usize,
}

/// Coefficients: a step, a token, a pair of prompt tokens, a token of KV, a request.
const TERMS: usize = 5;

impl EngineProfile {
    /// The profile of these measurements.
    ///
    /// # Errors
    ///
    /// [`TooFewTimes`]: measurements do not tell a step from a token.
    pub fn fit(
        model: String,
        gpus: u32,
        step_tokens: u32,
        prefill: Vec<PrefillTime>,
        decode: Vec<DecodeTime>,
    ) -> Result<Self, TooFewTimes> {
        let few = TooFewTimes { prefill: prefill.len(), decode: decode.len() };
        if differ(prefill.iter().map(|time| time.tokens)) < 2
            || differ(decode.iter().map(|time| time.context)) < 2
            || differ(decode.iter().map(|time| time.sequences)) < 2
        {
            return Err(few);
        }
        let prompts = prefill.iter().map(|time| (time.terms(step_tokens), time.seconds));
        let steps = decode.iter().map(|time| (time.terms(), time.seconds));
        let rows: Vec<_> = prompts.chain(steps).collect();
        let found = fit_shares(&rows).ok_or(few)?;
        let errors: Vec<f64> = rows
            .iter()
            .map(|(terms, seconds)| (dot(terms, &found) / seconds - 1.0).abs())
            .collect();
        let [step_s, token_s, prefill_pair_s, decode_kv_token_s, overhead_s] = found;
        Ok(Self {
            version: PROFILE_VERSION,
            model,
            gpus,
            step_tokens,
            prefill,
            decode,
            timing: Timing { step_s, token_s, prefill_pair_s, decode_kv_token_s },
            overhead_s,
            mean_error: errors.iter().sum::<f64>() / errors.len() as f64,
            max_error: errors.iter().fold(0.0, |most: f64, error| most.max(*error)),
        })
    }

    /// The profile of a text in JSON.
    ///
    /// # Errors
    ///
    /// The field, its value and what it may be.
    pub fn parse(text: &str) -> Result<Self, String> {
        let profile: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if profile.version != PROFILE_VERSION {
            return Err(format!("version: {} is not {PROFILE_VERSION}", profile.version));
        }
        if !(1..=4_096).contains(&profile.gpus) {
            return Err(format!("gpus: {} is not in 1..=4096", profile.gpus));
        }
        profile.timing.check().map_err(|fault| format!("timing.{fault}"))?;
        Ok(profile)
    }
}

impl PrefillTime {
    fn terms(&self, step_tokens: u32) -> [f64; TERMS] {
        let Self { tokens, .. } = *self;
        let steps = (tokens / f64::from(step_tokens)).ceil().max(1.0);
        [steps, tokens, tokens * (tokens + 1.0) / 2.0, 0.0, 1.0]
    }
}

impl DecodeTime {
    fn terms(&self) -> [f64; TERMS] {
        [1.0, self.sequences, 0.0, self.sequences * self.context, 0.0]
    }
}

/// Different values among these.
fn differ(values: impl Iterator<Item = f64>) -> usize {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values.len()
}

fn dot(terms: &[f64; TERMS], found: &[f64; TERMS]) -> f64 {
    terms.iter().zip(found).map(|(term, factor)| term * factor).sum()
}

/// Coefficients with the least squares of relative errors, none of them negative: the most
/// negative one goes until there is none.
fn fit_shares(rows: &[([f64; TERMS], f64)]) -> Option<[f64; TERMS]> {
    let mut used = vec![0, 1, 2, 3, 4];
    while !used.is_empty() {
        let found = solve(rows, &used)?;
        let least = found.iter().zip(&used).min_by(|a, b| a.0.total_cmp(b.0));
        match least {
            Some((value, term)) if *value < 0.0 => {
                let term = *term;
                used.retain(|of| *of != term);
            }
            _ => {
                let mut all = [0.0; TERMS];
                used.iter().zip(found).for_each(|(term, value)| all[*term] = value);
                return Some(all);
            }
        }
    }
    None
}

/// Least squares over these terms, by the normal equations.
fn solve(rows: &[([f64; TERMS], f64)], used: &[usize]) -> Option<Vec<f64>> {
    let count = used.len();
    // Terms differ by nine orders of magnitude: each is measured by its own largest value.
    let scale: Vec<f64> = used
        .iter()
        .map(|term| {
            rows.iter().map(|(terms, seconds)| terms[*term] / seconds).fold(1e-30, f64::max)
        })
        .collect();
    let mut matrix = vec![vec![0.0; count + 1]; count];
    for (terms, seconds) in rows {
        let row: Vec<f64> =
            used.iter().zip(&scale).map(|(term, scale)| terms[*term] / seconds / scale).collect();
        for (line, one) in matrix.iter_mut().zip(&row) {
            for (cell, other) in line.iter_mut().zip(row.iter().chain([&1.0])) {
                *cell += one * other;
            }
        }
    }
    for at in 0..count {
        let pivot =
            (at..count).max_by(|a, b| matrix[*a][at].abs().total_cmp(&matrix[*b][at].abs()))?;
        matrix.swap(at, pivot);
        let lead = matrix[at].clone();
        if lead[at].abs() < 1e-12 {
            return None;
        }
        for line in matrix.iter_mut().skip(at + 1) {
            let factor = line[at] / lead[at];
            line.iter_mut().zip(&lead).for_each(|(cell, of_lead)| *cell -= factor * of_lead);
        }
    }
    let mut found = vec![0.0; count];
    for at in (0..count).rev() {
        let known: f64 = (at + 1..count).map(|other| matrix[at][other] * found[other]).sum();
        found[at] = (matrix[at][count] - known) / matrix[at][at];
    }
    Some(found.iter().zip(&scale).map(|(value, scale)| value / scale).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of a known engine, each wrong by up to `error`.
    fn times(timing: &Timing, error: f64) -> (Vec<PrefillTime>, Vec<DecodeTime>) {
        let wrong = |at: usize| 1.0 + error * [1.0, -1.0, 0.5, -0.5][at % 4];
        let prompts = [64, 256, 1_024, 4_096, 16_384].iter().enumerate().map(|(at, tokens)| {
            let chunks = (0..*tokens).step_by(8_192).map(|from| from..(from + 8_192).min(*tokens));
            let seconds: f64 = chunks.map(|chunk| timing.step([chunk]).as_secs_f64()).sum();
            PrefillTime { tokens: *tokens as f64, seconds: (seconds + 0.002) * wrong(at) }
        });
        let grid = [1, 4, 16, 64].iter().flat_map(|batch| [128, 1_024, 4_096].map(|c| (*batch, c)));
        let batches = grid.enumerate().map(|(at, (batch, context))| {
            let step = timing.step(vec![context - 1..context; batch]);
            DecodeTime {
                sequences: batch as f64,
                context: context as f64,
                seconds: step.as_secs_f64() * wrong(at),
            }
        });
        (prompts.collect(), batches.collect())
    }

    #[test]
    fn a_known_engine_is_found_again() {
        for preset in crate::PRESETS {
            let timing = preset.timing();
            for (error, within) in [(0.0, 0.01), (0.02, 0.15)] {
                let (prefill, decode) = times(&timing, error);
                let found = EngineProfile::fit("m".to_owned(), 1, 8_192, prefill, decode);
                let found = found.expect("enough times");
                assert!(found.max_error <= 2.5 * error + 1e-3, "{found:?}");
                let pairs = [
                    (found.timing.step_s, timing.step_s),
                    (found.timing.token_s, timing.token_s),
                    (found.timing.decode_kv_token_s, timing.decode_kv_token_s),
                ];
                for (found, known) in pairs {
                    assert!((found / known - 1.0).abs() <= within, "{found} is not {known}");
                }
            }
        }
    }

    #[test]
    fn one_length_is_too_little() {
        let (prefill, decode) = times(&crate::PRESETS[0].timing(), 0.0);
        let found = EngineProfile::fit("m".to_owned(), 1, 8_192, prefill[..1].to_vec(), decode);
        assert_eq!(found, Err(TooFewTimes { prefill: 1, decode: 12 }));
    }

    #[test]
    fn a_file_is_read_back_and_a_wrong_one_names_its_field() {
        let (prefill, decode) = times(&crate::PRESETS[0].timing(), 0.0);
        let found = EngineProfile::fit("m".to_owned(), 2, 8_192, prefill, decode);
        let found = found.expect("enough times");
        let text = serde_json::to_string(&found).expect("numbers and texts");
        let read = EngineProfile::parse(&text).expect("it is what was written");
        assert_eq!((&read.model, read.gpus, read.step_tokens), (&found.model, 2, 8_192));
        assert_eq!(read.decode.len(), found.decode.len());
        // The reader of JSON may miss the last bit of a number.
        let close = |one: f64, other: f64| (one - other).abs() <= 1e-12 * other.abs();
        assert!(
            close(read.timing.step_s, found.timing.step_s)
                && close(read.overhead_s, found.overhead_s)
        );
        for (read, found) in read.prefill.iter().zip(&found.prefill) {
            assert!(close(read.tokens, found.tokens) && close(read.seconds, found.seconds));
        }
        for (from, to, part) in [
            ("\"version\":1", "\"version\":9", "version: 9 is not 1"),
            ("\"gpus\":2", "\"gpus\":0", "gpus: 0 is not in"),
            ("\"step_s\":", "\"step_s\":-", "timing.step_s: -"),
        ] {
            let fault = EngineProfile::parse(&text.replacen(from, to, 1)).expect_err(part);
            assert!(fault.contains(part), "{fault}");
        }
    }
}
