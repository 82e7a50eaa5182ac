//! One pool's state and decisions: endpoints, what they report, what is in flight, who takes the
//! next request.

use crate::cycle::{self, Cycle};
use crate::decision::{Call, Decision, ScheduleError};
use crate::plugin::{PlacedRequest, RequestProgress, Routing};
use crate::prefixes::Prefixes;
use crate::program::Program;
use crate::settings::SchedulerSettings;
use crate::slot::{EndpointSlot, Slots};
use crate::tickets::{FlowKey, RequestTicket, Reservation, Tickets};
use crate::{Endpoint, EngineLoad, Equipment, FlowLoad, InFlight, PrefixMatch, Request, Time};
use stator_placement::{
    PickError, Placement, PlacementRequest, PlacementSettings, PlacementStats, PromptSources,
    Survey, Worker,
};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};
use std::sync::Arc;
use std::time::Duration;

mod replicas;

/// Decides for one pool. Owned by it, changed under its lock.
pub struct Scheduler {
    program: Program,
    slots: Slots,
    placement: Placement,
    /// Tokens that a prompt leaves to be computed, on average over those sent lately.
    prompt_tokens: f64,
    tickets: Tickets,
    settle: Duration,
    sheds: bool,
    prefixes: Arc<Prefixes>,
}

/// Counts and levels for metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolStats {
    /// Endpoints that take new requests.
    pub ready_endpoints: usize,
    /// Endpoints whose last report is too old to count, or that never reported.
    pub stale_endpoints: usize,
    /// Saturation of the pool, 1 and more is full; 1 without endpoints.
    pub saturation: f64,
    /// Saturation of the endpoints that prefill, and of those that decode; `None` where there are
    /// none.
    pub stage_saturation: [Option<f64>; 2],
    /// Requests in flight.
    pub in_flight: usize,
    /// Blocks that events and snapshots of workers told of, since the start.
    pub admitted_blocks: u64,
    /// The placement core's counts.
    pub placement: PlacementStats,
}

impl Scheduler {
    /// A pool without endpoints.
    pub fn new(program: Program, settings: SchedulerSettings) -> Self {
        // Tickets know when a request has ended; a watched one may run for hours.
        let placement = PlacementSettings { booking_lease: Duration::MAX, ..settings.placement };
        let placement = Placement::new(placement);
        let prefixes = Arc::new(Prefixes::new(placement.blocks(), &program));
        Self {
            program,
            slots: Slots::weighing(settings.tier_weights),
            prompt_tokens: PROMPT_TOKENS,
            placement,
            tickets: Tickets::new(
                settings.in_flight_max,
                settings.unwatched_lease,
                settings.tickets_above,
            ),
            settle: settings.settle,
            sheds: settings.sheds,
            prefixes,
        }
    }

    /// The plug-ins that decide.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Replaces the endpoints. Those that stay keep their state; another life of a pod starts with
    /// nothing.
    pub fn set_endpoints(&mut self, endpoints: &[Arc<Endpoint>]) {
        for left in self.slots.retain(endpoints) {
            self.placement.worker_down(left);
            self.program.observers.iter().for_each(|observer| observer.plugin.left(left));
        }
        for endpoint in endpoints {
            let known = self.slots.get(endpoint.worker);
            let labelled = known.is_some_and(|slot| slot.endpoint.labels == endpoint.labels);
            if let Some(slot) = self.slots.insert(endpoint) {
                self.placement.worker_up(worker(slot));
            }
            if !labelled {
                self.describe(endpoint.worker);
            }
        }
    }

    /// Tells the placement core what requests may need of an endpoint.
    fn describe(&mut self, rank: WorkerRank) {
        if let Some(slot) = self.slots.get(rank) {
            self.placement.set_profile(rank, slot.profile());
        }
    }

    /// The endpoints and what is known of them, in order of their identity.
    pub fn endpoints(&self) -> impl Iterator<Item = (&Arc<Endpoint>, &EngineLoad, InFlight)> {
        self.slots.iter().map(|slot| (&slot.endpoint, &slot.load, slot.in_flight()))
    }

    /// An endpoint and what it last reported.
    pub fn endpoint(&self, rank: WorkerRank) -> Option<(&Arc<Endpoint>, &EngineLoad)> {
        self.slots.get(rank).map(|slot| (&slot.endpoint, &slot.load))
    }

    /// Whether some endpoint takes new requests.
    pub fn accepts(&self) -> bool {
        self.slots.iter().any(|slot| slot.accepting)
    }

