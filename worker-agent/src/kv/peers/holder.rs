//! Agents that are said to hold a prompt.

use stator_protos::worker;

/// An agent that is said to hold the leading blocks of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KvHolder {
    /// `host:port` where it lends them.
    pub(crate) address: String,
    /// Number of the blocks.
    pub(crate) blocks: usize,
}

impl KvHolder {
    /// The holder as another agent is told of it.
    pub(crate) fn told(&self) -> worker::KvHolder {
        let blocks = u32::try_from(self.blocks).unwrap_or(u32::MAX);
        worker::KvHolder { address: self.address.clone(), blocks }
    }
}
