//! `stator simulate`: placement policies compared on a fleet in virtual time.
//!
//! The fleet itself is `stator-fleet-model`; this crate has the command line, the sweep over
//! policies and seeds, and the reports. It reads a clock only to show progress. Start reading at
//! [`run`].

mod args;
mod report;
mod run;
#[cfg(test)]
mod tests;

pub use args::{InvalidArgs, SimulateArgs};
pub use run::run;
