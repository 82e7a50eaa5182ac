//! Measured times of an engine's operations, from the tables of the Python wheel
//! `aiconfigurator-core`.
//!
//! The wheel has a Parquet file for each GPU, engine, version and kind of operation. A row is one
//! shape of the operation and its time on one GPU. [`TablesFolder`] finds the files, and
//! [`EngineTables`] reads those of one engine and answers for shapes between the rows. Nothing here
//! knows a model or a step: `stator-plan` adds the operations up. Start reading at
//! [`EngineTables`].

mod attention;
mod error;
mod experts;
mod file;
mod folder;
mod latent;
mod products;
mod reduce;
mod surface;
mod tables;
mod version;

pub use attention::{AttentionShape, KvFormat};
pub use error::TableError;
pub use experts::ExpertShape;
pub use folder::TablesFolder;
pub use latent::LatentShape;
pub use surface::Surface;
pub use tables::{EngineTables, TableNeeds, TableSource};
