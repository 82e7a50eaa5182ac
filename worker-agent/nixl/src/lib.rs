//! Reads of other agents' arenas by NIXL, whose library is loaded where it is installed.
//!
//! Nothing of NIXL is linked: [`NixlLibrary::open`] loads the file that an operator names, for
//! example the one that the package `nixl-cu13` installs. NIXL moves bytes by RDMA where there is
//! some, by shared memory within a node, and by TCP otherwise. Start reading at [`way`], which the
//! tier of other agents uses; [`agent`] and [`transfer`] wrap the library.

pub mod agent;
mod agent_core;
mod description;
mod handles;
mod library;
pub mod memory;
pub mod transfer;
pub mod way;

pub use agent::NixlAgent;
pub use agent_core::NixlBackend;
pub use description::ArenaDescription;
pub use library::{NixlError, NixlLibrary};
pub use way::NixlWay;
