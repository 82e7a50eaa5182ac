//! `stator bench`: a load generator and trace replay against any OpenAI-compatible endpoint.
//!
//! It issues requests (closed loop, Poisson arrivals, conversations or a recorded trace), reads
//! the streamed answers, and reports throughput, latencies, goodput, reuse of cached tokens and
//! what the measured processes cost. It never judges an answer's text, and it knows nothing of
//! the server behind the address beyond the OpenAI protocol.
//!
//! Start reading at [`run::measure`]: it is one measurement from top to bottom. [`workload`]
//! decides what is sent and when, [`client`] sends it, [`record`] keeps what came of it, and
//! [`report`] shows it.

pub mod args;
pub mod client;
pub mod fuzz;
pub mod histogram;
pub mod process;
pub mod profile;
mod progress;
pub mod record;
pub mod report;
pub mod run;
mod runner;
mod seed;
pub mod series;
pub mod sse;
pub mod workload;

pub use args::{BenchArgs, BenchCommand, CompareArgs, LoadArgs, ProfileArgs};

use anyhow::Result;

/// Runs `stator bench`: a measurement, with `--profile` the profile of an engine, or with the
/// subcommand `compare` a table of earlier measurements.
///
/// # Errors
///
/// When the arguments contradict each other, a file cannot be read or written, the endpoint does
/// not answer, or not one request succeeded (after the report has been written).
pub async fn run(args: BenchArgs) -> Result<()> {
    match (&args.command, &args.profile.profile) {
        (Some(BenchCommand::Compare(compare)), _) => report::compare::run(compare),
        (None, Some(file)) => profile::run(&args, file).await,
        (None, None) => run::run(&args.load).await,
    }
}
