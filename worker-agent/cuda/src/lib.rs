//! Copies of KV between device memory and arenas, by the CUDA driver where there is one.
//!
//! Nothing of CUDA is linked: the driver is looked for when the process runs ([`probe()`]), and
//! without it nothing here can be made. This is the only room that knows CUDA; its unsafe code is
//! in [`cuda`].
//!
//! The way of a copy: [`layout`] says where the bytes of a page are, [`fold`] and [`runs`] make a
//! plan of it, and a [`KvRoute`] gives the plan to streams of a [`driver`]: as runs of bytes, or by
//! a kernel ([`kernel`]) where pages lie in pieces too small for the copy engines. Plans are plain
//! functions and know no driver. [`copier`] does it for engines that export their memory to the agent.
//! Start reading at [`route`].

pub mod copier;
pub mod cuda;
pub mod driver;
pub mod fold;
pub mod kernel;
pub mod layout;
pub mod memory;
pub mod probe;
pub mod report;
pub mod route;
pub mod runs;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use copier::{CudaDevices, EngineCopier};
pub use memory::KvMemory;
pub use probe::probe;
pub use report::{CudaReport, NoCuda};
pub use route::{KvRoute, KvSide, RouteSettings, Transit};
