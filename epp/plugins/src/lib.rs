//! The plug-ins that an `EndpointPickerConfig` can name, and the registry that builds them.
//!
//! A plug-in is found by its type name ([`find`]), its parameters are read strictly and with all
//! their errors at once ([`build`]), and the result says which places of a decision it can take.
//! Nothing here opens a socket, reads a clock or starts a task: what another room has to do for a
//! plug-in (scrape, tokenize, discover, queue) is handed on as checked [`settings`].
//!
//! Start reading at [`kinds`], then [`BuildContext`] for how plug-ins find each other.

mod admitters;
mod bytes;
mod context;
mod expiring;
mod filters;
mod handlers;
mod hub;
mod kind;
mod location;
mod lru;
mod params;
mod pickers;
mod producers;
mod registry;
mod reporter;
mod scorers;
mod session;
pub mod settings;
mod table;
#[cfg(test)]
mod testing;
mod topology;

pub use context::{BuildContext, KvCost, PrefixSource};
pub use kind::{Need, PluginKind, PluginPlace, Stability};
pub use registry::{Reference, build, find, kinds, needs, references};
pub use reporter::{AttributeReporter, ReportedAttribute};
pub use session::IdSource;
pub use table::why_missing;

/// Target of the spans of traces, as `runtime` names it; where no traces are kept they cost
/// nothing.
///
/// Source: names of spans and attributes of the llm-d router.
const SPANS: &str = "otel";
