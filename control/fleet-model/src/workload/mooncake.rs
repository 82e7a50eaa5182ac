//! Mooncake's traces.
//!
//! Source: Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025, and the
//! traces published with it: a JSON object a line, `timestamp` in milliseconds, lengths in tokens,
//! one hash id for each 512 tokens of the prompt, which stands for the block and all before it.

use super::{ArrivalTime, Replay, TRACE_BLOCK, Workload, WorkloadRequest};
use crate::time::MS;
use rustc_hash::FxHashMap;
use serde::Deserialize;

const LENGTH_MAX: u32 = 10_000_000;
/// A year.
const TIMESTAMP_MAX_MS: f64 = 366.0 * 86_400_000.0;

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// Reads all lines; a fault comes with the number of its line.
///
/// A block of the trace becomes `512 / block_size` blocks, which must be a whole number; the
/// incomplete ones at the end of a prompt have no identity.
pub(super) fn read(text: &str, block_size: u32, play: Replay) -> Result<Workload, (usize, String)> {
    let mut lines = Vec::new();
    // Ids may be anything; here they are numbered in the order in which they come.
    let mut numbers: FxHashMap<u64, u32> = FxHashMap::default();
    for (number, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        if lines.len() >= play.limit as usize {
            break;
        }
        let mut line = parse(text).map_err(|fault| (number, fault))?;
        for id in &mut line.hash_ids {
            let next = numbers.len() as u32;
            *id = u64::from(*numbers.entry(*id).or_insert(next));
        }
        lines.push(line);
    }
    // Lines may be slightly out of order.
    lines.sort_by(|one, other| one.timestamp.total_cmp(&other.timestamp));
    Ok(repeated(&lines, numbers.len() as u32, block_size, play))
}

fn parse(text: &str) -> Result<Line, String> {
    let line: Line = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if !(0.0..=TIMESTAMP_MAX_MS).contains(&line.timestamp) {
        return Err(format!("timestamp: {} is not in 0..={TIMESTAMP_MAX_MS}", line.timestamp));
    }
    for (name, value) in [("input", line.input_length), ("output", line.output_length)] {
        if value > LENGTH_MAX {
            return Err(format!("{name}_length: {value} is not in 0..={LENGTH_MAX}"));
        }
    }
    Ok(line)
}

fn repeated(lines: &[Line], ids: u32, block_size: u32, play: Replay) -> Workload {
    let mut workload = Workload::new(block_size);
    let split = TRACE_BLOCK / block_size;
    let (Some(first), Some(last)) = (lines.first(), lines.last()) else { return workload };
    let period = last.timestamp - first.timestamp + 1_000.0;
    for round in 0..play.repeat {
        for line in lines {
            if workload.requests.len() >= play.limit as usize {
                return workload;
            }
            let at = line.timestamp - first.timestamp + period * f64::from(round);
            let at = ArrivalTime::At((at / play.speed * MS as f64) as u64);
            let prompt = line.input_length.max(1);
            let whole = (prompt / block_size) as usize;
            let blocks = line.hash_ids.iter().flat_map(|id| {
                let start = (*id as u32 + round * ids) * split;
                start..start + split
            });
            let request = WorkloadRequest::new(at, prompt, line.output_length.max(1));
            workload.push(request, blocks.take(whole));
        }
    }
    workload
}
