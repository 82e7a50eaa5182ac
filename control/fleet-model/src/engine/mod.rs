//! An engine that computes nothing: continuous batching in virtual time.
//!
//! It follows the rules of the worker agent's own scheduler: every sequence that decodes does so
//! in every step; the rest of a step's token budget goes to prompts, in chunks, first come first
//! served; a sequence is admitted when there are blocks for all its tokens; where decoding finds
//! no block, the youngest sequence starts over later.
//!
//! Between two changes of the batch all steps are computed at once. A sequence that decodes costs
//! nothing per step: its length follows from the number of steps since it began, and the sums
//! that steps need are kept for the whole batch ([`decoding`]).

pub(crate) mod block;
mod decoding;
pub(crate) mod news;
pub(crate) mod pool;
pub(crate) mod rates;
mod request;
mod sequence;
mod step;
#[cfg(test)]
mod tests;
mod tiers;

pub use request::EngineLimits;
pub(crate) use request::{EngineOutput, SequenceId, Submission};
pub(crate) use tiers::Bucket;
pub use tiers::{DiskLimits, ObjectLimits, PeerLimits, TierLimits, TierTotals};

use crate::time::Ps;
use block::BlockId;
use decoding::Decoding;
use news::KvNews;
use pool::BlockPool;
use rates::{Batch, Rates};
use sequence::{SequenceState, Sequences};
use stator_protos::load::Load;
use std::collections::VecDeque;
use tiers::{LoadedBlocks, Tiers};

/// Steps that are being computed.
#[derive(Debug)]
struct Run {
    /// Start of the first step that is not applied yet, and end of the last step.
    start: Ps,
    end: Ps,
    /// Steps that are not applied yet.
    steps: u32,
    /// The batch of the first of them.
    batch: Batch,
}

/// An engine. Its driver calls [`Engine::finish`] when a run ends, and [`Engine::plan`] for the
/// next run.
#[derive(Debug)]
pub(crate) struct Engine {
    limits: EngineLimits,
    rates: Rates,
    pool: BlockPool,
    sequences: Sequences,
    /// In the order of admission: the last is the youngest.
    running: Vec<SequenceId>,
    /// Sequences of `running` that do not decode yet.
    prompts: Vec<SequenceId>,
    waiting: VecDeque<SequenceId>,
    waiting_tokens: u64,
    decoding: Decoding,
    /// Sequences admitted, a preempted one again each time.
    admitted: u64,
    /// Steps since the start.
    tick: u64,
    run: Option<Run>,
    /// Prompts in the run, with the tokens of each that are computed.
    chunks: Vec<(SequenceId, u32)>,
    /// Time spent on steps, up to the last applied.
    busy: Ps,
    preemptions: u64,
}

impl Engine {
    /// An idle engine, the tiers of which stand above the fleet's bucket.
    pub(crate) fn new(limits: EngineLimits, rates: Rates, bucket: Bucket) -> Self {
        let tiers = Tiers::new(limits.tiers, bucket);
        Self {
            pool: BlockPool::new(limits.total_blocks, tiers, limits.block_size),
            sequences: Sequences::default(),
            running: Vec::new(),
            prompts: Vec::new(),
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            decoding: Decoding::new(limits.block_size),
            admitted: 0,
            tick: 0,
            run: None,
            chunks: Vec::new(),
            busy: 0,
            preemptions: 0,
            limits,
            rates,
        }
    }

    /// Takes a request. It must fit the pool when it has all its tokens.
    pub(crate) fn submit(&mut self, submission: &Submission<'_>) -> SequenceId {
        let id = self.sequences.insert(submission);
        self.waiting_tokens += u64::from(self.sequences[id].remaining());
        self.waiting.push_back(id);
        id
    }

    /// End of the present run.
    pub(crate) fn run_ends(&self) -> Option<Ps> {
        self.run.as_ref().map(|run| run.end)
    }

    /// Lets the run end with the step in progress, because something else is to be computed.
    pub(crate) fn interrupt(&mut self, now: Ps) {
        self.advance(now);
        let rates = self.rates;
        if let Some(run) = self.run.as_mut().filter(|_| self.chunks.is_empty()) {
            // After `advance` at most one step is in progress.
            run.steps = u32::from(run.start < now);
            run.end = run.start + rates.decode(run.batch, run.steps);
        }
    }

    /// Applies the steps that are over. Only steps that nobody hears of can be.
    pub(crate) fn advance(&mut self, now: Ps) {
        let Some(run) = &self.run else { return };
        if run.steps <= 1 || now <= run.start {
            return;
        }
        // The last step is left to `finish`.
        let steps = self.rates.steps_within(run.batch, now - run.start, run.steps - 1);
        self.apply(steps);
    }

