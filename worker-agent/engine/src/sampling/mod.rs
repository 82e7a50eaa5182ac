//! Choosing the next token from logits.
//!
//! The order of the stages, and what each looks at, is that of vLLM's sampler: logprobs from the
//! raw logits; then the minimum length, the bias, the penalties, the form; then, unless greedy,
//! temperature, min-p, top-k, top-p, and a draw.

#[cfg(test)]
mod tests;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

use super::TokenLogprobs;
use super::compute::Draw;
use super::math::exp;
use stator_protos::worker::{LogitBias, Sampling};

/// A temperature below this is greedy. Source: vLLM's sampling epsilon.
const GREEDY_BELOW: f32 = 1e-5;

/// Memory that is reused from draw to draw; it carries nothing over.
#[derive(Debug, Default)]
pub struct Scratch {
    logits: Vec<f32>,
    weights: Vec<f32>,
    candidates: Vec<Candidate>,
    counts: FxHashMap<u32, Count>,
}

/// A token that may be drawn. Better ones come first, the lower id first among equals.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    token: u32,
    weight: f32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    in_answer: u32,
}

/// Chooses the next token: a function of the logits and the draw alone.
///
/// `logits` has one value per token of the vocabulary, at least one. Equal logits are decided for
/// the lowest token id where the choice is greedy.
pub fn sample(logits: &[f32], draw: &Draw<'_>, scratch: &mut Scratch) -> u32 {
    if let Some(token) = draw.forced {
        return token;
    }
    let sampling = draw.sampling;
    scratch.logits.clear();
    scratch.logits.extend_from_slice(logits);
    mask_endings(&mut scratch.logits, draw);
    for &LogitBias { token_id, bias } in &sampling.logit_bias {
        if let Some(logit) = scratch.logits.get_mut(token_id as usize) {
            *logit += bias;
        }
    }
    penalise(&mut scratch.logits, draw, &mut scratch.counts);
    if let Some(guide) = draw.guide {
        let mask = guide.mask();
        mask.apply(&mut scratch.logits, draw.eos_token_ids);
        // Where the form allows only what the least length or a bias forbids, the form counts.
        if maximum(&scratch.logits) == f32::NEG_INFINITY {
            return mask.first().or(draw.eos_token_ids.first().copied()).unwrap_or(0);
        }
    }
    if sampling.temperature < GREEDY_BELOW {
        return best(&scratch.logits);
    }
    weigh(&scratch.logits, sampling.temperature, &mut scratch.weights);
    let random = random(sampling.seed, draw.choice, draw.position());
    if sampling.top_k == 0 && sampling.top_p >= 1.0 && sampling.min_p <= 0.0 {
        let weights = scratch.weights.iter().copied();
        return pick(weights, random).unwrap_or_else(|| best(&scratch.logits) as usize) as u32;
    }
    truncate(&scratch.weights, sampling, &mut scratch.candidates);
    let weights = scratch.candidates.iter().map(|candidate| candidate.weight);
    match pick(weights, random) {
        Some(place) => scratch.candidates[place].token,
        None => best(&scratch.logits),
    }
}

/// The logprob of `token` and the `alternatives` most likely tokens, from raw logits.
pub fn logprobs(logits: &[f32], token: u32, alternatives: u32) -> TokenLogprobs {
    let max = maximum(logits);
    let sum: f64 = logits.iter().map(|logit| f64::from(exp::<false>(logit - max))).sum();
    let logprob = |logit: f32| (f64::from(logit - max) - sum.ln()) as f32;
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(logits.len().min(alternatives as usize) + 1);
    for (id, &logit) in logits.iter().enumerate() {
        let full = top.len() == alternatives as usize;
        if full && top.last().is_none_or(|&(_, least)| least >= logit) {
            continue;
        }
        let place = top.partition_point(|&(_, other)| other >= logit);
        top.insert(place, (id as u32, logit));
        top.truncate(alternatives as usize);
    }
    for (_, logit) in &mut top {
        *logit = logprob(*logit);
    }
    TokenLogprobs { token, logprob: logprob(logits[token as usize]), top }
}

