//! A request on its way into a queue.

use crate::bounds::QueueUsage;
use crate::entry::FlowId;

/// A request that has come, before it is let in.
pub(super) struct QueueArrival {
    pub(super) now: u64,
    /// Position of its band.
    pub(super) rank: usize,
    pub(super) flow: FlowId,
    pub(super) deadline: u64,
    pub(super) one: QueueUsage,
}
