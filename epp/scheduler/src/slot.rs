//! State of a pool's endpoints.
//!
//! The placement core's tracker counts load too: in blocks and prompt tokens of a worker's present
//! life, for its cost. Slots count requests and tokens by flow and over lives, for saturation,
//! metrics and plug-ins, whether or not anything asks for that cost.

use crate::tickets::{Due, FlowKey, Reservation};
use crate::{
    Candidate, Endpoint, EndpointPins, EngineLoad, FlowLoad, InFlight, Lora, PrefixMatch, Request,
    ScheduleError, Subset, TierWeights,
};
use rustc_hash::FxHashMap;
use stator_placement::{Adapter, Holder, Label, PickError, Profile, Role, Survey};
use stator_protos::header::KV_HOLDERS;
use stator_protos::kv_event::Medium;
use stator_protos::{Generation, WorkerRank, holders};
use std::collections::hash_map::Entry;
use std::mem::take;
use std::sync::Arc;

/// An endpoint and its state.
pub(crate) struct EndpointSlot {
    /// The endpoint's identity, which never changes.
    rank: WorkerRank,
    pub endpoint: Arc<Endpoint>,
    /// Differs from that of every other slot there ever was: what was sent to an endpoint that
    /// left is not given back to the one that came in its place.
    pub epoch: u64,
    /// The life of its engine; 0 until its event feed tells.
    pub generation: Generation,
    pub publishes_events: bool,
    /// False while its agent takes nothing new.
    pub accepting: bool,
    pub load: EngineLoad,
    /// The worker as its agent knows it.
    pub agent_worker: Option<WorkerRank>,
    /// The labels and adapters that its agent or engine reports, for requests that need some.
    pub told: Profile,
    /// Address at which its agent lends KV.
    pub lends_at: Option<Arc<str>>,
    /// Load in flight from this replica.
    pub own: InFlight,
    /// Load in flight from this replica by flow; flows with nothing in flight are absent.
    flows: FxHashMap<FlowKey, FlowLoad>,
    /// Requests in flight from this replica at the engine's last report.
    pub reported_requests: u64,
    /// Load in flight from other replicas.
    pub others: InFlight,
    /// Times from which a report is sure to cover the unwatched requests.
    pub unsettled: Due,
}

impl EndpointSlot {
    fn new(endpoint: &Arc<Endpoint>, epoch: u64) -> Self {
        Self {
            rank: endpoint.worker,
            endpoint: endpoint.clone(),
            epoch,
            generation: Generation(0),
            publishes_events: false,
            accepting: true,
            load: EngineLoad::default(),
            agent_worker: None,
            told: Profile::default(),
            lends_at: None,
            own: InFlight::default(),
            flows: FxHashMap::default(),
            reported_requests: 0,
            others: InFlight::default(),
            unsettled: Due::default(),
        }
    }

    /// Adds a request that counts for `tokens`.
    fn takes(&mut self, flow: FlowKey, request: &Request<'_>, tokens: u64) {
        let load = self.flows.entry(flow).or_insert_with(|| FlowLoad {
            fairness_id: request.fairness_id.into(),
            priority: request.priority,
            in_flight: InFlight::default(),
        });
        for in_flight in [&mut self.own, &mut load.in_flight] {
            in_flight.requests += 1;
            in_flight.tokens += tokens;
        }
    }

    /// Takes `tokens` off a request's load: they are computed.
    fn computes(&mut self, flow: FlowKey, tokens: u64) {
        let load = self.flows.get_mut(&flow).map(|load| &mut load.in_flight);
        for in_flight in [Some(&mut self.own), load].into_iter().flatten() {
            in_flight.tokens = in_flight.tokens.saturating_sub(tokens);
        }
    }

    /// Ends a request, of which `tokens` are left.
    fn releases(&mut self, flow: FlowKey, tokens: u64) {
        self.computes(flow, tokens);
        self.own.requests = self.own.requests.saturating_sub(1);
        if let Entry::Occupied(mut load) = self.flows.entry(flow) {
            let requests = &mut load.get_mut().in_flight.requests;
            *requests = requests.saturating_sub(1);
            if *requests == 0 {
                load.remove();
            }
        }
    }

    /// Load in flight from this replica, by flow.
    pub(crate) fn flows(&self) -> impl Iterator<Item = &FlowLoad> {
        self.flows.values()
    }

    /// Requests sent from this replica since the engine last reported, less those that ended: the
    /// report cannot have them.
    pub(crate) fn unreported(&self) -> u64 {
        self.own.requests.saturating_sub(self.reported_requests)
    }

    /// Its engine has just reported.
    pub(crate) fn reported(&mut self) {
        self.reported_requests = self.own.requests;
    }

