//! The context of a device in this process, and the kernel in it.
#![allow(unsafe_code)]

use super::library::check;
use crate::driver::DriverError;
use crate::kernel;
use cudarc::driver::sys;
use std::ffi::CString;
use std::ptr::null_mut;

/// The primary context of a device, which other users of CUDA in this process share.
#[derive(Debug)]
pub(super) struct CudaContext {
    pub(super) device: sys::CUdevice,
    pub(super) context: sys::CUcontext,
    module: sys::CUmodule,
    /// Copies pages.
    pub(super) kernel: sys::CUfunction,
}

// SAFETY: the driver may be called from any thread, and its handles belong to none.
unsafe impl Send for CudaContext {}
// SAFETY: as above.
unsafe impl Sync for CudaContext {}

impl CudaContext {
    /// Opens a device, after the library was loaded.
    pub(super) fn open(ordinal: u32) -> Result<Self, DriverError> {
        let (mut device, mut context) = (0, null_mut());
        let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
        // SAFETY: each call writes the handle that its first argument points to.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&raw mut device, ordinal))?;
            let retained = sys::cuDevicePrimaryCtxRetain(&raw mut context, device);
            check("cuDevicePrimaryCtxRetain", retained)?;
        }
        // From here on dropping it releases the context.
        let mut opened = Self { device, context, module: null_mut(), kernel: null_mut() };
        opened.enter()?;
        let ptx = CString::new(kernel::PTX).expect("PTX is text");
        // SAFETY: the driver reads two texts that end with a 0, and writes two handles.
        unsafe {
            let loaded = sys::cuModuleLoadData(&raw mut opened.module, ptx.as_ptr().cast());
            check("cuModuleLoadData", loaded)?;
            let (kernel, module) = (&raw mut opened.kernel, opened.module);
            let found = sys::cuModuleGetFunction(kernel, module, kernel::NAME.as_ptr());
            check("cuModuleGetFunction", found)?;
        }
        Ok(opened)
    }

    /// Makes this the context of the calling thread, for the calls that follow.
    pub(super) fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained as long as `self` lives.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Lets copies of this device go to memory of another one.
    pub(super) fn reach(&self, other: &Self) -> Result<(), DriverError> {
        let mut can = 0;
        // SAFETY: writes a number.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.device, other.device) };
        check("cuDeviceCanAccessPeer", asked)?;
        if can == 0 {
            return Err(DriverError::Apart);
        }
        self.enter()?;
        // SAFETY: the other context is retained as long as `other` lives.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            result => check("cuCtxEnablePeerAccess", result),
        }
    }

    /// Waits for all work of this process on the device.
    pub(super) fn settle(&self) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: has no arguments.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        let unloaded = self.enter().and_then(|()| match self.module.is_null() {
            true => Ok(()),
            // SAFETY: lanes have the context, so no kernel of the module runs any more.
            false => check("cuModuleUnload", unsafe { sys::cuModuleUnload(self.module) }),
        });
        // SAFETY: retained once, by `open`.
        let released = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
        let released = check("cuDevicePrimaryCtxRelease", released);
        if let Err(error) = unloaded.and(released) {
            tracing::warn!(%error, "the driver keeps the context of a device");
        }
    }
}
