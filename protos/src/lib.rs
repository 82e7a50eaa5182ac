//! Contracts between two stator processes: the request plane's services, the wire format of KV
//! events and load reports, hashes and names of blocks, discovery records, and words.
//!
//! This crate never does I/O and decides nothing. Start reading at `proto/stator/worker/v1` for the
//! request plane and at [`kv_event`] for the event plane.

pub mod discovery;
pub mod duration;
pub mod hash;
pub mod header;
pub mod holders;
pub mod kv_event;
pub mod load;
pub mod logprobs;
mod msgpack;
pub mod name;
pub mod sampling;
pub mod text;
pub mod topic;

/// Generated types of the request plane (`stator.worker.v1`).
///
/// The words between proxy, fleet and agent. [`worker::Sampling`] goes further: APIs write it and
/// engines read it, see [`sampling`]. Otherwise engines, dialects, `placement` and `model` have types
/// of their own.
pub mod worker {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("stator.worker.v1");

    /// Holders of KV that a request names at most: `Submit.kv_holders`.
    pub const KV_HOLDERS_MAX: usize = 4;
    /// Bytes of a holder's address at most.
    pub const KV_HOLDER_ADDRESS_MAX_BYTES: usize = 256;
}

/// Generated types of what replicas of whoever places requests tell each other (`stator.peers.v1`).
///
/// They stop at the edges that speak gRPC; no other module names them.
pub mod peers {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("stator.peers.v1");
}

/// Generated types of KServe's open inference protocol (`inference`).
///
/// They stop at the proxy's edge that speaks it; no other module names them.
pub mod inference {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("inference");
}

use serde::{Deserialize, Serialize};
use std::fmt;

/// Identity of a worker: one running instance of an engine. A restarted worker keeps it and gets
/// a new [`Generation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub u64);

/// One data-parallel part of a worker: the unit that requests are placed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkerRank {
    /// The worker.
    pub worker: WorkerId,
    /// Its data-parallel rank, 0 where there is only one.
    pub rank: u16,
}

/// One life of a worker. Later lives have larger numbers; event numbers count within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for WorkerRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.worker, self.rank)
    }
}