    /// A worker's present life, as its event feed tells of it; what was known or predicted of its
    /// blocks before is forgotten.
    pub fn set_life(&mut self, rank: WorkerRank, generation: Generation) {
        let Some(slot) = self.slots.get_mut(rank) else { return };
        if slot.publishes_events && slot.generation == generation {
            return;
        }
        (slot.generation, slot.publishes_events) = (generation, true);
        let worker = worker(slot);
        // What was booked there counts no more for the cost.
        self.slots.own_changed();
        self.placement.worker_down(rank);
        self.placement.worker_up(worker);
        self.describe(rank);
    }

    /// Whether an endpoint takes new requests, as its agent says.
    pub fn set_accepting(&mut self, rank: WorkerRank, accepting: bool) {
        let Some(slot) = self.slots.get_mut(rank) else { return };
        slot.accepting = accepting;
        let worker = worker(slot);
        self.placement.worker_up(worker);
    }

    /// Keeps what an engine reported at `load.updated`. Requests that nobody watches and that
    /// the report covers are in its numbers from now on.
    pub fn report(&mut self, rank: WorkerRank, load: EngineLoad) {
        let Some(slot) = self.slots.get_mut(rank) else { return };
        let updated = load.updated.unwrap_or_default();
        let blocks = load.cache.map_or(0, |cache| cache.blocks);
        let reported = Load {
            running: load.running,
            waiting: load.waiting,
            used_blocks: (load.kv_usage.clamp(0.0, 1.0) * f64::from(blocks)) as u32,
            total_blocks: blocks,
            // A page of metrics counts requests, not what their prompts have still to be computed.
            pending_prefill_tokens: (f64::from(load.waiting) * self.prompt_tokens) as u64,
            ..Load::default()
        };
        // An agent that is heard no more may have told of adapters, too.
        let adapters = slot.load.lora != load.lora || slot.told.fixed_adapters;
        if adapters {
            slot.tell_adapters(load.lora.as_ref());
        }
        slot.load = load;
        let generation = slot.generation;
        if adapters {
            self.describe(rank);
        }
        self.settle(rank, updated);
        self.placement.report_load(rank, generation, reported);
    }

    /// Keeps what an endpoint's agent says that its engine has.
    pub fn set_equipment(&mut self, rank: WorkerRank, equipment: Equipment) {
        let Some(slot) = self.slots.get_mut(rank) else { return };
        (slot.load.lora, slot.load.cache) = (equipment.lora, equipment.cache);
        (slot.agent_worker, slot.told) = (equipment.worker, equipment.profile);
        slot.lends_at = equipment.lends_at;
        let worker = worker(slot);
        self.placement.worker_up(worker);
        self.describe(rank);
    }

    /// Keeps what an agent reported of one life of its worker.
    pub fn report_agent(
        &mut self,
        rank: WorkerRank,
        generation: Generation,
        load: Load,
        now: Time,
    ) {
        let Some(slot) = self.slots.get_mut(rank) else { return };
        if slot.generation != generation {
            return;
        }
        slot.load.waiting = load.waiting;
        slot.load.running = load.running;
        slot.load.kv_usage = match load.total_blocks {
            0 => 0.0,
            total => f64::from(load.used_blocks) / f64::from(total),
        };
        slot.load.updated = Some(now);
        self.settle(rank, now);
        self.placement.report_load(rank, generation, load);
    }

    /// Blocks that the endpoints hold, for events and lookups without this scheduler.
    pub fn prefixes(&self) -> &Arc<Prefixes> {
        &self.prefixes
    }

    /// Chooses an endpoint and books the request there, in one step.
    ///
    /// Equal calls on equal states give equal answers.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`] says why it was not placed; nothing is booked then.
    pub fn schedule(
        &mut self,
        request: &Request<'_>,
        call: Call,
    ) -> Result<Decision, ScheduleError> {
        // First, so that room of ended leases counts for this request.
        self.expire(call.now);
        self.tickets.check_room()?;
        let prompt = self.program.uses_kv.then(|| self.unmatched(request));
        let asks = prompt.is_some() || request.is_particular();
        let surveyed = asks.then(|| self.placement.survey(&placement_request(request), call.now));
        let refused = surveyed.as_ref().and_then(Survey::refused);
        let candidates = self.slots.candidates(request, surveyed.as_ref(), prompt);
        match refused {
            // Before any plug-in runs: there is nobody that it could choose.
            Some(error @ (PickError::Unsatisfied { .. } | PickError::Contradictory { .. })) => {
                return Err(ScheduleError::Unmet(error));
            }
            _ => self.slots.check_pins(request.pins)?,
        }
        let mut cycle = Cycle::new(&self.program, request, call, candidates);
        let routing = cycle.route(self.sheds)?;
        if request.only_cached && routing.cached_tokens() == 0 {
            return Err(ScheduleError::NothingCached);
        }
        let response_headers = cycle.response_headers(&routing);
        let scores = cycle.scores(&routing);
        let ticket = self.tickets.next();
        for observer in &self.program.observers {
            observer.plugin.placed(request, &PlacedRequest { ticket, routing: &routing }, call.now);
        }
        let mut decision = self.decision(ticket, &routing);
        (decision.scores, decision.response_headers) = (scores, response_headers);
        self.book(request, &mut decision, call);
        Ok(decision)
    }

