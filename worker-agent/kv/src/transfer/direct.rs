//! Reads of another agent's arena that take none of that agent's processor time.
//!
//! The holder describes its arena once, and says for each lease in which slots the blocks are. The
//! reader then reads parts of slots by itself, by RDMA or shared memory.
//!
//! Nothing on that way proves who sent the bytes. In a fleet with a secret the reader therefore asks
//! the holder for the tag of each part that it read, which takes the holder a pass over the bytes
//! ([`FrameKind::Vouch`](super::wire::FrameKind::Vouch)). Without a secret, and against damage, there
//! is the checksum of the whole block, which came with the lease.

use std::ops::Range;
use std::time::Duration;

/// Bytes of an arena's description at most.
pub const DESCRIPTION_BYTES_MAX: usize = 64 << 10;
/// Bytes of one read at most.
pub const READ_BYTES_MAX: usize = 8 << 20;

/// A way to read other agents' arenas, and to let them read this one's.
pub trait DirectWay: Send + Sync {
    /// Bytes by which other agents find this agent's arena, at most [`DESCRIPTION_BYTES_MAX`].
    fn description(&self) -> &[u8];

    /// Finds the arena that these bytes describe. The call may take a second.
    ///
    /// # Errors
    ///
    /// The bytes describe no arena that can be reached.
    fn open(&self, description: &[u8]) -> Result<Box<dyn DirectArena>, DirectError>;
}

/// The arena of another agent.
pub trait DirectArena: Send {
    /// Reads parts of the arena, at most [`READ_BYTES_MAX`] together, and shows their bytes by place.
    /// Nothing is shown before all parts are there.
    ///
    /// # Errors
    ///
    /// A part is not in the arena, the other agent is gone, or it takes too long.
    fn read(
        &mut self,
        parts: &[Range<u64>],
        within: Duration,
        show: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), DirectError>;
}

/// Why an arena cannot be read directly. Its blocks can be asked for over TCP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DirectError(pub String);
