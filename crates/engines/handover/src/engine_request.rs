//! A request to one engine of a pair.

/// A request to an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineRequest {
    /// The body, JSON.
    pub body: Vec<u8>,
    /// Rank behind the engine's port that serves the request, if this process chooses it.
    pub rank: Option<u16>,
}

impl From<Vec<u8>> for EngineRequest {
    fn from(body: Vec<u8>) -> Self {
        Self { body, rank: None }
    }
}

/// A data-parallel rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DpRank {
    /// Below `count`.
    pub index: u16,
    /// All ranks of the engine, at least 1.
    pub count: u16,
}

/// A gap in prefill's answer, which has to say where the KV is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingParameters {
    /// The answer has no parameters.
    #[error("prefill answered without kv_transfer_params")]
    All,
    /// The parameters name no rank.
    #[error("prefill does not say on which of its pods' ranks it ran")]
    Rank,
}
