//! Azure's LLM inference traces: arrivals and lengths, and nothing about prefixes.
//!
//! Source: Patel et al., "Splitwise", ISCA 2024; CSV with the columns `TIMESTAMP`,
//! `ContextTokens` and `GeneratedTokens`.

use super::{ArrivalTime, Replay, Workload, WorkloadRequest};
use crate::time::SECOND;

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// Whether a file is one of these traces.
pub(super) fn is_azure(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.trim() == HEADER)
}

/// Reads all lines; a fault comes with the number of its line.
pub(super) fn read(text: &str, block_size: u32, play: Replay) -> Result<Workload, (usize, String)> {
    let mut rows = Vec::new();
    for (number, line) in (1..).zip(text.lines()).skip(1) {
        if line.trim().is_empty() {
            continue;
        }
        rows.push(row(line).map_err(|fault| (number, fault))?);
    }
    rows.sort_by(|one: &(f64, u32, u32), other| one.0.total_cmp(&other.0));
    let mut workload = Workload::new(block_size);
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(workload) };
    // A second more than the trace, so that one round does not end in the next.
    let (start, period) = (first.0, last.0 - first.0 + 1.0);
    let mut next_block = 0;
    for round in 0..play.repeat {
        for &(at, prompt, output) in &rows {
            if workload.requests.len() >= play.limit as usize {
                return Ok(workload);
            }
            let at = (at - start + period * f64::from(round)) / play.speed;
            let request =
                WorkloadRequest::new(ArrivalTime::At((at * SECOND as f64) as u64), prompt, output);
            let blocks = prompt / block_size;
            workload.push(request, next_block..next_block + blocks);
            next_block += blocks;
        }
    }
    Ok(workload)
}

/// Seconds since some midnight, and the lengths.
fn row(line: &str) -> Result<(f64, u32, u32), String> {
    let fields: Vec<&str> = line.trim().split(',').collect();
    let [time, prompt, output] = fields[..] else {
        return Err(format!("has {} columns, not 3", fields.len()));
    };
    let tokens = |name: &str, text: &str| match text.parse::<u32>() {
        Ok(tokens) if tokens <= 10_000_000 => Ok(tokens.max(1)),
        _ => Err(format!("{name}: {text:?} is not in 0..=10000000")),
    };
    let at = seconds(time).ok_or_else(|| format!("TIMESTAMP: {time:?} is no time"))?;
    Ok((at, tokens("ContextTokens", prompt)?, tokens("GeneratedTokens", output)?))
}

/// `2023-11-16 18:17:03.9799600` in seconds; days of a month count, months do not.
fn seconds(time: &str) -> Option<f64> {
    let (date, clock) = time.split_once(' ')?;
    let day: f64 = date.rsplit('-').next()?.parse().ok()?;
    let mut parts = clock.trim_end_matches("+00:00").splitn(3, ':');
    let mut next = || parts.next()?.parse::<f64>().ok();
    let (hours, minutes, seconds) = (next()?, next()?, next()?);
    let all = ((day * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds;
    all.is_finite().then_some(all)
}
