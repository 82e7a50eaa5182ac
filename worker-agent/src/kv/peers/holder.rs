//! Agents that are said to hold a prompt.

/// An agent that is said to hold the leading blocks of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KvHolder {
    /// `host:port` where it lends them.
    pub(crate) address: String,
    /// Number of the blocks.
    pub(crate) blocks: usize,
}
