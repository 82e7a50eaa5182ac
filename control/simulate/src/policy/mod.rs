//! Who decides where a request runs: the real placement core, and what it is compared with.

mod approximate;
mod llm_d;
mod loaded;
mod pair;
mod placed;
mod prefix_hash;
#[cfg(test)]
mod tests;

use crate::engine::pool::BlockId;
use crate::time::Ps;
use stator_placement::{
    BusyThresholds, CostModel, Mode, PeerLoad, Role, SessionSettings, Settings, Split,
};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::load::Load;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

/// A worker by its number, from 0.
pub(crate) type WorkerNumber = u32;

/// A request's place with a policy, until it ends.
pub(crate) type Ticket = u64;

/// What a policy is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
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

/// What it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The worker that answers.
    pub(crate) worker: WorkerNumber,
    pub(crate) ticket: Ticket,
    /// Another one that computes the prompt first, and the request's place there.
    pub(crate) prefill: Option<(WorkerNumber, Ticket)>,
}

/// What a worker is.
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
}

/// What all policies of a run have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Common {
    pub(crate) block_size: NonZeroU32,
    /// Whether there are workers for prompts.
    pub(crate) paired: bool,
    /// When they are used, where it is not left to the policy; for this project's placement.
    pub(crate) split: Option<Split>,
    /// How sessions are bound to workers, by this project's placement.
    pub(crate) sessions: Option<SessionSettings>,
    /// When a worker is busy, for those policies that look at it.
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

/// How a request goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Its first token came.
    First,
    /// So many more came.
    Tokens(u32),
    /// It is over.
    End,
}

/// What is heard of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News<'a> {
    /// It is there, in this life.
    Up { generation: u64, member: &'a Member },
    /// It is gone.
    Down,
    /// How busy it was.
    Load { generation: u64, load: Load },
    /// Changes of its KV.
    Events { generation: u64, events: &'a [KvEvent] },
    /// Changes were lost.
    Unknown,
    /// All its KV.
    Snapshot { generation: u64, blocks: &'a [(BlockId, Medium)] },
    /// So many blocks came to it from another worker in so long a time.
    Transferred { from: WorkerNumber, blocks: u32, took: Ps },
    /// What all other edges say that they have in flight there.
    Others { load: PeerLoad },
}

/// A way to choose workers. Time never goes back from call to call.
pub(crate) trait Policy {
    /// Follows what is heard of a worker.
    fn hear(&mut self, worker: WorkerNumber, news: News<'_>, now: Ps);
    /// Chooses a worker, and counts the request there until it ends.
    fn pick(&mut self, ask: &Ask<'_>, now: Ps) -> Result<Choice, NoPick>;
    /// Follows a request.
    fn progress(&mut self, ticket: Ticket, progress: Progress, now: Ps);
    /// Requests that have not ended: at least, and with those of which nothing was heard for too
    /// long.
    fn in_flight(&self) -> RangeInclusive<usize>;
    /// What it has in flight at a worker, for other edges; nothing if it tells them nothing.
    fn booked(&self, _: WorkerNumber, _: Ps) -> PeerLoad {
        PeerLoad::default()
    }
}

/// The policies that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Each worker in turn.
    RoundRobin,
    /// Any worker.
    Random,
    /// The worker with the fewest requests in flight.
    LeastLoaded,
    /// The less loaded of two at random.
    PowerOfTwo,
    /// SGLang's cache-aware router: the longest prefix that was sent before, unless loads differ.
    PrefixHash,
    /// llm-d's default profile: queue 2, KV utilisation 2, approximate prefix 3.
    LlmD,
    /// Dynamo's cost in blocks with its default weights, on this project's index.
    Dynamo,
    /// This project's placement with its default settings.
    Stator,
}

impl Kind {
    /// Its name on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
            Self::LeastLoaded => "least-loaded",
            Self::PowerOfTwo => "power-of-two",
            Self::PrefixHash => "prefix-hash",
            Self::LlmD => "llm-d",
            Self::Dynamo => "dynamo",
            Self::Stator => "stator",
        }
    }

    /// A policy without workers.
    pub(crate) fn build(self, common: &Common) -> Box<dyn Policy> {
        let Common { block_size, busy, split, sessions, .. } = *common;
        let defaults = Settings { block_size, busy, sessions, ..Settings::default() };
        // What has no opinion of its own splits whenever it can.
        let mode = |mode| Settings { mode, split: Split::Always, ..defaults.clone() };
        let settings = match self {
            Self::RoundRobin => mode(Mode::RoundRobin),
            Self::Random => mode(Mode::Random),
            Self::LeastLoaded => mode(Mode::LeastLoaded),
            Self::PowerOfTwo => mode(Mode::PowerOfTwo),
            Self::Dynamo => Settings { cost: CostModel::Blocks, ..mode(Mode::Kv) },
            Self::Stator => defaults,
            Self::PrefixHash => {
                return paired(common, || Box::new(prefix_hash::PrefixHash::new(block_size)));
            }
            Self::LlmD => return paired(common, || Box::new(llm_d::LlmD::new(block_size))),
        };
        let split = split.unwrap_or(settings.split);
        Box::new(placed::Placed::new(Settings { split, ..settings }))
    }

    /// Whether it is this project's placement, with these settings or others.
    pub(crate) fn is_placed(self) -> bool {
        !matches!(self, Self::PrefixHash | Self::LlmD)
    }

    /// Whether what workers publish of their KV makes a difference to it.
    pub(crate) fn follows_events(self) -> bool {
        matches!(self, Self::Dynamo | Self::Stator)
    }
}

/// One for all workers, or one for each role.
fn paired<P: Policy + 'static>(common: &Common, new: impl Fn() -> Box<P>) -> Box<dyn Policy> {
    match common.paired {
        true => Box::new(pair::Pair::new(new(), new())),
        false => new(),
    }
}
