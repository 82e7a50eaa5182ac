//! Reads an engine's metrics page.
//!
//! A page has hundreds of lines of which a handful matter. [`Reader`] looks for those alone, where
//! they stood last time, and is for who reads many pages often; [`Mapping`] says which they are.

pub(crate) mod lines;
mod load;
mod mapping;
mod reader;
mod spec;

pub use load::{Adapters, CacheSize, PageLoad};
pub use mapping::{CacheMapping, EngineSpecs, Mapping, builtin};
pub use reader::{Incomplete, Reader};
pub use spec::{Spec, SpecError};
