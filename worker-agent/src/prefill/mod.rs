//! Other agents that compute prompts: who they are, and how they are asked.

pub(crate) mod agents;
pub(crate) mod registered;
