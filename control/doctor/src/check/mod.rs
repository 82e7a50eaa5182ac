//! The judgement: facts in, findings out. Nothing here reads anything.

pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod engine;
pub(crate) mod machine;
pub(crate) mod model;