/// Until the answer has its least length, nothing that would end it can be chosen.
fn mask_endings(logits: &mut [f32], draw: &Draw<'_>) {
    if draw.position() >= draw.sampling.min_tokens as usize {
        return;
    }
    for &token in draw.eos_token_ids.iter().chain(&draw.sampling.stop_token_ids) {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Repetition counts prompt and answer, presence and frequency the answer alone.
fn penalise(logits: &mut [f32], draw: &Draw<'_>, counts: &mut FxHashMap<u32, Count>) {
    let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = *draw.sampling;
    if repetition_penalty == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0 {
        return;
    }
    counts.clear();
    let (prompt, answer) = draw.tokens.split_at(draw.prompt);
    if repetition_penalty != 1.0 {
        counts.extend(prompt.iter().map(|&token| (token, Count::default())));
    }
    for &token in answer {
        counts.entry(token).or_default().in_answer += 1;
    }
    for (&token, count) in counts.iter() {
        let Some(logit) = logits.get_mut(token as usize) else { continue };
        *logit =
            if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
        *logit -= frequency_penalty * count.in_answer as f32;
        *logit -= presence_penalty * count.in_answer.min(1) as f32;
    }
}

/// The token with the highest logit, the lowest id among equals.
fn best(logits: &[f32]) -> u32 {
    let max = maximum(logits);
    logits.iter().position(|logit| *logit == max).unwrap_or(0) as u32
}

/// Probabilities up to a common factor: 1 for the most likely token.
fn weigh(logits: &[f32], temperature: f32, weights: &mut Vec<f32>) {
    let max = maximum(logits);
    weights.clear();
    weights.extend(logits.iter().map(|logit| exp::<false>((logit - max) / temperature)));
}

/// The greatest, side by side because a chain of comparisons would be slow; what is not a number
/// does not count.
fn maximum(logits: &[f32]) -> f32 {
    let mut greatest = [f32::NEG_INFINITY; 16];
    for logits in logits.chunks(16) {
        for (greatest, logit) in greatest.iter_mut().zip(logits) {
            *greatest = if *logit > *greatest { *logit } else { *greatest };
        }
    }
    greatest.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Keeps the candidates that min-p, top-k and top-p leave, best first, at least one.
fn truncate(weights: &[f32], sampling: &Sampling, candidates: &mut Vec<Candidate>) {
    let least = sampling.min_p.clamp(0.0, 1.0);
    let kept = weights.iter().enumerate().filter(|(_, weight)| **weight >= least);
    candidates.clear();
    candidates.extend(kept.map(|(token, &weight)| Candidate { token: token as u32, weight }));
    let limit = match sampling.top_k as usize {
        0 => candidates.len(),
        k => k.min(candidates.len()),
    };
    if sampling.top_p >= 1.0 {
        keep_best(candidates, limit);
        return;
    }
    // Few tokens usually make up the probability wanted, so ever more of them are sorted only
    // where they do not.
    let total = match limit == candidates.len() {
        true => sum(candidates),
        false => {
            keep_best(candidates, limit);
            sum(candidates)
        }
    };
    let wanted = f64::from(sampling.top_p) * total;
    let mut sorted = 256.min(limit);
    loop {
        sort_best(candidates, sorted);
        let mut reached = 0.0;
        let enough = candidates[..sorted].iter().position(|candidate| {
            reached += f64::from(candidate.weight);
            reached >= wanted
        });
        match enough {
            Some(place) => return candidates.truncate(place + 1),
            None if sorted == limit => return,
            None => sorted = (sorted * 8).min(limit),
        }
    }
}

fn sum(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.weight)).sum()
}

/// Keeps the `count` best, sorted.
fn keep_best(candidates: &mut Vec<Candidate>, count: usize) {
    sort_best(candidates, count);
    candidates.truncate(count);
}

/// Brings the `count` best to the front, sorted.
fn sort_best(candidates: &mut [Candidate], count: usize) {
    let order =
        |a: &Candidate, b: &Candidate| b.weight.total_cmp(&a.weight).then(a.token.cmp(&b.token));
    if count > 0 && count < candidates.len() {
        candidates.select_nth_unstable_by(count - 1, order);
    }
    candidates[..count].sort_unstable_by(order);
}

/// The place where the running sum of `weights` passes this share of the whole, [0, 1).
fn pick(weights: impl Iterator<Item = f32> + Clone, share: f64) -> Option<usize> {
    let total: f64 = weights.clone().map(f64::from).sum();
    let mut left = share * total;
    let mut last = None;
    for (place, weight) in weights.enumerate() {
        if weight > 0.0 {
            last = Some(place);
            left -= f64::from(weight);
            if left < 0.0 {
                return last;
            }
        }
    }
    // Rounding may leave a little over: it belongs to the last that can be drawn.
    last
}

/// A number in [0, 1) for one place in one answer: counted to, not drawn in turn, so that it does
/// not matter what was drawn before it, where, or by which process.
fn random(seed: u64, choice: u32, position: usize) -> f64 {
    /// 32-bit words of the stream that each position owns.
    const WORDS: u128 = 2;
    let mut stream = ChaCha8Rng::seed_from_u64(seed);
    stream.set_stream(u64::from(choice));
    stream.set_word_pos(position as u128 * WORDS);
    (stream.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}
