//! What every stator process does alike: configuration, logs, metrics, the side server for
//! operators, and shutdown.
//!
//! This crate knows nothing of models, workers or requests. Start reading at [`config`].

pub mod admin;
pub mod config;
pub mod log;
pub mod metrics;
pub mod shutdown;

pub use shutdown::Shutdown;
