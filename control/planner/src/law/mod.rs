//! Laws: the workers that a role needs, from its signals.

pub(crate) mod sla;
pub(crate) mod threshold;
