//! An agent of NIXL: one back end, registered memory, and the agents that it has met.
#![allow(unsafe_code)]

use crate::agent_core::{AgentCore, NixlBackend};
use crate::library::{Handle, NixlError, NixlLibrary, check};
use crate::memory::{NixlMemory, NixlRegion};
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null_mut, slice_from_raw_parts};
use std::sync::Arc;

/// An agent of NIXL in this process.
#[derive(Clone, Debug)]
pub struct NixlAgent {
    core: Arc<AgentCore>,
}

/// Another agent, which this one has met. Dropping it makes this agent forget it.
#[derive(Debug)]
pub struct RemoteAgent {
    core: Arc<AgentCore>,
    name: CString,
}

impl NixlAgent {
    /// An agent with one back end. The name must differ from those of all agents that it meets.
    ///
    /// # Errors
    ///
    /// The library refuses: most often, the back end's plug-in lacks something.
    pub fn new(
        library: &Arc<NixlLibrary>,
        name: &str,
        backend: NixlBackend,
    ) -> Result<Self, NixlError> {
        Ok(Self { core: Arc::new(AgentCore::new(library, name, backend)?) })
    }

    /// Makes memory known, so that transfers may touch it.
    ///
    /// # Errors
    ///
    /// The back end refuses, for example because it cannot pin as much.
    pub fn register(&self, memory: NixlMemory) -> Result<NixlRegion, NixlError> {
        NixlRegion::register(&self.core, memory)
    }

    /// Bytes by which other agents meet this one and find what it has registered.
    ///
    /// # Errors
    ///
    /// The library refuses.
    pub fn metadata(&self) -> Result<Vec<u8>, NixlError> {
        let of = &self.core.library().functions;
        let (mut data, mut length) = (null_mut::<c_void>(), 0);
        // SAFETY: writes address and length of memory that the caller frees.
        unsafe {
            check(
                "get_local_md",
                (of.get_local_md)(self.handle(), &raw mut data, &raw mut length),
            )?;
            if data.is_null() {
                return Err(NixlError::Call { call: "get_local_md", status: -1 });
            }
            let bytes = (*slice_from_raw_parts(data.cast::<u8>(), length)).to_vec();
            libc::free(data);
            Ok(bytes)
        }
    }

    /// Meets the agent that these bytes are of.
    ///
    /// # Errors
    ///
    /// The bytes are none of an agent that this one can reach.
    pub fn meet(&self, metadata: &[u8]) -> Result<RemoteAgent, NixlError> {
        let of = &self.core.library().functions;
        let mut name = null_mut();
        // SAFETY: reads so many bytes, and writes the address of a text that the caller frees.
        let name = unsafe {
            let (data, length) = (metadata.as_ptr().cast(), metadata.len());
            let loaded = (of.load_remote_md)(self.handle(), data, length, &raw mut name);
            check("load_remote_md", loaded)?;
            if name.is_null() {
                return Err(NixlError::Call { call: "load_remote_md", status: -1 });
            }
            let text = CStr::from_ptr(name).to_owned();
            libc::free(name.cast());
            text
        };
        Ok(RemoteAgent { core: self.core.clone(), name })
    }

    /// This agent as one to meet, for transfers between its own memory and files.
    pub fn itself(&self) -> RemoteAgent {
        RemoteAgent { core: self.core.clone(), name: self.core.name.clone() }
    }

    pub(crate) fn core(&self) -> &Arc<AgentCore> {
        &self.core
    }

    fn handle(&self) -> Handle {
        self.core.handle()
    }
}

impl RemoteAgent {
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }
}

impl Drop for RemoteAgent {
    fn drop(&mut self) {
        if self.name == self.core.name {
            return;
        }
        let of = &self.core.library().functions;
        // SAFETY: a valid handle and a text.
        let status = unsafe { (of.invalidate_remote_md)(self.core.handle(), self.name.as_ptr()) };
        if status != 0 {
            tracing::debug!(status, "NIXL keeps what it knows of another agent");
        }
    }
}
