//! The fleet at a moment, as a planner sees it.

use super::worker::{Tenure, Worker};
use crate::time::Ps;
use stator_placement::Role;
use stator_protos::load::Load;

/// The fleet at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetState {
    /// The moment.
    pub now: Ps,
    /// Requests that no worker has yet.
    pub held: u32,
    /// Workers that only compute prompts.
    pub prefill: RoleState,
    /// Workers that answer from prompts that others computed.
    pub decode: RoleState,
    /// Workers that do both.
    pub aggregated: RoleState,
    /// Counts since the start; the difference of two states gives the rates between them.
    pub totals: FleetTotals,
}

/// The workers of one role. Loads are those of the engines' last reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoleState {
    /// Workers that start, or come back after a death.
    pub starting: u32,
    /// Workers that take requests.
    pub up: u32,
    /// Workers that finish what they have.
    pub draining: u32,
    /// Requests that run.
    pub running: u32,
    /// Requests that wait at a worker.
    pub waiting: u32,
    /// Blocks that requests use.
    pub used_blocks: u64,
    /// Blocks of the workers that are up or drain.
    pub total_blocks: u64,
    /// Prompt tokens that are still to be computed.
    pub pending_prefill_tokens: u64,
    /// Time spent on steps since the start, by all workers that there ever were.
    pub busy: u128,
}

/// One worker that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerState {
    /// Its role.
    pub role: Role,
    /// Start of its present life.
    pub since: Ps,
    /// Whether it finishes what it has and takes nothing new.
    pub draining: bool,
    /// Its load, without the delay of reports.
    pub load: Load,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetTotals {
    /// Requests that came.
    pub arrived: u64,
    /// Tokens of the prompts of requests that came.
    pub prompt_tokens: u64,
    /// Sum of the squares of their lengths.
    pub prompt_squares: u128,
    /// Requests whose prompt was computed.
    pub computed: u64,
    /// Tokens of computed prompts that were reused.
    pub cached_tokens: u64,
    /// Requests that got a first token.
    pub answered: u64,
    /// Sum of their times to the first token.
    pub ttft: u128,
    /// Requests that got their whole answer.
    pub completed: u64,
    /// Tokens of whole answers.
    pub output_tokens: u64,
    /// Gaps between the tokens of whole answers.
    pub gaps: u64,
    /// Sum of these gaps.
    pub gap_time: u128,
    /// Requests that failed.
    pub failed: u64,
}

impl FleetState {
    /// The workers of a role; those of roles that a model has not are none.
    pub fn role(&self, role: Role) -> RoleState {
        match role {
            Role::Prefill => self.prefill,
            Role::Decode => self.decode,
            Role::Aggregated => self.aggregated,
            Role::DecodeOnly | Role::Encode => RoleState::default(),
        }
    }
}

impl WorkerState {
    /// The state of a worker that is up.
    pub(super) fn of(worker: &Worker) -> Self {
        Self {
            role: worker.member.role,
            since: worker.started,
            draining: worker.tenure == Tenure::Draining,
            load: worker.engine.load(),
        }
    }
}

impl RoleState {
    /// Counts a worker in.
    pub(super) fn add(&mut self, worker: &Worker) {
        self.busy += u128::from(worker.busy());
        match (worker.tenure, worker.alive) {
            (Tenure::Kept, false) => self.starting += 1,
            (Tenure::Kept, true) => self.up += 1,
            (Tenure::Draining, _) => self.draining += 1,
            (Tenure::Retired, _) => return,
        }
        if worker.alive {
            let load = worker.engine.load();
            self.running += load.running;
            self.waiting += load.waiting;
            self.used_blocks += u64::from(load.used_blocks);
            self.total_blocks += u64::from(load.total_blocks);
            self.pending_prefill_tokens += load.pending_prefill_tokens;
        }
    }
}
