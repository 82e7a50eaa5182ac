//! Policies, which decide where a request runs: the real placement core, and its competitors.

mod adapters;
mod approximate;
mod kind;
mod llm_d;
mod pair;
mod placement;
mod prefix_hash;
#[cfg(test)]
mod tests;

pub use kind::PolicyKind;

use crate::time::Ps;
use stator_placement::{BusyThresholds, PeerLoad, Role, SessionSettings, Split};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::load::Load;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

/// A worker by its number, from 0.
pub type WorkerNumber = u32;

/// A request's place with a policy, until it ends.
pub(crate) type PolicyTicket = u64;

/// Request as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PickQuery<'a> {
    /// Hashes of the prompt's complete blocks.
    pub(crate) sequence: &'a [SequenceHash],
    pub(crate) prompt_tokens: u32,
    /// The adapter that it is for: only workers that have it loaded may take it.
    pub(crate) adapter: Option<u32>,
    /// The session that it belongs to, by its first request.
    pub(crate) session: u32,
    /// For ties.
    pub(crate) seed: u64,
}

/// Placement of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The worker that answers.
    pub(crate) worker: WorkerNumber,
    pub(crate) ticket: PolicyTicket,
    /// Another one that computes the prompt first, and the request's place there.
    pub(crate) prefill: Option<(WorkerNumber, PolicyTicket)>,
    /// A worker that lends it leading blocks of the prompt, and their number.
    pub(crate) holder: Option<(WorkerNumber, u32)>,
}

/// Description of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) role: Role,
    /// The machine that it stands in.
    pub(crate) host: u32,
    pub(crate) total_blocks: u32,
    /// Tokens that it computes in one step at most.
    pub(crate) step_tokens: u32,
    /// Adapters that it has loaded.
    pub(crate) adapters: Vec<u32>,
    /// Whether it lends what its tiers hold, and fetches from others.
    pub(crate) lends: bool,
}

/// Settings common to all policies of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Common {
    pub(crate) block_size: NonZeroU32,
    /// Whether the fleet has prefill workers.
    pub(crate) paired: bool,
    /// Rule for using prefill workers, for this project's placement; `None` leaves it to the
    /// policy.
    pub(crate) split: Option<Split>,
    /// Binding of sessions to workers, for this project's placement.
    pub(crate) sessions: Option<SessionSettings>,
    /// Load from which on a worker counts as busy, for policies that consider it.
    pub(crate) busy: BusyThresholds,
}

/// Why no worker was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPick {
    /// None takes requests.
    NoWorkers,
    /// Each has enough to do.
    Busy,
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestProgress {
    /// Its first token came.
    First,
    /// Number of further tokens that came.
    Tokens(u32),
    /// The request is over.
    End,
}

/// News about a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkerNews<'a> {
    /// The worker is up, in this life.
    Up { generation: u64, member: &'a Member },
    /// The worker finishes what it has and takes nothing new.
    Draining { generation: u64, member: &'a Member },
    /// The worker is gone.
    Down,
    /// Load that the worker reported.
    Load { generation: u64, load: &'a Load },
    /// Changes of the worker's KV.
    Events { generation: u64, events: &'a [KvEvent] },
    /// Changes were lost.
    Unknown,
    /// All its KV.
    Snapshot { generation: u64, blocks: &'a [(SequenceHash, Medium)] },
    /// Number of blocks that came from another worker, and the time they took.
    Transferred { from: WorkerNumber, blocks: u32, took: Ps },
    /// Load that all other edges report in flight at the worker.
    Others { load: PeerLoad },
}

/// A way to choose workers. Time never goes back from call to call.
pub(crate) trait Policy {
    /// Follows what is heard of a worker.
    fn hear(&mut self, worker: WorkerNumber, news: WorkerNews<'_>, now: Ps);
    /// Chooses a worker, and counts the request there until it ends.
    fn pick(&mut self, query: &PickQuery<'_>, now: Ps) -> Result<Choice, NoPick>;
    /// Follows a request.
    fn progress(&mut self, ticket: PolicyTicket, progress: RequestProgress, now: Ps);
    /// Requests that have not ended: at least, and with those of which nothing was heard for too
    /// long.
    fn in_flight(&self) -> RangeInclusive<usize>;
    /// Load in flight at a worker, to tell other edges; nothing from a policy that tells nothing.
    fn booked(&self, _: WorkerNumber, _: Ps) -> PeerLoad {
        PeerLoad::default()
    }
}
