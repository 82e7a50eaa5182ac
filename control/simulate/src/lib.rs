//! A fleet in virtual time: thousands of simulated workers, placed by the real placement core.
//!
//! One thread, one agenda of events, one seed: the same command gives the same answer to the
//! byte, so that policies can be compared and a fault, once seen, is seen again. It serves no
//! requests, and reads a clock only to show progress. Start reading at `world`; `engine` is the
//! worker, `policy` what is compared, `workload` what is asked.

mod args;
mod engine;
pub mod fuzz;
mod policy;
mod random;
mod recency;
mod report;
mod run;
mod settings;
mod time;
mod workload;
mod world;

pub use args::{InvalidArgs, SimulateArgs};
pub use run::run;
