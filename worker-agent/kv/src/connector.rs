//! Engines in other processes that keep KV in the agent's arena.
//!
//! [`wire`] says who sends what and when. [`ConnectorServer`] has a thread that accepts and sees
//! engines die, one for each connection, and one more for each scheduler that fills slots.
//!
//! - `serve`: a connection from HELLO to its end. - `session`: what a scheduler wants of the cache.
//! - `filler`: checksums of what it filled, and new grants. - `outbox`: answers, in order.
//! - `words`: tokens of blocks, by which routers name them. - `presence`: who can load what is held.
//! - `uses`: what requests got, for their traces.
//! - `form`: KV that no agent can keep. - `copier`, `counted`, `device`: copies from and to devices that
//!   the agent does for workers.
//! - `quarantine`: what lost engines may still touch. - `socket`: the system's part.

pub mod copier;
mod counted;
mod decode;
#[cfg(target_os = "linux")]
mod device;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
mod encode;
#[cfg(target_os = "linux")]
mod filler;
#[cfg(target_os = "linux")]
mod form;
pub mod names;
#[cfg(target_os = "linux")]
mod outbox;
#[cfg(target_os = "linux")]
mod presence;
#[cfg(target_os = "linux")]
mod quarantine;
#[cfg(target_os = "linux")]
mod serve;
#[cfg(target_os = "linux")]
mod server;
#[cfg(target_os = "linux")]
mod session;
mod settings;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(test)]
mod tests;
mod uses;
pub mod wire;
#[cfg(target_os = "linux")]
mod words;

pub use counted::CountedCopier;
pub use decode::MessageError;
#[cfg(not(target_os = "linux"))]
pub use elsewhere::ConnectorServer;
#[cfg(target_os = "linux")]
pub use server::ConnectorServer;
pub use settings::{
    AskHint, CacheOpener, ConnectorReport, ConnectorSettings, EngineChange, EngineWatch, HintTaker,
    KeyBook, SchedulerReport,
};
pub use uses::{AskUse, NotedPlace, UseTaker};
