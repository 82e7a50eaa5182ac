//! A pool's link to other replicas.

use crate::{Outbox, PoolId};
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;

/// A pool's link to other replicas.
#[derive(Debug)]
pub struct PoolLink {
    /// Outbox for what is sent from here.
    pub outbox: Outbox,
    /// The pool's number among replicas.
    pub id: PoolId,
    /// Number of its sessions, if these have workers: each is sent as a prompt of one block.
    pub sessions: Option<PoolId>,
}

impl PoolLink {
    /// A request of a session goes to a worker, which the next [`Outbox::stir`] tells.
    pub fn bound(&self, session: Option<u64>, worker: WorkerRank) {
        if let (Some(id), Some(session)) = (self.sessions, session) {
            self.outbox.sent(id, worker, &[SequenceHash(session)]);
        }
    }
}
