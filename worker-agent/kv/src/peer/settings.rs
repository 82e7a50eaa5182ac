//! Bounds of the peer tier.

use std::time::Duration;

/// Bounds of the peer tier, for each peer where nothing else is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Connections to a peer while there is something to read. 1 to 16. Default: 2.
    pub streams: usize,
    /// Bytes of KV in a frame, 4 KiB to 1 MiB. Default: 512 KiB.
    pub frame_bytes: usize,
    /// Longest time from a read to its report. Default: 2 s.
    pub read_deadline: Duration,
    /// Longest silence of a peer that owes an answer. Default: 2 s.
    pub silence: Duration,
    /// Time after which a connection without work is closed. Default: 30 s.
    pub idle: Duration,
    /// Reads of each urgency that may wait. Others are refused. Default: 4096.
    pub queue_max: usize,
    /// Blocks that are leased together. Default: 256, at most
    /// [`crate::transfer::wire::NAMES_MAX`].
    pub batch_max: usize,
    /// Batches that are read at once. Half of them may be prefetched. Default: 8.
    pub batches_max: usize,
    /// Peers at once, 254 at most. Default: 64.
    pub peers_max: usize,
    /// Names of all peers of which the tier remembers who has them. Default: 262,144.
    pub hints_max: usize,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            streams: 2,
            frame_bytes: 512 << 10,
            read_deadline: Duration::from_secs(2),
            silence: Duration::from_secs(2),
            idle: Duration::from_secs(30),
            queue_max: 4096,
            batch_max: 256,
            batches_max: 8,
            peers_max: 64,
            hints_max: 1 << 18,
        }
    }
}
