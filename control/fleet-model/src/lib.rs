//! A fleet in virtual time: thousands of simulated workers, placed by the real placement core.
//!
//! One thread, one agenda of events, one seed: equal input gives equal output to the byte, so that
//! policies can be compared and a fault, once seen, is seen again. The model serves no requests,
//! reads no clock and prints nothing. Start reading at [`World`]; `engine` is the worker, `policy`
//! what is compared, `workload` what is asked.
//!
//! A fleet may grow and shrink while it runs:
//!
//! ```
//! use stator_fleet_model::time::{MS, SECOND};
//! use stator_fleet_model::{
//!     FleetSettings, Mix, PolicyKind, Role, Sides, SyntheticWorkload, Workload, World,
//! };
//!
//! let sides = Sides { aggregated: 1, ..Sides::default() };
//! let settings = FleetSettings::new(&stator_timing::PRESETS[0], sides);
//! let mix = SyntheticWorkload { mix: Mix::Chat, rate: 20.0, adapters: 0, block_size: 128 };
//! let workload = Workload::synthetic(mix, 300, 1);
//! let mut world = World::new(&settings, &workload, PolicyKind::Stator);
//! let mut end = SECOND;
//! while world.run_until(end)? {
//!     let state = world.state();
//!     let wanted = 1 + (state.aggregated.waiting + state.aggregated.running) / 16;
//!     world.resize(Role::Aggregated, wanted, 500 * MS);
//!     end += SECOND;
//! }
//! let observations = world.finish()?;
//! assert!(observations.requests.iter().all(|request| request.complete));
//! # Ok::<(), stator_fleet_model::Violation>(())
//! ```

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

pub use engine::block::BlockId;
pub use engine::{DiskLimits, EngineLimits, ObjectLimits, PeerLimits, TierLimits, TierTotals};
pub use outcome::{FleetPoint, RequestSpan, RunOutcome, TimeSummary};
pub use policy::{PolicyKind, WorkerNumber};
pub use settings::{
    Adapters, Edges, Exchange, FaultSettings, FleetSettings, RoleEngine, Sides, Slo, Transfer,
    one_policy_queue,
};
pub use stator_placement::Role;
pub use workload::{
    ArrivalTime, Class, FixedWorkload, Mix, Replay, SyntheticWorkload, TRACE_BLOCK, Workload,
    WorkloadError, WorkloadRequest,
};
pub use world::{
    Bar, FleetState, FleetTotals, Observations, RequestMeasurement, RoleState, Sample, Violation,
    WorkerState, World,
};
