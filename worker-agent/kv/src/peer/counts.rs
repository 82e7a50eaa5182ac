//! Counts of what the peer tier did.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Work of the peer tier since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// Blocks that were read.
    pub blocks: u64,
    /// Bytes of KV in them.
    pub bytes: u64,
    /// Blocks that no peer had any more.
    pub missing: u64,
    /// Blocks whose checksum was wrong.
    pub corrupt: u64,
    /// Frames that were forged, damaged or of another secret.
    pub forged: u64,
    /// Blocks that did not come for other reasons: a dead peer, a deadline, a full queue.
    pub failed: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Frames that were read straight from a peer's arena.
    pub direct: u64,
}

/// Counters behind [`PeerCounts`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) blocks: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) missing: AtomicU64,
    pub(super) corrupt: AtomicU64,
    pub(super) forged: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) direct: AtomicU64,
}

impl Counters {
    pub(super) fn counts(&self) -> PeerCounts {
        PeerCounts {
            blocks: self.blocks.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            missing: self.missing.load(Relaxed),
            corrupt: self.corrupt.load(Relaxed),
            forged: self.forged.load(Relaxed),
            failed: self.failed.load(Relaxed),
            connections: self.connections.load(Relaxed),
            direct: self.direct.load(Relaxed),
        }
    }
}