    /// The answer's first byte came: the prompt is computed.
    pub fn first_token(&mut self, progress: &RequestProgress<'_>, now: Time) {
        let Some(ticket) = self.tickets.get_mut(progress.ticket) else { return };
        let tokens = std::mem::take(&mut ticket.prompt_tokens);
        // Nothing is learnt of an endpoint from what others did.
        let alone = ticket.reservations.len() == 1 && progress.served.is_none();
        for reservation in &ticket.reservations {
            match (ticket.streams, alone) {
                (true, true) => self.placement.prefill_done(reservation.booking, now),
                (true, false) => self.placement.prefill_over(reservation.booking, now),
                // It comes with the last one, and the prompt was computed some time before.
                (false, _) => false,
            };
            self.slots.compute(reservation, ticket.flow, tokens);
        }
        for observer in &self.program.observers {
            observer.plugin.first_token(progress, now);
        }
    }

    /// The request is over, in whatever way.
    pub fn ended(&mut self, progress: &RequestProgress<'_>, now: Time) {
        if let Some(ticket) = self.tickets.remove(progress.ticket) {
            let answers = ticket.reservations.first().filter(|_| progress.served.is_none());
            if let (Some(reservation), Some(tokens)) = (answers, progress.output_tokens) {
                let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
                self.placement.output_tokens(reservation.booking, tokens, now);
            }
            self.release(ticket);
        }
        for observer in &self.program.observers {
            observer.plugin.ended(progress, now);
        }
    }

    /// Ends what has run out by `now`. Every decision does the same; call it now and then where
    /// none come.
    pub fn expire(&mut self, now: Time) {
        self.placement.expire(now);
        while let Some(ticket) = self.tickets.pop_expired(now) {
            self.release(ticket);
        }
    }

    /// Saturation of the pool; 1 and more is full.
    pub fn saturation(&self, now: Time) -> f64 {
        cycle::saturation(self.program.saturation, self.slots.iter().as_slice(), now)
    }

    /// Load in flight at each endpoint, in the order of [`Scheduler::endpoints`]: by flow from this
    /// replica, and from all other replicas together.
    pub fn flows(&self) -> impl Iterator<Item = (impl Iterator<Item = &FlowLoad>, InFlight)> {
        self.slots.iter().map(|slot| (slot.flows(), slot.others))
    }

    /// Counts and levels for metrics.
    pub fn stats(&self, now: Time) -> PoolStats {
        let stale = |slot: &&EndpointSlot| slot.load.updated.is_none_or(|at| now > at.after(STALE));
        PoolStats {
            ready_endpoints: self.slots.iter().filter(|slot| slot.accepting).count(),
            stale_endpoints: self.slots.iter().filter(stale).count(),
            saturation: self.saturation(now),
            stage_saturation: cycle::stages(
                self.program.saturation,
                self.slots.iter().as_slice(),
                now,
            ),
            in_flight: self.tickets.len(),
            admitted_blocks: self.prefixes.admitted_blocks(),
            placement: self.placement.stats(),
        }
    }

    /// Tokens per KV block.
    pub fn block_size(&self) -> u32 {
        self.placement.settings().block_size.get()
    }

    /// The match of an endpoint that holds nothing of a prompt.
    fn unmatched(&self, request: &Request<'_>) -> PrefixMatch {
        let block_size = self.block_size();
        let total_blocks = request.prompt.tokens.checked_div(block_size).unwrap_or_default();
        PrefixMatch { total_blocks, block_size, ..PrefixMatch::default() }
    }

    fn decision(&self, ticket: u64, routing: &Routing<'_>) -> Decision {
        let shared = |endpoint: &Endpoint| self.slots.endpoint(endpoint.worker);
        let targets = &routing.primary.targets;
        let others = routing.others.iter().filter_map(|(profile, pick)| {
            Some((profile.clone(), shared(pick.targets.first()?.endpoint)?))
        });
        Decision {
            ticket,
            targets: targets.iter().filter_map(|target| shared(target.endpoint)).collect(),
            others: others.collect(),
            port: routing.port,
            headers: routing.headers.clone(),
            cached_tokens: routing.cached_tokens(),
            sources: PromptSources::default(),
            response_headers: Vec::new(),
            scores: Vec::new(),
            holders: Vec::new(),
        }
    }

