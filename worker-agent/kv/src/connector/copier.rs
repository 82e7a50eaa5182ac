//! Copies between engines' device memory and the arena that the agent does for engines.

use super::wire::DeviceExport;
use crate::arena::Arena;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A driver of devices that copies for engines. Its calls may block, on threads of their own.
pub trait DeviceCopier: Send + Sync {
    /// Maps memory that an engine exported, and makes the arena known to its device.
    ///
    /// # Errors
    ///
    /// There is no driver, no such device or memory, or its pages do not fit into slots.
    fn open(
        &self,
        export: &DeviceExport,
        file: Option<OwnedFd>,
        arena: &Arc<Arena>,
    ) -> Result<DeviceMemoryId, CopyRefusal>;

    /// Copies pages, after the events of the memories, and waits until the bytes are there. After an
    /// error nothing is on its way either.
    ///
    /// # Errors
    ///
    /// A page is not there, or the driver refuses. Targets may hold anything.
    fn copy(&self, from: CopyEnd, to: CopyEnd, pairs: &[(u32, u32)]) -> Result<(), CopyRefusal>;

    /// Gives mapped memory back. No copy from or to it runs any more.
    fn close(&self, memory: DeviceMemoryId);
}

/// Number of mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceMemoryId(pub u64);

/// Source or target of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    /// Slots of the arena that the memory at the other end was opened with.
    Slots,
    /// Pages of mapped memory.
    Pages(DeviceMemoryId),
}

/// Reason why the agent does not copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CopyRefusal(pub String);
