//! Life of a request: placed, followed, ended, or placed again.

use super::agenda::Event;
use super::flight::{RequestEnd, RequestLeg};
use super::{Violation, World};
use crate::engine::Submission;
use crate::engine::block::hash;
use crate::policy::{NoPick, PickQuery, RequestProgress, WorkerNumber};
use crate::time::Ps;
use crate::workload::ArrivalTime;

impl World<'_> {
    /// Finds workers for a request, or lets it wait for them.
    pub(super) fn place(&mut self, request: u32) {
        let asked = &self.workload.requests[request as usize];
        let all = u64::from(asked.prompt_tokens) + u64::from(asked.output_tokens);
        let limits = &self.settings.limits;
        if all > u64::from(limits.total_blocks) * u64::from(limits.block_size) {
            return self.end(request, RequestEnd::Failed);
        }
        // Whoever comes later does not overtake those that wait.
        let edge = usize::from(self.flights[request as usize].edge);
        let placed = self.edges[edge].waiting() == 0 && self.try_place(request).is_ok();
        if !placed {
            self.hold(request);
        }
    }

    /// Asks the policy, and sends the request where it says.
    pub(super) fn try_place(&mut self, request: u32) -> Result<(), NoPick> {
        let flight = &self.flights[request as usize];
        let asked = &self.workload.requests[request as usize];
        // A request that lost its worker continues from the tokens that it has.
        let tokens = asked.prompt_tokens + flight.generated;
        self.workload.blocks(request, &mut self.scratch.blocks);
        let complete = (tokens / self.settings.limits.block_size) as usize;
        let complete = complete.min(self.scratch.blocks.len());
        self.scratch.sequence.clear();
        self.scratch.sequence.extend(self.scratch.blocks[..complete].iter().map(|id| hash(*id)));
        let query = PickQuery {
            sequence: &self.scratch.sequence,
            prompt_tokens: tokens,
            adapter: asked.adapter,
            session: asked.session,
            seed: self.picks.next(),
        };
        let edge = usize::from(self.flights[request as usize].edge);
        let choice = self.edges[edge].policy.pick(&query, self.now)?;
        self.stir(edge);
        self.check_choice(request, &choice);
        let mut leg = |worker: WorkerNumber, ticket| {
            let at = &mut self.workers[worker as usize];
            at.requests.push(request);
            let generation = at.generation;
            RequestLeg { worker, generation, sequence: None, ticket, tokens: 0, released: false }
        };
        let main = leg(choice.worker, choice.ticket);
        let prefill = choice.prefill.map(|(worker, ticket)| leg(worker, ticket));
        let flight = &mut self.flights[request as usize];
        flight.placed = self.now;
        (flight.main, flight.prefill) = (Some(main), prefill);
        match prefill {
            Some(_) => self.start_prefill(request),
            None => {
                if let Some((holder, blocks)) = choice.holder {
                    self.lend(holder, blocks as usize, choice.worker);
                }
                self.start_main(request, None);
            }
        }
        Ok(())
    }

    /// A worker hears what another one lends of the prompt that is being placed: as much as is still there
    /// of the blocks that it is taken to lend.
    fn lend(&mut self, holder: WorkerNumber, blocks: usize, to: WorkerNumber) {
        if !self.workers[holder as usize].alive {
            return;
        }
        let ids = std::mem::take(&mut self.scratch.blocks);
        // The reader asks nobody for blocks that it has itself.
        let held = self.workers[to as usize].engine.held(&ids);
        if let Some(asked) = ids.get(held..blocks.min(ids.len())) {
            let lent = self.workers[holder as usize].engine.lend(asked, self.now);
            let there = &ids[..held + lent.blocks as usize];
            self.workers[to as usize].engine.hint(there, held, lent.ready, self.now);
        }
        self.scratch.blocks = ids;
    }

    /// The worker for prompts computes this one, and keeps its KV until it is read.
    fn start_prefill(&mut self, request: u32) {
        let Some(mut leg) = self.flights[request as usize].prefill else { return };
        let tokens = self.tokens(request);
        self.submit(request, &mut leg, (tokens, 1), None);
        self.flights[request as usize].prefill = Some(leg);
        self.drive(leg.worker);
    }

    /// The answering worker begins, with KV that takes `transfer` to come if any does.
    pub(super) fn start_main(&mut self, request: u32, transfer: Option<Ps>) {
        let Some(mut leg) = self.flights[request as usize].main else { return };
        let asked = &self.workload.requests[request as usize];
        let output = asked.output_tokens - self.flights[request as usize].generated;
        let tokens = self.tokens(request);
        self.submit(request, &mut leg, (tokens, output), transfer);
        self.flights[request as usize].main = Some(leg);
        self.drive(leg.worker);
    }

    /// Gives a request to the engine of a leg, if that still lives the same life. The lengths are
    /// its tokens so far and those to generate.
    fn submit(
        &mut self,
        request: u32,
        leg: &mut RequestLeg,
        length: (u32, u32),
        transfer: Option<Ps>,
    ) {
        let prefill = self.flights[request as usize].prefill;
        let park = prefill.is_some_and(|prefill| prefill.ticket == leg.ticket);
        let mut blocks = std::mem::take(&mut self.scratch.blocks);
        self.workload.blocks(request, &mut blocks);
        if let Some(at) = self.life(leg) {
            let (tokens, output) = length;
            let blocks = &blocks[..];
            let submission = Submission { request, tokens, output, blocks, transfer, park };
            leg.sequence = Some(at.engine.submit(&submission));
        }
        self.scratch.blocks = blocks;
    }

    /// Tokens of a request so far.
    pub(super) fn tokens(&self, request: u32) -> u32 {
        let asked = &self.workload.requests[request as usize];
        asked.prompt_tokens + self.flights[request as usize].generated
    }

    /// A request has a token.
    pub(super) fn first(&mut self, request: u32, cached_tokens: u32) {
        let now = self.now;
        let flight = &mut self.flights[request as usize];
        if flight.cached_tokens.is_none() {
            flight.cached_tokens = Some(cached_tokens);
            self.totals.computed += 1;
            self.totals.cached_tokens += u64::from(cached_tokens);
        }
        match flight.prefill.filter(|leg| !leg.released) {
            Some(prefill) => self.progress(request, prefill.ticket, RequestProgress::First),
            None => {
                let ticket = flight.main.map(|leg| leg.ticket);
                if flight.first.is_none() {
                    flight.first = Some(now);
                    self.totals.answered += 1;
                    self.totals.ttft += u128::from(now - flight.arrived);
                }
                if let Some(ticket) = ticket {
                    self.progress(request, ticket, RequestProgress::First);
                }
                // Its KV has arrived: the worker that computed it may forget it.
                self.arrived(request);
                self.drop_prefill(request);
            }
        }
    }

    /// A worker has done its part of a request.
    pub(super) fn last(&mut self, request: u32, worker: WorkerNumber) -> Result<(), Violation> {
        let flight = &mut self.flights[request as usize];
        if flight.ending.is_some() {
            return Err(self.violation(format!("request {request} ends twice")));
        }
        match &mut flight.prefill {
            Some(prefill) if !prefill.released => {
                prefill.released = true;
                let ticket = prefill.ticket;
                self.progress(request, ticket, RequestProgress::End);
                self.hand_over(request);
            }
            _ => {
                self.observations.bar(&self.flights[request as usize], worker, self.now);
                self.tell_rest(request);
                self.remove(request, true);
                self.end(request, RequestEnd::Complete);
            }
        }
        Ok(())
    }

    /// The tokens since the last report are heard of too, and count.
    fn tell_rest(&mut self, request: u32) {
        let Some(leg) = self.flights[request as usize].main else { return };
        let asked = &self.workload.requests[request as usize];
        let here = asked.output_tokens - self.flights[request as usize].generated;
        let more = (here - 1).saturating_sub(leg.tokens);
        let rest = asked.output_tokens.saturating_sub(self.flights[request as usize].charged);
        if more > 0 {
            self.progress(request, leg.ticket, RequestProgress::Tokens(more));
        }
        self.charge(request, rest);
    }

    /// A request ends, one way or the other; the next of its session follows.
    pub(super) fn end(&mut self, request: u32, ending: RequestEnd) {
        let flight = &mut self.flights[request as usize];
        flight.ended = Some(self.now);
        flight.ending = Some(ending);
        self.left -= 1;
        self.count_end(request);
        let next = self.workload.requests[request as usize].next;
        let Some(next) = next else { return };
        if let ArrivalTime::After(pause) = self.workload.requests[next as usize].arrival {
            self.agenda.at(self.now + pause, Event::Arrive { request: next });
        }
    }

    fn count_end(&mut self, request: u32) {
        let flight = &self.flights[request as usize];
        let (Some(RequestEnd::Complete), Some(first)) = (flight.ending, flight.first) else {
            self.totals.failed += 1;
            return;
        };
        let tokens = u64::from(self.workload.requests[request as usize].output_tokens);
        self.totals.completed += 1;
        self.totals.output_tokens += tokens;
        self.totals.gaps += tokens.saturating_sub(1);
        self.totals.gap_time += u128::from(self.now - first);
    }

    /// Its worker died: a request goes on elsewhere with the tokens that it has.
    pub(super) fn migrate(&mut self, request: u32) {
        self.remove(request, false);
        let flight = &mut self.flights[request as usize];
        flight.migrations += 1;
        self.observations.migrations += 1;
        match u32::from(flight.migrations) > self.settings.migrations_max {
            true => self.end(request, RequestEnd::Failed),
            false => self.place(request),
        }
    }

    /// Takes a request from all its workers. One that is `complete` has left its engine.
    fn remove(&mut self, request: u32, complete: bool) {
        self.drop_prefill(request);
        self.flights[request as usize].hand_over = None;
        let Some(leg) = self.flights[request as usize].main.take() else { return };
        self.leave(request, &leg);
        let now = self.now;
        if let Some(at) = self.life(&leg)
            && let Some(sequence) = leg.sequence.filter(|_| !complete)
        {
            at.engine.cancel(sequence, now);
            self.drive(leg.worker);
        }
        self.progress(request, leg.ticket, RequestProgress::End);
    }

    /// The worker that computed a request's prompt has no more to do with it.
    fn drop_prefill(&mut self, request: u32) {
        let Some(leg) = self.flights[request as usize].prefill.take() else { return };
        self.leave(request, &leg);
        let now = self.now;
        if let Some(at) = self.life(&leg)
            && let Some(sequence) = leg.sequence
        {
            match leg.released {
                true => at.engine.drop_parked(sequence),
                false => at.engine.cancel(sequence, now),
            }
            self.drive(leg.worker);
        }
        if !leg.released {
            self.progress(request, leg.ticket, RequestProgress::End);
        }
    }

    fn leave(&mut self, request: u32, leg: &RequestLeg) {
        let requests = &mut self.workers[leg.worker as usize].requests;
        if let Some(place) = requests.iter().position(|other| *other == request) {
            requests.swap_remove(place);
        }
        self.retire_idle(leg.worker);
    }

    /// The worker of a leg, if it still lives the life that the leg began in.
    pub(super) fn life(&mut self, leg: &RequestLeg) -> Option<&mut super::Worker> {
        let at = &mut self.workers[leg.worker as usize];
        (at.alive && at.generation == leg.generation).then_some(at)
    }
}