    /// Keeps which adapters run, as a page of metrics says. It does not say which others could:
    /// no endpoint is ruled out by it.
    pub(crate) fn tell_adapters(&mut self, lora: Option<&Lora>) {
        let running = lora.map(|lora| lora.running.as_slice()).unwrap_or_default();
        let adapters = running.iter().map(|name| Adapter::new(name)).collect();
        let (max_adapters, fixed_adapters) = (0, false);
        // A page says nothing of an agent: the one that lent KV is heard no more.
        let (lends, told) = (None, take(&mut self.told));
        self.told = Profile { adapters, max_adapters, fixed_adapters, lends, ..told };
        self.lends_at = None;
    }

    /// Properties that requests may need of the endpoint. Its role is not among them: the profiles
    /// of plug-ins decide who does what of a request.
    pub(crate) fn profile(&self) -> Profile {
        let pod = self.endpoint.labels.iter();
        let pod = pod.map(|(key, value)| Label::new(&format!("{key}={value}")));
        let labels = pod.chain(self.told.labels.iter().copied()).collect();
        Profile { role: Role::Aggregated, labels, ..self.told.clone() }
    }

    /// Whether a request names this endpoint.
    fn is_called(&self, pin: Option<WorkerRank>) -> bool {
        pin.is_some() && [Some(self.rank), self.agent_worker].contains(&pin)
    }

    /// Whether the endpoints that a request names leave this one a part in it: who is not named
    /// may do only what nobody is named for.
    fn heeds(&self, pins: EndpointPins) -> bool {
        let roles = self.endpoint.roles;
        let called = self.is_called(pins.answer) || self.is_called(pins.prefill);
        let taken =
            (pins.answer.is_some() && roles.decode) || (pins.prefill.is_some() && roles.prefill);
        called || !taken
    }

    fn candidate(&self) -> Candidate<'_> {
        Candidate::new(&self.endpoint, &self.load, self.in_flight())
    }

    /// Load in flight from all replicas.
    pub(crate) fn in_flight(&self) -> InFlight {
        InFlight {
            requests: self.own.requests + self.others.requests,
            tokens: self.own.tokens + self.others.tokens,
        }
    }
}

/// All endpoints, in order of their identity.
#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<EndpointSlot>,
    epochs: u64,
    tiers: TierWeights,
    /// Changes of [`EndpointSlot::own`].
    own_version: u64,
}

