//! The scheduler chooses the endpoint of a pool for a request: a configured profile of filters,
//! scorers and a picker, as `EndpointPickerConfig` describes it.
//!
//! Pure: values in, values out. Time ([`Time`]) and randomness (a seed) are arguments; nothing
//! here opens a socket, reads a clock or knows Kubernetes or Envoy. A [`Scheduler`] is owned by
//! one pool and changed under that pool's lock, so that choosing and booking are one step.
//!
//! Start reading at [`Scheduler::schedule`], then [`plugin`] for what a plug-in is.

mod candidate;
mod cycle;
mod decision;
mod endpoint;
mod load;
pub mod plugin;
mod prefixes;
mod program;
mod request;
mod scheduler;
mod selector;
mod settings;
mod slot;
#[cfg(test)]
mod testkit;
mod tickets;
mod tiers;

pub use candidate::{Candidate, CandidateFindings, PredictedLatency, PrefixMatch};
pub use decision::{Call, Decision, ScheduleError};
pub use endpoint::{Endpoint, Roles};
pub use load::{CacheConfig, EngineLoad, Equipment, FlowLoad, InFlight, Lora};
pub use prefixes::Prefixes;
pub use program::{NamedPlugin, Profile, Program, Saturation};
pub use request::{EndpointPins, HeaderView, MultimodalItem, Prompt, Request, Subset, SubsetEntry};
pub use scheduler::{PoolStats, STALE, Scheduler};
pub use selector::{LabelSelector, LabelTest, Requirement};
pub use settings::SchedulerSettings;
pub use stator_placement::{Random, Time};
pub use tiers::TierWeights;
