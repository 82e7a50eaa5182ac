//! Changes of the fleet, for whoever speaks for its models.

use std::sync::Arc;

/// A change in the fleet that concerns the speaker for a model.
#[derive(Debug)]
pub enum FleetEvent<Pool> {
    /// A model is there for the first time, or again with another description.
    ModelUp {
        /// Its workers, now and later.
        pool: Arc<Pool>,
        /// Its tokenizer, templates and defaults, by base name.
        files: Vec<(String, Vec<u8>)>,
    },
    /// The fleet has been looked at, and the models found were announced, or took too long for
    /// that. What was not announced before this is not there.
    Settled,
    /// A model is forgotten, because its last worker left long ago.
    ModelDown {
        /// Its pool, whose requests were sent away.
        pool: Arc<Pool>,
    },
}
