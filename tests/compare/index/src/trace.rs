//! What was asked: prompts as chains of prefix ids, 512 tokens an id, from a file or made up.
//!
//! Source: the trace format of kvcache-ai/Mooncake, FAST25-release. Equal ids mean equal prefixes.

use crate::random::Random;
use anyhow::{Context as _, ensure};
use serde::Deserialize;
use std::path::Path;

/// Tokens that an id stands for.
pub const TOKENS_PER_ID: usize = 512;

/// One request of a trace.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Prompt {
    /// When it came, in milliseconds from the start of the trace.
    #[serde(rename = "timestamp")]
    pub at_ms: f64,
    /// Ids of its prefixes, shortest first. The last one counts as full.
    #[serde(rename = "hash_ids")]
    pub ids: Vec<u64>,
}

/// Reads a trace, and spreads the requests of one time stamp over the time to the next one: the
/// file's stamps are three seconds apart.
///
/// # Errors
///
/// The file cannot be read, a line is not a request, or there is none.
pub fn read(path: &Path) -> anyhow::Result<Vec<Prompt>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parsed = lines.map(|(number, line)| {
        serde_json::from_str(line).with_context(|| format!("line {}", number + 1))
    });
    let mut prompts = parsed.collect::<anyhow::Result<Vec<Prompt>>>()?;
    ensure!(!prompts.is_empty(), "{} has no requests", path.display());
    prompts.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    spread(&mut prompts);
    Ok(prompts)
}

/// Gives each request of a time stamp its own time, evenly up to the next stamp.
fn spread(prompts: &mut [Prompt]) {
    let mut start = 0;
    while start < prompts.len() {
        let at_ms = prompts[start].at_ms;
        let len = prompts[start..].iter().take_while(|p| p.at_ms == at_ms).count();
        let next_ms = prompts.get(start + len).map_or(at_ms, |p| p.at_ms);
        for (i, prompt) in prompts[start..start + len].iter_mut().enumerate() {
            prompt.at_ms += (next_ms - at_ms) * i as f64 / len as f64;
        }
        start += len;
    }
}

/// Conversations shaped like Mooncake's: 12,000 requests, a first block that all have in common,
/// 24 ids on average with a long tail, about 37 % of them seen before.
pub fn synthesise(seed: u64) -> Vec<Prompt> {
    let mut random = Random::new(seed);
    let mut conversations: Vec<Vec<u64>> = Vec::new();
    let mut fresh = 1..;
    let mut prompts = Vec::new();
    for number in 0..12_000 {
        let is_new = conversations.is_empty() || random.unit() < 0.62;
        let position = match is_new {
            true => conversations.len(),
            // Among the latest, because people answer soon or not at all.
            false => conversations.len() - 1 - random.below(conversations.len().min(400)),
        };
        if is_new {
            conversations.push(vec![0]);
        }
        let median = if is_new { 10.0 } else { 4.0 };
        let more = random.log_normal(median, 1.05).clamp(1.0, 250.0) as usize;
        let ids = &mut conversations[position];
        ids.extend(fresh.by_ref().take(more));
        prompts.push(Prompt { at_ms: f64::from(number) * 295.0, ids: ids.clone() });
    }
    prompts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn one_stamp_is_spread_up_to_the_next() {
        let prompt = |at_ms| Prompt { at_ms, ids: vec![0] };
        let mut prompts = [0.0, 0.0, 0.0, 3_000.0].map(prompt);
        spread(&mut prompts);
        assert_eq!(prompts.map(|p| p.at_ms), [0.0, 1_000.0, 2_000.0, 3_000.0]);
    }

    #[test]
    fn made_up_prompts_are_shaped_like_the_trace() {
        let prompts = synthesise(1);
        let ids: usize = prompts.iter().map(|p| p.ids.len()).sum();
        let distinct: HashSet<u64> = prompts.iter().flat_map(|p| p.ids.iter().copied()).collect();
        let mean = ids as f64 / prompts.len() as f64;
        assert!((20.0..30.0).contains(&mean), "mean of {mean} ids");
        let reused = 1.0 - distinct.len() as f64 / ids as f64;
        assert!((0.30..0.45).contains(&reused), "{reused} reused");
    }
}
