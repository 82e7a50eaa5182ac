//! The end of an engine as its process shows it; [`crate::cause`] judges it.

use crate::memory::OomKills;

/// End of an engine, with the evidence for its cause.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) exit: Exit,
    /// Last lines of the output.
    pub(crate) tail: Vec<String>,
    /// Last line about memory, if it is recent.
    pub(crate) out_of_memory: Option<String>,
    /// Kills for want of memory meanwhile.
    pub(crate) kills: OomKills,
}

/// End of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}
