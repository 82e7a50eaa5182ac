//! State of a pool's endpoints.

use crate::tickets::{Due, FlowKey, Reservation};
use crate::{
    Candidate, Endpoint, EngineLoad, FlowLoad, InFlight, PrefixMatch, Request, Subset, TierWeights,
};
use rustc_hash::FxHashMap;
use stator_placement::Survey;
use stator_protos::kv_event::Medium;
use stator_protos::{Generation, WorkerRank};
use std::collections::hash_map::Entry;
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
            own: InFlight::default(),
            flows: FxHashMap::default(),
            reported_requests: 0,
            others: InFlight::default(),
            unsettled: Due::default(),
        }
    }

    /// Adds a request that counts for `tokens`.
    pub(crate) fn takes(&mut self, flow: FlowKey, request: &Request<'_>, tokens: u64) {
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
    pub(crate) fn computes(&mut self, flow: FlowKey, tokens: u64) {
        let load = self.flows.get_mut(&flow).map(|load| &mut load.in_flight);
        for in_flight in [Some(&mut self.own), load].into_iter().flatten() {
            in_flight.tokens = in_flight.tokens.saturating_sub(tokens);
        }
    }

    /// Ends a request, of which `tokens` are left.
    pub(crate) fn releases(&mut self, flow: FlowKey, tokens: u64) {
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
        let left = left.collect();
        self.slots.retain(stays);
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

    /// The slot in which a reservation was made, if it is still there.
    pub(crate) fn of(&mut self, reservation: &Reservation) -> Option<&mut EndpointSlot> {
        self.get_mut(reservation.rank).filter(|slot| slot.epoch == reservation.epoch)
    }

    /// The endpoints that a request may go to, with the placement core's findings, which are in
    /// order of the workers too. `block_size` is that core's.
    pub(crate) fn candidates(
        &self,
        request: &Request<'_>,
        surveyed: Option<&Survey<'_>>,
        block_size: u32,
    ) -> Vec<Candidate<'_>> {
        let total_blocks = request.prompt.tokens.checked_div(block_size).unwrap_or_default();
        // One for each slot, so that they are made where they stay.
        let mut candidates: Vec<_> = self.slots.iter().map(EndpointSlot::candidate).collect();
        if let Some(surveyed) = surveyed {
            self.weigh(&mut candidates, surveyed, (total_blocks, block_size));
        }
        let takes = |slot: &EndpointSlot| {
            let allows = |subset: &Subset| subset.allows(slot.endpoint.address);
            slot.accepting && request.subset.is_none_or(allows)
        };
        if request.subset.is_some() || self.slots.iter().any(|slot| !slot.accepting) {
            let mut slots = self.slots.iter();
            candidates.retain(|_| slots.next().is_some_and(takes));
        }
        candidates
    }

    /// Tells a candidate of each slot what the placement core found.
    fn weigh(
        &self,
        candidates: &mut [Candidate<'_>],
        surveyed: &Survey<'_>,
        (total_blocks, block_size): (u32, u32),
    ) {
        let nothing = PrefixMatch { total_blocks, block_size, ..PrefixMatch::default() };
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