impl Slots {
    /// No endpoints; blocks will be worth so much by where they lie.
    pub(crate) fn weighing(tiers: TierWeights) -> Self {
        Self { tiers, ..Self::default() }
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, EndpointSlot> {
        self.slots.iter()
    }

    pub(crate) fn get(&self, rank: WorkerRank) -> Option<&EndpointSlot> {
        self.position(rank).ok().map(|position| &self.slots[position])
    }

    pub(crate) fn get_mut(&mut self, rank: WorkerRank) -> Option<&mut EndpointSlot> {
        self.position(rank).ok().map(|position| &mut self.slots[position])
    }

    pub(crate) fn endpoint(&self, rank: WorkerRank) -> Option<Arc<Endpoint>> {
        self.position(rank).ok().map(|position| self.slots[position].endpoint.clone())
    }

    /// Keeps the endpoints that are in `endpoints` in the same life; returns the others.
    pub(crate) fn retain(&mut self, endpoints: &[Arc<Endpoint>]) -> Vec<WorkerRank> {
        let lives: rustc_hash::FxHashSet<_> =
            endpoints.iter().map(|endpoint| (endpoint.worker, &endpoint.uid)).collect();
        let stays =
            |slot: &EndpointSlot| lives.contains(&(slot.endpoint.worker, &slot.endpoint.uid));
        let left = self.slots.iter().filter(|slot| !stays(slot)).map(|slot| slot.endpoint.worker);
        let left: Vec<_> = left.collect();
        self.slots.retain(stays);
        self.own_version += left.len() as u64;
        left
    }

    /// Adds an endpoint, or updates what discovery tells of one. The slot, if it is new.
    pub(crate) fn insert(&mut self, endpoint: &Arc<Endpoint>) -> Option<&EndpointSlot> {
        match self.position(endpoint.worker) {
            Ok(position) => {
                self.slots[position].endpoint = endpoint.clone();
                None
            }
            Err(position) => {
                self.epochs += 1;
                self.slots.insert(position, EndpointSlot::new(endpoint, self.epochs));
                Some(&self.slots[position])
            }
        }
    }

    /// Differs whenever the load in flight from this replica does.
    pub(crate) fn own_version(&self) -> u64 {
        self.own_version
    }

    /// Notes a change of the load in flight that other slots do not show.
    pub(crate) fn own_changed(&mut self) {
        self.own_version += 1;
    }

    /// Adds a request that counts for `tokens` to an endpoint's load; the slot, if it is there.
    pub(crate) fn take(
        &mut self,
        rank: WorkerRank,
        request: &Request<'_>,
        tokens: u64,
    ) -> Option<&mut EndpointSlot> {
        let position = self.position(rank).ok()?;
        self.own_version += 1;
        let slot = &mut self.slots[position];
        slot.takes(FlowKey::of(request), request, tokens);
        Some(slot)
    }

    /// Takes `tokens` off the load of a request, where its slot is still there: they are computed.
    pub(crate) fn compute(&mut self, reservation: &Reservation, flow: FlowKey, tokens: u64) {
        if let Some(slot) = self.of(reservation) {
            slot.computes(flow, tokens);
            self.own_version += 1;
        }
    }

    /// Ends a request, of which `tokens` are left; the slot, if it is still there.
    pub(crate) fn release(
        &mut self,
        reservation: &Reservation,
        flow: FlowKey,
        tokens: u64,
    ) -> Option<&mut EndpointSlot> {
        self.own_version += u64::from(self.of(reservation).is_some());
        let slot = self.of(reservation)?;
        slot.releases(flow, tokens);
        Some(slot)
    }

    /// The header that names the agents which lend a prompt; `None` if nobody does.
    pub(crate) fn lenders(&self, holders: &[Holder]) -> Option<(&'static str, String)> {
        let known = holders.iter().filter_map(|holder| {
            Some((self.get(holder.worker)?.lends_at.as_deref()?, holder.blocks))
        });
        holders::written(known).map(|text| (KV_HOLDERS, text))
    }

    /// The slot in which a reservation was made, if it is still there.
    fn of(&mut self, reservation: &Reservation) -> Option<&mut EndpointSlot> {
        self.get_mut(reservation.rank).filter(|slot| slot.epoch == reservation.epoch)
    }

    /// The endpoints that a request may go to, with the placement core's findings, which are in
    /// order of the workers too. `prompt` is what an endpoint without any of it matches; without
    /// it nobody asks what endpoints hold.
    pub(crate) fn candidates(
        &self,
        request: &Request<'_>,
        surveyed: Option<&Survey<'_>>,
        prompt: Option<PrefixMatch>,
    ) -> Vec<Candidate<'_>> {
        // One for each slot, so that they are made where they stay.
        let mut candidates: Vec<_> = self.slots.iter().map(EndpointSlot::candidate).collect();
        if let (Some(surveyed), Some(prompt)) = (surveyed, prompt) {
            self.weigh(&mut candidates, surveyed, prompt);
        }
        let takes = |slot: &EndpointSlot| {
            let allows = |subset: &Subset| subset.allows(slot.endpoint.address);
            slot.accepting && request.subset.is_none_or(allows) && slot.heeds(request.pins)
        };
        let particular = request.is_particular();
        if particular || request.subset.is_some() || self.slots.iter().any(|slot| !slot.accepting) {
            let mut slots = self.slots.iter();
            // Costs are there wherever anything rules endpoints out.
            let mut costs =
                surveyed.filter(|_| particular).map(Survey::costs).into_iter().flatten();
            candidates.retain(|_| {
                let fits = costs.next().is_none_or(|cost| cost < f64::INFINITY);
                slots.next().is_some_and(takes) && fits
            });
        }
        candidates
    }

    /// # Errors
    ///
    /// [`ScheduleError::Unmet`] if an endpoint that a request names is not there, or takes nothing.
    pub(crate) fn check_pins(&self, pins: EndpointPins) -> Result<(), ScheduleError> {
        let takes = |pin| self.iter().any(|slot| slot.accepting && slot.is_called(Some(pin)));
        match [pins.answer, pins.prefill].into_iter().flatten().find(|pin| !takes(*pin)) {
            Some(worker) => Err(ScheduleError::Unmet(PickError::PinnedUnavailable { worker })),
            None => Ok(()),
        }
    }

    /// Tells a candidate of each slot what the placement core found.
    fn weigh(&self, candidates: &mut [Candidate<'_>], surveyed: &Survey<'_>, nothing: PrefixMatch) {
        let costs = surveyed.costs();
        debug_assert_eq!(costs.len(), candidates.len(), "the core knows every endpoint");
        for (candidate, cost) in candidates.iter_mut().zip(costs) {
            if cost < f64::INFINITY {
                (candidate.cost, candidate.precise) = (Some(cost), Some(nothing));
            }
        }
        for (worker, overlap) in surveyed.held() {
            let Ok(at) = self.position(worker) else { continue };
            if let Some(precise) = &mut candidates[at].precise {
                let weighted =
                    |medium: &Medium| self.tiers.of(*medium) * f64::from(overlap.on(*medium));
                precise.matched_blocks = overlap.blocks();
                precise.weighted_blocks = Medium::ALL.iter().map(weighted).sum();
            }
        }
    }

    fn position(&self, rank: WorkerRank) -> Result<usize, usize> {
        self.slots.binary_search_by_key(&rank, |slot| slot.rank)
    }
}
