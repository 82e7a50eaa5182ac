//! The endpoint picker: an Envoy ext-proc server that answers for every request of an
//! `InferencePool` which endpoint takes it.
//!
//! Start reading at [`director`] for the request path, then [`exchange`] for what passes between a
//! data plane and the picker.

mod answer;
pub mod config;
pub mod director;
pub mod exchange;
pub mod ext_proc;
mod flow;
pub mod headers;
pub mod health;
mod late;
mod metered;
pub mod observe;
mod parsed_request;
mod place;
mod plan;
pub mod pool;
mod prompt;
mod ready;
mod refuse;
mod replicas;
mod run;
mod signals;
mod tenant;
mod text;
mod unasked;
mod usage;
mod watch;

pub use run::run;
