//! The parts of a step: room, prompts, admission, and taking in what was computed.

use super::sequence::SequenceState;
use super::{Engine, EngineOutput, SequenceId};
use crate::time::Ps;

impl Engine {
    /// Preempts until every decoding sequence finds its block; true if one was.
    pub(super) fn make_room(&mut self) -> bool {
        let before = self.running.len();
        while self.decoding.crossings(self.tick, 1) > self.pool.available() {
            // Older sequences take what is cached before one finds no block.
            self.pool.vacate(self.pool.available());
            let youngest = *self.running.last().expect("blocks are missing for one that runs");
            let generated = self.sequences[youngest].generated_since_admitted(self.tick);
            self.leave(youngest);
            let sequence = &mut self.sequences[youngest];
            sequence.restart(generated);
            self.waiting_tokens += u64::from(sequence.remaining());
            self.waiting.push_front(youngest);
            self.preemptions += 1;
        }
        self.running.len() < before
    }

    /// Spends the budget on prompts that were admitted before.
    pub(super) fn plan_prompts(&mut self, now: Ps, budget: &mut u32) {
        for id in &self.prompts {
            let sequence = &self.sequences[*id];
            if *budget > 0 && sequence.is_ready(now) {
                let tokens = sequence.remaining().min(*budget);
                *budget -= tokens;
                self.chunks.push((*id, tokens));
            }
        }
    }

    /// Admits those that wait, in order, as long as there is room.
    pub(super) fn admit(&mut self, now: Ps, mut budget: u32) {
        while budget > 0 && self.running.len() < self.limits.max_running as usize {
            let Some(&id) = self.waiting.front() else { return };
            // One spare block for each that runs: otherwise the newcomer would soon be preempted.
            let crossings = self.decoding.crossings(self.tick, 1);
            let spare = self.running.len() as u32 + crossings;
            // Decoding takes its blocks first: a newcomer does not reuse what they evict.
            self.pool.vacate(crossings);
            let sequence = &mut self.sequences[id];
            let remaining = sequence.remaining();
            if !sequence.admit(&mut self.pool, &self.limits, spare, now) {
                return;
            }
            sequence.turn = self.admitted;
            self.admitted += 1;
            self.waiting_tokens -= u64::from(remaining);
            self.waiting.pop_front();
            self.running.push(id);
            self.prompts.push(id);
            if sequence.is_ready(now) {
                let tokens = sequence.remaining().min(budget);
                budget -= tokens;
                self.chunks.push((id, tokens));
            }
        }
    }

    /// Steps in a row that change nothing but the lengths of decoding sequences.
    pub(super) fn steps(&mut self) -> u32 {
        let first_end = self.decoding.first_end(&self.sequences);
        let most = u64::from(self.limits.stride);
        let steps = first_end.map_or(1, |end| (end - self.tick).clamp(1, most) as u32);
        self.decoding.steps_with(self.pool.available(), self.tick, steps)
    }

    /// Applies leading steps of a run without prompts.
    pub(super) fn apply(&mut self, steps: u32) {
        let Some(run) = &mut self.run else { return };
        let span = self.rates.decode(run.batch, steps);
        run.start += span;
        run.steps -= steps;
        run.batch.context += run.batch.sequences * u64::from(steps);
        self.busy += span;
        self.pool.take(self.decoding.crossings(self.tick, steps));
        self.tick += u64::from(steps);
    }

    /// Takes in the prompt tokens that the step computed.
    pub(super) fn finish_chunks(&mut self, outputs: &mut Vec<EngineOutput>) {
        for place in 0..self.chunks.len() {
            let (id, tokens) = self.chunks[place];
            let sequence = &mut self.sequences[id];
            sequence.advance(tokens, &mut self.pool, self.limits.block_size);
            if sequence.remaining() > 0 {
                continue;
            }
            if let Some(cached_tokens) = sequence.take_cached() {
                outputs.push(EngineOutput::First { request: sequence.request, cached_tokens });
            }
            sequence.left -= 1;
            sequence.state = SequenceState::Decoding { since: self.tick };
            self.prompts.retain(|other| *other != id);
            self.decoding.enter(id, &self.sequences[id], self.tick);
        }
        self.chunks.clear();
    }

    /// A sequence has its last token.
    pub(super) fn end(&mut self, id: SequenceId, outputs: &mut Vec<EngineOutput>) {
        let sequence = &self.sequences[id];
        let park = sequence.park;
        outputs.push(EngineOutput::Last { request: sequence.request });
        if park {
            self.stop(id);
            self.sequences[id].state = SequenceState::Parked;
        } else {
            self.leave(id);
            self.sequences.remove(id);
        }
    }

    /// A running sequence runs no more, and gives its blocks back.
    pub(super) fn leave(&mut self, id: SequenceId) {
        self.stop(id);
        self.release(id);
    }

    /// A running sequence runs no more; its length is that of now.
    fn stop(&mut self, id: SequenceId) {
        let place = self.running.iter().rposition(|other| *other == id);
        self.running.remove(place.expect("the sequence runs"));
        let sequence = &mut self.sequences[id];
        if let SequenceState::Decoding { since } = sequence.state {
            self.decoding.leave(sequence.tokens, since);
            let generated = (self.tick - since) as u32;
            sequence.computed += generated;
        } else {
            self.prompts.retain(|other| *other != id);
        }
    }

    /// Gives back the blocks of a stopped sequence; those that it filled stay cached.
    pub(super) fn release(&mut self, id: SequenceId) {
        let block_size = self.limits.block_size;
        let sequence = &mut self.sequences[id];
        let blocks = sequence.tokens.max(sequence.computed).div_ceil(block_size);
        sequence.commit(&mut self.pool, block_size);
        let private = blocks - sequence.held.len() as u32;
        self.pool.release(&mut sequence.held, private);
    }
}
