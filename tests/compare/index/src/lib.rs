//! Measures our KV index beside the ones that Dynamo publishes, one trial a process.
//!
//! `run` beside this crate's manifest calls the program; README.md says what is measured and how.
//! It never becomes a part of the product. Start reading at [`subject`], what an index must offer
//! here, and at the modules of [`measure`].

pub mod alloc;
pub mod corpus;
pub mod dynamo;
pub mod fleet;
pub mod lru;
pub mod machine;
pub mod measure;
pub mod ours;
pub mod random;
pub mod record;
pub mod report;
pub mod stats;
pub mod subject;
pub mod trace;