    /// The run has ended.
    pub(crate) fn finish(&mut self, outputs: &mut Vec<EngineOutput>) {
        let Some(run) = &self.run else { return };
        let (steps, end) = (run.steps, run.end);
        self.pool.advance(end);
        if self.chunks.is_empty() {
            self.apply(steps);
        } else {
            self.busy += end - run.start;
            self.pool.take(self.decoding.crossings(self.tick, 1));
            self.tick += 1;
            self.finish_chunks(outputs);
        }
        self.run = None;
        while let Some(id) = self.decoding.pop_ended(self.tick, &self.sequences) {
            self.end(id, outputs);
        }
    }

    /// Starts the next run if there is anything to compute and none under way; returns when it
    /// ends.
    pub(crate) fn plan(&mut self, now: Ps) -> Option<Ps> {
        if self.run.is_some() {
            return None;
        }
        self.pool.advance(now);
        let preempted = self.make_room();
        let mut budget = self.limits.step_tokens.saturating_sub(self.decoding.len());
        self.chunks.clear();
        self.plan_prompts(now, &mut budget);
        // What a preemption freed is for those that still run.
        if !preempted {
            self.admit(now, budget);
        }
        let batch = self.decoding.batch(self.tick);
        if self.chunks.is_empty() && batch.sequences == 0 {
            return None;
        }
        // After a preemption the next step may admit what this one may not.
        let steps = if self.chunks.is_empty() && !preempted { self.steps() } else { 1 };
        let mut span = self.rates.decode(batch, steps);
        for &(id, tokens) in &self.chunks {
            let start = self.sequences[id].computed;
            span += self.rates.chunk(start, start + tokens);
        }
        self.run = Some(Run { start: now, end: now + span, steps, batch });
        Some(now + span)
    }

    /// Earliest time at which an admitted prompt gets the KV that it waits for.
    pub(crate) fn next_ready(&self, now: Ps) -> Option<Ps> {
        let ready = self.prompts.iter().filter_map(|id| self.sequences[*id].ready_at());
        ready.filter(|ready| *ready > now).min()
    }

    /// Ends a request without further outputs. The step in progress goes on as it is.
    pub(crate) fn cancel(&mut self, id: SequenceId, now: Ps) {
        self.interrupt(now);
        let sequence = &mut self.sequences[id];
        match sequence.state {
            SequenceState::Waiting => {
                self.waiting_tokens -= u64::from(sequence.remaining());
                self.waiting.retain(|other| *other != id);
            }
            SequenceState::Gone | SequenceState::Parked => return,
            // A chunk that is being computed is computed for nothing.
            SequenceState::Prefilling { .. } | SequenceState::Decoding { .. } => {
                self.chunks.retain(|(other, _)| *other != id);
                self.leave(id);
            }
        }
        self.sequences.remove(id);
    }

    /// Gives back the blocks of a request that ended parked.
    pub(crate) fn drop_parked(&mut self, id: SequenceId) {
        self.release(id);
        self.sequences.remove(id);
    }

    /// Tokens that a sequence has generated here, up to the last applied step.
    pub(crate) fn generated(&self, id: SequenceId) -> u32 {
        self.sequences[id].generated(self.tick)
    }

    /// Load as an engine reports it.
    pub(crate) fn load(&self) -> Load {
        let prompts = self.prompts.iter().map(|id| self.sequences[*id].remaining());
        let remaining: u64 = prompts.map(u64::from).sum();
        Load {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            used_blocks: self.pool.used(),
            cached_blocks: self.pool.cached(),
            total_blocks: self.limits.total_blocks,
            pending_prefill_tokens: self.waiting_tokens + remaining,
            costs: self.pool.tiers.costs(0.0, self.limits.block_prefill),
        }
    }

    /// Leading blocks of a sequence on the device or in host memory.
    pub(crate) fn held(&self, blocks: &[BlockId]) -> usize {
        self.pool.held(blocks)
    }

    /// Another worker lends these leading blocks of a sequence from the one of number `first` on, once
    /// they are `ready`.
    pub(crate) fn hint(&mut self, blocks: &[BlockId], first: usize, ready: Ps, now: Ps) {
        self.pool.advance(now);
        self.pool.hint(blocks, first, ready);
    }

    /// Leading blocks of these that another worker can read here, and from when on.
    pub(crate) fn lend(&mut self, blocks: &[BlockId], now: Ps) -> LoadedBlocks {
        self.pool.advance(now);
        self.pool.lend(blocks)
    }

    /// The disk, if there is one, reads a block in so long from now on.
    pub(crate) fn set_disk_read(&mut self, block: Ps) {
        self.pool.tiers.set_disk_read(block);
    }

    /// Blocks that the tiers gave and took.
    pub(crate) fn tier_totals(&self) -> TierTotals {
        self.pool.tiers.totals()
    }

    /// Sequences that run or wait.
    pub(crate) fn len(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// Time spent on steps.
    pub(crate) fn busy(&self) -> Ps {
        self.busy
    }

    /// Times that a sequence had to start over.
    pub(crate) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Its blocks.
    pub(crate) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// KV events that are to be published.
    pub(crate) fn news(&mut self) -> &mut KvNews {
        &mut self.pool.news
    }
}