    /// Books the request at the endpoint that answers and at those that help. Notes those of them that
    /// count as holding the prompt, and where the one that computes the prompt gets it from.
    fn book(&mut self, request: &Request<'_>, decision: &mut Decision, call: Call) {
        let computes = decision.computes().map(|endpoint| endpoint.worker);
        let computes = computes.filter(|_| self.program.uses_kv);
        let mut placed = placement_request(request);
        let uncached = u64::from(placed.prompt_tokens).saturating_sub(decision.cached_tokens);
        self.prompt_tokens += (uncached as f64 - self.prompt_tokens) * PROMPT_SHARE;
        let (output, flow) = (request.expected_output_tokens, FlowKey::of(request));
        let mut reservations = Vec::with_capacity(1 + decision.others.len());
        // Fallbacks get no place: the data plane tries them only where the first one fails.
        let helpers = decision.others.iter().map(|(_, endpoint)| endpoint);
        for endpoint in decision.targets.first().into_iter().chain(helpers) {
            let rank = endpoint.worker;
            let booked = self.placement.book(&placed, rank);
            // It stays with the endpoint that answers, which is the first.
            placed.session = None;
            let slot = booked.is_some().then(|| self.slots.take(rank, request, uncached + output));
            if let (Some(booked), Some(slot)) = (booked, slot.flatten()) {
                if !call.watched {
                    slot.unsettled.push(call.now.after(self.settle), decision.ticket);
                }
                reservations.push(Reservation { rank, epoch: slot.epoch, booking: booked.booking });
                decision.holders.extend(booked.holds_until.map(|until| (rank, until)));
                if computes == Some(rank) {
                    let block_tokens = self.placement.block_tokens();
                    decision.sources = booked.sources.of_prompt(placed.prompt_tokens, block_tokens);
                    decision.headers.extend(self.slots.lenders(&booked.holders));
                }
            }
        }
        let streams = request.stream;
        let ticket = RequestTicket {
            flow,
            reservations,
            streams,
            prompt_tokens: uncached,
            output_tokens: output,
        };
        self.tickets.insert(decision.ticket, ticket, (!call.watched).then_some(call.now));
    }

    /// Ends the unwatched requests of an endpoint that were sent long enough before `reported`
    /// for the engine's numbers to have them.
    fn settle(&mut self, rank: WorkerRank, reported: Time) {
        while let Some(ticket) =
            self.slots.get_mut(rank).and_then(|slot| slot.unsettled.pop(reported))
        {
            if let Some(ticket) = self.tickets.remove(ticket) {
                self.release(ticket);
            }
        }
        if let Some(slot) = self.slots.get_mut(rank) {
            slot.reported();
        }
    }

    fn release(&mut self, ticket: RequestTicket) {
        let tokens = ticket.prompt_tokens + ticket.output_tokens;
        for reservation in ticket.reservations {
            self.placement.release(reservation.booking);
            if let Some(slot) = self.slots.release(&reservation, ticket.flow, tokens) {
                let open = slot.own.requests as usize;
                slot.unsettled.forget_ended(open, |number| self.tickets.is_held(number));
            }
        }
    }
}

/// Tokens of a waiting prompt before any prompt was sent.
const PROMPT_TOKENS: f64 = 512.0;
/// Weight of the latest prompt in the average.
const PROMPT_SHARE: f64 = 1.0 / 64.0;

/// Age at which a report counts as stale in metrics.
///
/// Source: `--metrics-staleness-threshold` of the llm-d router.
pub const STALE: Duration = Duration::from_secs(2);

/// A request as the placement core sees it. The core is not told of pins, splits and failures:
/// pins concern a part of a request, which [`Slots::candidates`] knows, plug-ins split requests,
/// and gateways try them again.
fn placement_request<'a>(request: &Request<'a>) -> PlacementRequest<'a> {
    PlacementRequest {
        sequence: request.prompt.sequence,
        overlaps: request.prompt.overlaps,
        prompt_tokens: request.prompt.tokens,
        max_output_tokens: request.max_output_tokens,
        needs: request.needs,
        adapter: request.adapter,
        session: request.session,
        ..PlacementRequest::default()
    }
}

/// A slot as the placement core knows it.
fn worker(slot: &EndpointSlot) -> Worker {
    Worker {
        worker: slot.endpoint.worker,
        generation: slot.generation,
        total_blocks: slot.load.cache.map_or(0, |cache| cache.blocks),
        accepting: slot.accepting,
        suspect: false,
        publishes_events: slot.publishes_events,
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "lenders_tests.rs"]
mod lenders_tests;

#[cfg(test)]
#[path = "needs_tests.rs"]
mod needs_tests;
