//! What somebody who talks to an engine sees of it.

/// What was seen of an engine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Whether it could serve a request now.
    pub health: Health,
    /// What each of its ranks is doing, in order; none where that could not be found out.
    pub progress: Vec<Progress>,
}

/// Whether an engine could serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It could.
    Ready,
    /// It could not, and this is what it answered, or that it did not.
    Unavailable(String),
}

/// What a rank of an engine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests in its batch. Those that it was told to hold, as while it sleeps, do not count.
    pub running: u32,
    /// Steps or tokens so far: any number that changes whenever it takes a step.
    pub counter: u64,
}
