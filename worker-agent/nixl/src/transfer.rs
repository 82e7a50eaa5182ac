//! A transfer: pieces that are read from, or written to, the memory of an agent.
#![allow(unsafe_code)]

use crate::agent::{NixlAgent, RemoteAgent};
use crate::agent_core::AgentCore;
use crate::handles::OwnedHandle;
use crate::library::{Functions, NixlError, check};
use crate::memory::{MemoryKind, NixlRegion};
use std::ptr::null_mut;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two looks at a transfer that is not done.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// Direction of a transfer, as the library numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferWay {
    /// From the other side into own memory.
    Read = 0,
    /// From own memory to the other side.
    Write = 1,
}

/// A piece of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferPiece {
    /// First byte within the own region.
    pub local: usize,
    /// First address of the other side; for a file, the first byte.
    pub remote: u64,
    /// Bytes.
    pub bytes: usize,
}

/// The other side of a transfer.
#[derive(Clone, Copy, Debug)]
pub enum OtherSide<'a> {
    /// Memory of another agent.
    Agent(&'a RemoteAgent),
    /// A file that was registered with the same agent, here named by itself.
    File(&'a RemoteAgent, &'a NixlRegion),
}

/// A transfer that was posted. The region of its own side lives as long as it.
#[derive(Debug)]
pub struct NixlTransfer {
    core: Arc<AgentCore>,
    request: OwnedHandle,
    region: Arc<NixlRegion>,
    is_done: bool,
}

impl NixlTransfer {
    /// Starts a transfer.
    ///
    /// # Errors
    ///
    /// A piece leaves its region, or the library refuses: the other side did not register the
    /// memory, or is gone.
    pub fn post(
        agent: &NixlAgent,
        way: TransferWay,
        region: &Arc<NixlRegion>,
        other: OtherSide<'_>,
        pieces: &[TransferPiece],
    ) -> Result<Self, NixlError> {
        let core = agent.core();
        let (first, bytes, device) = region.memory().place();
        let is_within = |piece: &TransferPiece| {
            piece.local.checked_add(piece.bytes).is_some_and(|end| end <= bytes)
        };
        if pieces.is_empty() || !pieces.iter().all(is_within) {
            return Err(NixlError::Call { call: "create_xfer_req", status: -1 });
        }
        let local = pieces.iter().map(|piece| (first + piece.local, piece.bytes, device));
        let local = descriptors(core, region.memory().kind(), local)?;
        let (name, kind, device) = match other {
            OtherSide::Agent(agent) => (agent.name(), MemoryKind::Dram, 0),
            OtherSide::File(agent, file) => {
                (agent.name(), MemoryKind::File, file.memory().place().2)
            }
        };
        let remote = pieces.iter().map(|piece| (piece.remote as usize, piece.bytes, device));
        let remote = descriptors(core, kind, remote)?;
        // SAFETY: all handles are valid; the own pieces are within a region that lives as long as the
        // request. What the other side's pieces are, the library checks.
        let create = |of: &Functions, request| unsafe {
            let (local, remote) = (local.get(), remote.get());
            let (agent, name) = (core.handle(), name.as_ptr());
            (of.create_xfer_req)(agent, way as i32, local, remote, name, request, null_mut())
        };
        let library = core.library();
        let request =
            OwnedHandle::new(library, "create_xfer_req", create, |of| of.destroy_xfer_req)?;
        let mut transfer =
            Self { core: core.clone(), request, region: region.clone(), is_done: false };
        // SAFETY: valid handles.
        let status = unsafe {
            (library.functions.post_xfer_req)(core.handle(), transfer.request.get(), null_mut())
        };
        transfer.heed("post_xfer_req", status)?;
        Ok(transfer)
    }

    /// Whether all bytes are there.
    ///
    /// # Errors
    ///
    /// The transfer failed. Its target may hold anything.
    pub fn is_done(&mut self) -> Result<bool, NixlError> {
        if !self.is_done {
            let of = &self.core.library().functions;
            // SAFETY: valid handles.
            let status = unsafe { (of.get_xfer_status)(self.core.handle(), self.request.get()) };
            self.heed("get_xfer_status", status)?;
        }
        Ok(self.is_done)
    }

    /// Waits until all bytes are there; false if that takes too long.
    ///
    /// # Errors
    ///
    /// The conditions of [`NixlTransfer::is_done`].
    pub fn wait(&mut self, until: Instant) -> Result<bool, NixlError> {
        while !self.is_done()? {
            if Instant::now() >= until {
                return Ok(false);
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }

    /// The region of its own side.
    pub fn region(&self) -> &Arc<NixlRegion> {
        &self.region
    }

    fn heed(&mut self, call: &'static str, status: i32) -> Result<(), NixlError> {
        // 1 means that it is not done yet.
        self.is_done = status == 0;
        if status == 1 { Ok(()) } else { check(call, status) }
    }
}

impl Drop for NixlTransfer {
    fn drop(&mut self) {
        let of = &self.core.library().functions;
        // SAFETY: valid handles; the request is destroyed after this.
        let status = unsafe { (of.release_xfer_req)(self.core.handle(), self.request.get()) };
        if status != 0 {
            tracing::debug!(status, "NIXL keeps a transfer");
        }
    }
}

/// A list of pieces of one kind of memory.
fn descriptors(
    core: &AgentCore,
    kind: MemoryKind,
    pieces: impl Iterator<Item = (usize, usize, u64)>,
) -> Result<OwnedHandle, NixlError> {
    // SAFETY: writes a handle.
    let create = |of: &Functions, list| unsafe { (of.create_xfer_dlist)(kind as i32, list) };
    let library = core.library();
    let list = OwnedHandle::new(library, "create_xfer_dlist", create, |of| of.destroy_xfer_dlist)?;
    for (first, bytes, device) in pieces {
        // SAFETY: a valid handle; nothing is read or written here.
        let status =
            unsafe { (library.functions.xfer_dlist_add_desc)(list.get(), first, bytes, device) };
        check("xfer_dlist_add_desc", status)?;
    }
    Ok(list)
}
