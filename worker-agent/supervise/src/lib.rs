//! Supervisor of one engine as a child process: starts it, reads its output, watches its health,
//! and restarts it.
//!
//! The engine gets a process group of its own, and nothing of that group outlives its supervisor. A
//! pure function of observations decides every step ([`life`]); [`Supervisor`] is the edge that
//! spawns, reads, waits and signals. The supervisor asks the engine nothing: the agent reports
//! health and progress with [`Supervisor::observe`].
//!
//! Start reading at [`Supervisor`], then [`life::Life`]; [`command`] has the command lines.

pub mod cause;
pub mod command;
mod ending;
pub mod life;
mod memory;
mod output;
pub mod phase;
pub mod ports;
mod process;
mod supervisor;

pub use cause::Cause;
pub use command::{CommandError, EngineCommand, Events, Key, KvTiers, Options, Recipe};
pub use life::{Event, Health, Observation, Policy, Progress, Stall, Stalls, State};
pub use phase::Phase;
pub use supervisor::Supervisor;
