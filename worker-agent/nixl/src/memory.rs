//! Memory that transfers may touch.
#![allow(unsafe_code)]

use crate::agent_core::AgentCore;
use crate::handles::OwnedHandle;
use crate::library::{Functions, NixlError, check};
use stator_kv::SlotId;
use stator_kv::arena::Arena;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

/// Alignment of landings, which is that of the system's pages.
const ALIGNMENT: usize = 4096;

/// Kinds of memory, as the library numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// Memory of the host.
    Dram = 0,
    /// Bytes of a file.
    File = 4,
}

/// Memory that transfers may touch.
#[derive(Debug)]
pub enum NixlMemory {
    /// The whole arena.
    Arena(Arc<Arena>),
    /// Memory of this process, in which reads land.
    Landing(Landing),
    /// The first bytes of a file.
    File(File, usize),
}

/// Zeroed memory that nothing else has. It is read only by copies: transfers write it.
#[derive(Debug)]
pub struct Landing {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to no thread.
unsafe impl Send for Landing {}
// SAFETY: shared references only copy out of it.
unsafe impl Sync for Landing {}

impl Landing {
    /// Memory of so many bytes.
    ///
    /// # Panics
    ///
    /// There are no bytes, or too many for an address.
    pub fn new(bytes: usize) -> Self {
        let layout = layout(bytes);
        // SAFETY: the layout has bytes.
        let first = NonNull::new(unsafe { alloc_zeroed(layout) });
        Self { first: first.unwrap_or_else(|| handle_alloc_error(layout)), bytes }
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes out, from `start` on.
    ///
    /// # Panics
    ///
    /// There are not as many.
    pub fn copy_to(&self, start: usize, to: &mut [u8]) {
        let end = start.checked_add(to.len());
        assert!(end.is_some_and(|end| end <= self.bytes), "{start} + {} bytes", to.len());
        // SAFETY: within the memory, as was asserted; `to` is a reference, hence elsewhere.
        unsafe {
            to.as_mut_ptr().copy_from_nonoverlapping(self.first.add(start).as_ptr(), to.len())
        }
    }
}

fn layout(bytes: usize) -> Layout {
    assert!(bytes > 0, "a landing has bytes");
    Layout::from_size_align(bytes, ALIGNMENT).expect("a landing fits an address")
}

impl Drop for Landing {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { dealloc(self.first.as_ptr(), layout(self.bytes)) }
    }
}

/// Registered memory. Dropping it makes the library forget it.
#[derive(Debug)]
pub struct NixlRegion {
    agent: Arc<AgentCore>,
    descriptors: OwnedHandle,
    memory: NixlMemory,
}

impl NixlRegion {
    /// Makes memory known to an agent, which pins it where its back end needs that.
    pub(crate) fn register(agent: &Arc<AgentCore>, memory: NixlMemory) -> Result<Self, NixlError> {
        let library = agent.library();
        let kind = memory.kind() as i32;
        // SAFETY: writes a handle.
        let create = |of: &Functions, handle| unsafe { (of.create_reg_dlist)(kind, handle) };
        let descriptors =
            OwnedHandle::new(library, "create_reg_dlist", create, |of| of.destroy_reg_dlist)?;
        let (first, bytes, device) = memory.place();
        // SAFETY: all handles are valid. The memory stays as long as this value, which makes the
        // library forget it first.
        unsafe {
            let (list, of) = (descriptors.get(), &library.functions);
            check(
                "reg_dlist_add_desc",
                (of.reg_dlist_add_desc)(list, first, bytes, device, null(), 0),
            )?;
            check("register_mem", (of.register_mem)(agent.handle(), list, null_mut()))?;
        }
        Ok(Self { agent: agent.clone(), descriptors, memory })
    }

    /// The memory.
    pub fn memory(&self) -> &NixlMemory {
        &self.memory
    }
}

impl NixlMemory {
    pub(crate) fn kind(&self) -> MemoryKind {
        if matches!(self, Self::File(..)) { MemoryKind::File } else { MemoryKind::Dram }
    }

    /// The first address, the bytes, and the device, which for a file is its descriptor.
    pub(crate) fn place(&self) -> (usize, usize, u64) {
        match self {
            Self::Arena(arena) => {
                let bytes = arena.stride() * arena.slots() as usize;
                (arena.address(SlotId(0)).addr(), bytes, 0)
            }
            Self::Landing(landing) => (landing.first.addr().get(), landing.bytes, 0),
            Self::File(file, bytes) => (0, *bytes, file.as_raw_fd() as u64),
        }
    }
}

impl Drop for NixlRegion {
    fn drop(&mut self) {
        let of = &self.agent.library().functions;
        // SAFETY: registered by `register`, with the same list.
        let status =
            unsafe { (of.deregister_mem)(self.agent.handle(), self.descriptors.get(), null_mut()) };
        if status != 0 {
            tracing::debug!(status, "NIXL keeps memory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_landing_is_zero_at_first() {
        let landing = Landing::new(5000);
        let mut bytes = [1; 100];
        landing.copy_to(4900, &mut bytes);
        assert_eq!((landing.bytes(), bytes), (5000, [0; 100]));
    }

    #[test]
    #[should_panic(expected = "4901 + 100 bytes")]
    fn a_copy_beyond_the_landing_is_refused() {
        Landing::new(5000).copy_to(4901, &mut [0; 100]);
    }
}
