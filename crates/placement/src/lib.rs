//! Placement of requests: the KV index, the load in flight, and the cost of each choice.
//!
//! Pure: this crate never opens a socket, reads a clock, draws a random number or waits for
//! anybody. Time ([`Time`]) and randomness (a seed) are arguments, so that the same calls give the
//! same answers. Start reading at [`Placement::pick`].

mod blocks;
mod constraint;
mod cost;
mod deadlines;
mod decision;
mod fleet;
mod learn;
mod mode;
mod placement;
pub mod profile;
mod random;
mod reuse;
mod running;
mod sessions;
mod settings;
mod sources;
mod split;
mod tracker;
mod work;

pub use blocks::{Blocks, PromptOverlaps};
pub use constraint::{
    Adapter, Constraint, Label, Level, Needs, Profile, Role, Topology, preference,
};
pub use cost::{
    CostModel, InvalidWeight, InvalidWeights, Overrides, Prediction, Score, TimeWeights,
    UnknownCostModel, WeightSettings, Weights,
};
pub use decision::{Candidate, Decision, Leg, PickError, PlacementRequest, Reason};
pub use fleet::{Fleet, Worker, WorkerState};
pub use learn::Speed;
pub use mode::{Mode, UnknownMode};
pub use placement::{Placement, PlacementStats, Survey};
pub use random::{Random, SeedSequence};
pub use reuse::{Holder, Holders};
pub use sessions::{Affinity, SessionSettings};
pub use settings::{BusyThresholds, PlacementSettings};
pub use sources::{PrefixSources, PromptSources};
pub use split::{Nearness, Split, SplitReason, UncachedThreshold};
pub use stator_kv_index::{
    Closure, EventEffect, Index, IndexSettings, Overlap, Overlaps, PredictionPolicy, Time,
    WorkerHoldings,
};
pub use tracker::{BookingId, InFlight, PeerLoad};
