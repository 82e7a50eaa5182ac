//! The workload: requests with their times, lengths and shared prefixes.

mod azure;
mod fixed;
mod mix;
mod mooncake;
mod read;
#[cfg(test)]
mod tests;

pub use fixed::FixedWorkload;
pub use mix::{Mix, SyntheticWorkload};
pub use read::WorkloadError;
pub(crate) use read::parse;

use crate::engine::block::BlockId;
use crate::time::Ps;

/// Tokens of one block of a Mooncake trace.
pub const TRACE_BLOCK: u32 = 512;

/// Arrival time of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalTime {
    /// At this moment.
    At(Ps),
    /// So long after the one before it in its session has ended.
    After(Ps),
}

/// Class of a request, which decides its place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Somebody waits for it.
    Interactive,
    /// Background work fills the gaps.
    Background,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadRequest {
    /// Its arrival.
    pub arrival: ArrivalTime,
    /// Tokens of its prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of its answer, at least 1.
    pub output_tokens: u32,
    /// Its class.
    pub class: Class,
    /// The tenant that sent it.
    pub tenant: u32,
    /// The LoRA adapter that it is for.
    pub adapter: Option<u32>,
    /// The first request of its session.
    pub session: u32,
    /// The next request of its session.
    pub next: Option<u32>,
    /// Its runs of blocks, a range of [`Workload::runs`].
    runs: (u32, u32),
}

/// Blocks with consecutive identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: BlockId,
    blocks: u32,
}

/// All requests of one simulation. Memory: about 50 bytes a request, whatever its length, as long
/// as its blocks are numbered in a row.
#[derive(Debug)]
pub struct Workload {
    /// The requests, each known by its place.
    pub requests: Vec<WorkloadRequest>,
    runs: Vec<Run>,
    block_size: u32,
}

/// Settings for the replay of a recorded trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replay {
    /// Requests arrive so many times as fast.
    pub speed: f64,
    /// The trace is played so often, one after the other, each time with other prompts.
    pub repeat: u32,
    /// Most requests, over all repetitions.
    pub limit: u32,
}

impl Workload {
    /// A workload without requests; `block_size` is that of the fleet.
    pub fn new(block_size: u32) -> Self {
        Self { requests: Vec::new(), runs: Vec::new(), block_size }
    }

    /// Identities of a request's leading blocks: those of its prompt, and of its answer where a
    /// later request may reuse them.
    pub(crate) fn blocks(&self, request: u32, out: &mut Vec<BlockId>) {
        out.clear();
        let (first, end) = self.requests[request as usize].runs;
        for run in &self.runs[first as usize..end as usize] {
            out.extend(run.first..run.first + run.blocks);
        }
    }

    /// Adds a request on its own whose leading blocks are these.
    pub fn push(
        &mut self,
        mut request: WorkloadRequest,
        blocks: impl IntoIterator<Item = BlockId>,
    ) {
        let first = self.runs.len() as u32;
        for id in blocks {
            match self.runs[first as usize..].last_mut() {
                Some(run) if run.first + run.blocks == id => run.blocks += 1,
                _ => self.runs.push(Run { first: id, blocks: 1 }),
            }
        }
        request.runs = (first, self.runs.len() as u32);
        request.session = self.requests.len() as u32;
        self.requests.push(request);
    }

    /// Adds a request of a session whose leading blocks are those of these runs.
    fn push_runs(&mut self, mut request: WorkloadRequest, runs: &[Run]) {
        let first = self.runs.len() as u32;
        self.runs.extend(runs.iter().filter(|run| run.blocks > 0));
        request.runs = (first, self.runs.len() as u32);
        self.requests.push(request);
    }
}

impl WorkloadRequest {
    /// An interactive request on its own, without blocks yet.
    pub fn new(arrival: ArrivalTime, prompt_tokens: u32, output_tokens: u32) -> Self {
        Self {
            arrival,
            prompt_tokens,
            output_tokens,
            class: Class::Interactive,
            tenant: 0,
            adapter: None,
            session: 0,
            next: None,
            runs: (0, 0),
        }
    }
}
