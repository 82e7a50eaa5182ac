//! A fleet in virtual time: thousands of simulated workers, placed by the real placement core.
//!
//! One thread, one agenda of events, one seed: equal input gives equal output to the byte, so that
//! policies can be compared and a fault, once seen, is seen again. The model serves no requests,
//! reads no clock and prints nothing. Start reading at [`World`]; `engine` is the worker, `policy`
//! what is compared, `workload` what is asked.

mod engine;
pub mod fuzz;
mod outcome;
mod policy;
mod random;
mod recency;
mod settings;
pub mod time;
mod workload;
mod world;

pub use engine::EngineLimits;
pub use engine::pool::BlockId;
pub use outcome::{FleetPoint, RequestSpan, RunOutcome, TimeSummary};
pub use policy::{PolicyKind, WorkerNumber};
pub use settings::{
    Adapters, Edges, Exchange, FaultSettings, FleetSettings, Sides, Slo, Transfer, one_policy_queue,
};
pub use workload::{
    ArrivalTime, Class, Mix, Replay, SyntheticWorkload, TRACE_BLOCK, Workload, WorkloadError,
    WorkloadRequest,
};
pub use world::{Bar, Observations, RequestMeasurement, Sample, Violation, World};
