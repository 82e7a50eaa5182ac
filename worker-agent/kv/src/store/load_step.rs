//! A step of a plan to load what is behind the ready blocks of a prompt.

use crate::cost::LoadSource;
use crate::{Block, SlotId};

/// A block behind the ready ones of a prompt, and its source.
pub(super) struct LoadStep {
    pub(super) block: Block,
    /// Its slot, if it is in host memory or on its way there.
    pub(super) slot: Option<SlotId>,
    pub(super) source: LoadSource,
}
