//! Observations of an engine by its agent.

/// Observation of an engine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Whether it could serve a request now.
    pub health: Health,
    /// Progress of each rank, in order; empty if unknown.
    pub progress: Vec<Progress>,
}

/// Whether an engine could serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The engine could serve.
    Ready,
    /// The engine could not; holds the wrong answer, or the lack of one.
    Unavailable(String),
}

/// Progress of one rank of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests in its batch, without those on hold, for example while the engine sleeps.
    pub running: u32,
    /// Steps or tokens so far: any number that changes with each step.
    pub counter: u64,
}
