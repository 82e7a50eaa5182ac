//! Runs one engine as a child process: starts it, reads what it prints, sees whether it works, and
//! starts it again.
//!
//! The engine gets a process group of its own, and nothing of that group outlives its supervisor.
//! What is decided, and when, is a pure function of what was seen ([`life`]); [`Supervisor`] is
//! the edge that spawns, reads, waits and signals. It asks the engine nothing: whoever talks to it
//! reports health and progress with [`Supervisor::observe`].
//!
//! Start reading at [`Supervisor`], then [`life::Life`]; [`command`] has the command lines.

pub mod cause;
pub mod command;
pub mod life;
mod memory;
mod output;
pub mod phase;
pub mod ports;
mod process;
mod supervisor;

pub use cause::Cause;
pub use command::{CommandError, EngineCommand, Events, Key, Options, Recipe};
pub use life::{Event, Health, Observation, Policy, Progress, Stall, Stalls, State};
pub use phase::Phase;
pub use supervisor::Supervisor;
