//! Reader for an engine's metrics page.
//!
//! A page has hundreds of lines of which a handful matter. [`Reader`] searches for those alone,
//! starting where they stood last time, and suits frequent reads of many pages; [`Mapping`] names
//! them.

pub(crate) mod lines;
mod load;
mod mapping;
mod reader;
mod spec;

pub use load::{Adapters, CacheSize, PageLoad};
pub use mapping::{CacheMapping, EngineSpecs, Mapping, builtin};
pub use reader::{Incomplete, Reader};
pub use spec::{Spec, SpecError};
