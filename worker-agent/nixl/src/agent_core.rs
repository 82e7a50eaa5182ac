//! The handle of an agent, and of the back end that lives as long.
#![allow(unsafe_code)]

use crate::handles::OwnedHandle;
use crate::library::{AgentConfig, Functions, Handle, NixlError, NixlLibrary, check};
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::Arc;

/// Longest sleep of the library's thread that makes progress. News wakes it at once. Without a sleep
/// it would keep a core busy for as long as the agent lives.
const PROGRESS_DELAY_US: u64 = 1_000;

/// A way in which NIXL moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NixlBackend {
    /// Between agents: RDMA, shared memory or TCP, as UCX chooses.
    Ucx,
    /// Between memory and files.
    Posix,
}

/// Handles of an agent, in the order in which they are given back.
#[derive(Debug)]
pub(crate) struct AgentCore {
    agent: OwnedHandle,
    library: Arc<NixlLibrary>,
    pub(crate) name: CString,
}

impl AgentCore {
    /// An agent with a back end.
    pub(crate) fn new(
        library: &Arc<NixlLibrary>,
        name: &str,
        backend: NixlBackend,
    ) -> Result<Self, NixlError> {
        let name = CString::new(name)
            .map_err(|_| NixlError::Call { call: "create_configured_agent", status: -1 })?;
        let mut config = AgentConfig {
            has_progress_thread: true,
            has_listener: false,
            listener_port: 0,
            thread_sync: 1,
            workers: 1,
            progress_delay_us: PROGRESS_DELAY_US,
            listener_delay_us: 0,
            has_telemetry: false,
        };
        // SAFETY: reads a text and settings that are there, and writes a handle.
        let create = |of: &Functions, handle| unsafe {
            (of.create_configured_agent)(name.as_ptr(), &raw mut config, handle)
        };
        let agent =
            OwnedHandle::new(library, "create_configured_agent", create, |of| of.destroy_agent)?;
        let core = Self { agent, library: library.clone(), name };
        core.start(backend)?;
        Ok(core)
    }

    /// Starts a back end, which lives as long as the agent.
    fn start(&self, backend: NixlBackend) -> Result<(), NixlError> {
        let of = &self.library.functions;
        // SAFETY: writes a handle.
        let create = |of: &Functions, handle| unsafe { (of.create_params)(handle) };
        let parameters =
            OwnedHandle::new(&self.library, "create_params", create, |of| of.destroy_params)?;
        let name = match backend {
            NixlBackend::Ucx => c"UCX",
            NixlBackend::Posix => c"POSIX",
        };
        let mut started = null_mut();
        // SAFETY: all handles are valid, and the call writes one. The agent owns the back end; the
        // handle is only a reference to it.
        unsafe {
            let (agent, parameters) = (self.handle(), parameters.get());
            let status = (of.create_backend)(agent, name.as_ptr(), parameters, &raw mut started);
            check("create_backend", status)
        }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.agent.get()
    }

    pub(crate) fn library(&self) -> &Arc<NixlLibrary> {
        &self.library
    }
}
