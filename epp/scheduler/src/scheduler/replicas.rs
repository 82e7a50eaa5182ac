//! Messages about a pool between the replicas of a picker.

use super::Scheduler;
use crate::{InFlight, Time};
use stator_placement::PeerLoad;
use stator_protos::{Generation, WorkerRank};

impl Scheduler {
    /// End of the time for which a worker counts as holding a prompt that another replica sent
    /// there, for [`crate::Prefixes::predict`]; `None` where its events are enough.
    pub fn prediction_end(&mut self, rank: WorkerRank, now: Time) -> Option<Time> {
        self.placement.prediction_end(rank, now)
    }

    /// The endpoints that tell what they hold.
    pub fn tellers(&self) -> impl Iterator<Item = WorkerRank> {
        self.slots.iter().filter(|slot| slot.publishes_events).map(|slot| slot.endpoint.worker)
    }

    /// Whether what another replica knows of this life of a worker is wanted, for
    /// [`crate::Prefixes::restore`]: its own event feed has told of no other life and of no state. It
    /// counts until the feed tells.
    pub fn expects(&mut self, rank: WorkerRank, generation: Generation) -> bool {
        let Some(slot) = self.slots.get(rank) else { return false };
        if slot.publishes_events {
            return slot.generation == generation && !self.placement.index().is_known(rank);
        }
        self.set_life(rank, generation);
        self.prefixes.unknown(rank);
        true
    }

    /// Whether sessions have endpoints of their own.
    pub fn binds_sessions(&self) -> bool {
        self.placement.binds_sessions()
    }

    /// Another replica sent a request of a session to an endpoint.
    pub fn bind(&mut self, session: u64, rank: WorkerRank, now: Time) {
        self.placement.bind(session, rank, now);
    }

    /// A page of sessions with their endpoints, see [`stator_placement::Placement::sessions`].
    pub fn sessions(&self, from: usize, most: usize) -> Option<Vec<(u64, WorkerRank)>> {
        self.placement.sessions(from, most)
    }

    /// Sets the load of all other replicas at an endpoint.
    pub fn set_others(&mut self, rank: WorkerRank, others: PeerLoad) {
        let PeerLoad { requests, tokens, .. } = others;
        if let Some(slot) = self.slots.get_mut(rank) {
            slot.others = InFlight { requests, tokens };
        }
        self.placement.set_peers(rank, others);
    }

    /// Load in flight from this replica at each endpoint.
    pub fn own(&self, now: Time) -> impl Iterator<Item = (WorkerRank, PeerLoad)> {
        self.slots.iter().map(move |slot| {
            let (worker, InFlight { requests, tokens }) = (slot.endpoint.worker, slot.own);
            (worker, PeerLoad { requests, tokens, ..self.placement.booked(worker, now) })
        })
    }

    /// Differs whenever [`Scheduler::own`] does; 0 while nothing was ever in flight.
    pub fn own_version(&self) -> u64 {
        self.slots.own_version()
    }
}
