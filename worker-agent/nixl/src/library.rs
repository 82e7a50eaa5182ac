//! The functions of NIXL's C interface, from the file where it is installed.
#![allow(unsafe_code)]

use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A handle of the library. Each of its kinds is a pointer to something that only it knows.
pub(crate) type Handle = *mut c_void;
/// The result of a call: 0 done, 1 not yet, and errors below 0.
pub(crate) type Status = c_int;

/// Settings of an agent, as the library lays them out.
#[repr(C)]
pub(crate) struct AgentConfig {
    pub(crate) has_progress_thread: bool,
    pub(crate) has_listener: bool,
    pub(crate) listener_port: c_int,
    /// 0 none, 1 strict, 2 readers and writers.
    pub(crate) thread_sync: c_int,
    pub(crate) workers: u32,
    pub(crate) progress_delay_us: u64,
    pub(crate) listener_delay_us: u64,
    pub(crate) has_telemetry: bool,
}

/// Why NIXL cannot be used, or what a call of it said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NixlError {
    /// The file is not there, or is no library that can be loaded.
    #[error("{}: {reason}", path.display())]
    Unloadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// The file is a stand-in for a library that is not installed.
    #[error("{}: a stand-in without NIXL", .0.display())]
    Stub(PathBuf),
    /// A call failed.
    #[error("{call}: {} ({status})", meaning(*.status))]
    Call {
        /// Name of the call.
        call: &'static str,
        /// Its result.
        status: i32,
    },
}

/// Words for the status of a call.
fn meaning(status: i32) -> &'static str {
    match status {
        -1 => "wrong parameter",
        -2 => "the back end failed",
        -3 => "wrong state",
        -4 => "exception",
        -6 => "not found",
        _ => "unknown status",
    }
}

/// Declares the table of functions, and looks all of them up by their names in the library.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// Functions of the library, without the `nixl_capi_` before their names.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Functions {
            /// # Safety
            ///
            /// The library is NIXL's, whose functions have these arguments.
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: as the caller vouches.
                unsafe {
                    Ok(Self {
                        $($name: *library.get(concat!("nixl_capi_", stringify!($name)))?,)*
                    })
                }
            }
        }
    };
}

functions! {
    create_configured_agent(*const c_char, *mut AgentConfig, *mut Handle);
    destroy_agent(Handle);
    create_params(*mut Handle);
    destroy_params(Handle);
    create_backend(Handle, *const c_char, Handle, *mut Handle);
    create_reg_dlist(c_int, *mut Handle);
    destroy_reg_dlist(Handle);
    reg_dlist_add_desc(Handle, usize, usize, u64, *const c_void, usize);
    register_mem(Handle, Handle, Handle);
    deregister_mem(Handle, Handle, Handle);
    get_local_md(Handle, *mut *mut c_void, *mut usize);
    load_remote_md(Handle, *const c_void, usize, *mut *mut c_char);
    invalidate_remote_md(Handle, *const c_char);
    create_xfer_dlist(c_int, *mut Handle);
    destroy_xfer_dlist(Handle);
    xfer_dlist_add_desc(Handle, usize, usize, u64);
    create_xfer_req(Handle, c_int, Handle, Handle, *const c_char, *mut Handle, Handle);
    post_xfer_req(Handle, Handle, Handle);
    get_xfer_status(Handle, Handle);
    release_xfer_req(Handle, Handle);
    destroy_xfer_req(Handle);
}

/// The loaded library. It stays loaded: it starts threads of its own.
pub struct NixlLibrary {
    pub(crate) functions: Functions,
    path: PathBuf,
}

impl NixlLibrary {
    /// Loads the library `libnixl_capi.so` at this path. It finds its plug-ins beside itself.
    ///
    /// # Errors
    ///
    /// The file is not there, is a stand-in, or lacks a function.
    pub fn open(path: &Path) -> Result<Arc<Self>, NixlError> {
        let unloadable = |error: libloading::Error| NixlError::Unloadable {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        // SAFETY: loading runs the initialisers of the file that the operator named, and of what it
        // needs. The types of the functions are those of NIXL 1.5.
        unsafe {
            let library = Library::new(path).map_err(unloadable)?;
            let is_stub = *library
                .get::<unsafe extern "C" fn() -> bool>("nixl_capi_is_stub")
                .map_err(unloadable)?;
            if is_stub() {
                return Err(NixlError::Stub(path.to_owned()));
            }
            let functions = Functions::of(&library).map_err(unloadable)?;
            // Its threads may run until the process ends.
            std::mem::forget(library);
            Ok(Arc::new(Self { functions, path: path.to_owned() }))
        }
    }

    /// The file that was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl std::fmt::Debug for NixlLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NixlLibrary").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The result of a call.
///
/// # Errors
///
/// The call failed.
pub(crate) fn check(call: &'static str, status: Status) -> Result<(), NixlError> {
    if status == 0 { Ok(()) } else { Err(NixlError::Call { call, status }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_library_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for path in [Path::new("/nowhere/libnixl_capi.so"), file.path()] {
            let error = NixlLibrary::open(path).unwrap_err();
            assert!(matches!(error, NixlError::Unloadable { .. }), "{error}");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn errors_say_what_failed() {
        let error = check("post_xfer_req", -2).unwrap_err();
        assert_eq!(error.to_string(), "post_xfer_req: the back end failed (-2)");
        assert_eq!(check("post_xfer_req", 0), Ok(()));
    }
}
