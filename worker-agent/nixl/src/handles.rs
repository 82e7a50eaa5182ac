//! Handles that are given back when they are dropped.
#![allow(unsafe_code)]

use crate::library::{Functions, Handle, NixlError, NixlLibrary, Status, check};
use std::ptr::null_mut;
use std::sync::Arc;

/// A handle, and the function that gives it back.
#[derive(Debug)]
pub(crate) struct OwnedHandle {
    library: Arc<NixlLibrary>,
    handle: Handle,
    destroy: fn(&Functions) -> unsafe extern "C" fn(Handle) -> Status,
}

// SAFETY: handles belong to no thread. Agents are made for calls from several threads, and the other
// kinds have one owner, who calls with them.
unsafe impl Send for OwnedHandle {}
// SAFETY: as above.
unsafe impl Sync for OwnedHandle {}

impl OwnedHandle {
    /// A handle that `create` writes.
    pub(crate) fn new(
        library: &Arc<NixlLibrary>,
        call: &'static str,
        create: impl FnOnce(&Functions, *mut Handle) -> Status,
        destroy: fn(&Functions) -> unsafe extern "C" fn(Handle) -> Status,
    ) -> Result<Self, NixlError> {
        let mut handle = null_mut();
        check(call, create(&library.functions, &raw mut handle))?;
        Ok(Self { library: library.clone(), handle, destroy })
    }

    pub(crate) fn get(&self) -> Handle {
        self.handle
    }
}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        let destroy = (self.destroy)(&self.library.functions);
        // SAFETY: made by the library, and nobody has it any more.
        let status = unsafe { destroy(self.handle) };
        if status != 0 {
            tracing::debug!(status, "NIXL keeps a handle");
        }
    }
}
