//! Counts of blocks.

use serde::Serialize;

/// Blocks that the tiers gave and took, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TierTotals {
    /// Blocks that came from host memory.
    pub host: u64,
    /// Blocks that came from the disk.
    pub disk: u64,
    /// Blocks that came from the object store.
    pub objects: u64,
    /// Blocks that came from other workers.
    pub peers: u64,
    /// Blocks written to host memory.
    pub host_written: u64,
    /// Blocks written to the disk.
    pub disk_written: u64,
    /// Blocks written to the object store.
    pub objects_written: u64,
}

impl std::ops::AddAssign for TierTotals {
    fn add_assign(&mut self, other: Self) {
        self.host += other.host;
        self.disk += other.disk;
        self.objects += other.objects;
        self.peers += other.peers;
        self.host_written += other.host_written;
        self.disk_written += other.disk_written;
        self.objects_written += other.objects_written;
    }
}
