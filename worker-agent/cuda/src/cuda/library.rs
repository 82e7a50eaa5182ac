//! The driver's library, looked for when the process runs.
#![allow(unsafe_code)]

use crate::driver::DriverError;
use crate::report::{CudaDevice, NoCuda};
use cudarc::driver::sys;
use std::ffi::CStr;
use std::sync::OnceLock;

/// Functions of the library that this room calls. The bindings panic at the first call of one that
/// is missing, so all are looked up before any is called.
const FUNCTIONS: [&str; 34] = [
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorName",
    "cuInit",
    "cuIpcCloseMemHandle",
    "cuIpcOpenEventHandle",
    "cuIpcOpenMemHandle_v2",
    "cuLaunchKernel",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetAddressRange_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyAsync",
];

/// Functions of streams and modules, as for [`FUNCTIONS`].
const STREAM_FUNCTIONS: [&str; 6] = [
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
];

/// Loads the library and starts the driver, once for the process.
///
/// # Errors
///
/// There is no library, it is too old, or the driver does not start.
pub(crate) fn load() -> Result<(), NoCuda> {
    static LOADED: OnceLock<Result<(), NoCuda>> = OnceLock::new();
    LOADED.get_or_init(start).clone()
}

fn start() -> Result<(), NoCuda> {
    // SAFETY: loading a library runs its initialisers. This is the driver's, under its own name.
    if !unsafe { sys::is_culib_present() } {
        return Err(NoCuda::NoLibrary);
    }
    let missing = FUNCTIONS.iter().chain(&STREAM_FUNCTIONS).find(|name| !has(name));
    if let Some(missing) = missing {
        return Err(NoCuda::TooOld(missing));
    }
    // SAFETY: the function is there, and 0 is its only argument.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    Ok(())
}

/// Whether the library, which was loaded, has a function.
fn has(name: &str) -> bool {
    // SAFETY: the library was loaded before, and the address is not called.
    unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_ok() }
}

/// Whether the driver copies many pieces in one call.
pub(crate) fn copies_batches() -> bool {
    static COPIES: OnceLock<bool> = OnceLock::new();
    *COPIES.get_or_init(|| has("cuMemcpyBatchAsync"))
}

/// The driver's version of CUDA.
pub(crate) fn version() -> Result<(u32, u32), DriverError> {
    let mut version = 0;
    // SAFETY: writes one number.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

/// The driver's devices.
pub(crate) fn devices() -> Result<Vec<CudaDevice>, DriverError> {
    let mut count = 0;
    // SAFETY: writes one number.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    (0..count).map(device).collect()
}

fn device(ordinal: i32) -> Result<CudaDevice, DriverError> {
    let (mut device, mut name, mut memory_bytes) = (0, [0; 128], 0);
    // SAFETY: each call writes what its first argument points to, and no more than it is told.
    unsafe {
        check("cuDeviceGet", sys::cuDeviceGet(&raw mut device, ordinal))?;
        let length = name.len() as i32 - 1;
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), length, device))?;
        check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&raw mut memory_bytes, device))?;
    }
    let name = name.map(|byte| byte as u8);
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(CudaDevice { name: name.to_string_lossy().into_owned(), memory_bytes })
}

/// The number of the device with this UUID; `None` if this process sees no such device.
pub(crate) fn device_of(uuid: [u8; 16]) -> Result<Option<u32>, DriverError> {
    let mut count = 0;
    // SAFETY: writes one number.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    for ordinal in 0..count {
        let (mut device, mut found) = (0, sys::CUuuid_st { bytes: [0; 16] });
        // SAFETY: each call writes what its first argument points to.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&raw mut device, ordinal))?;
            check("cuDeviceGetUuid", sys::cuDeviceGetUuid_v2(&raw mut found, device))?;
        }
        if found.bytes.map(|byte| byte as u8) == uuid {
            return Ok(Some(ordinal.unsigned_abs()));
        }
    }
    Ok(None)
}

/// The result of a call.
///
/// # Errors
///
/// The call failed.
pub(crate) fn check(call: &'static str, result: sys::CUresult) -> Result<(), DriverError> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = std::ptr::null();
    // SAFETY: writes the address of a text that stays, or leaves the pointer null.
    let found = unsafe { sys::cuGetErrorName(result, &raw mut name) };
    let name = match found {
        // SAFETY: as above.
        sys::CUresult::CUDA_SUCCESS if !name.is_null() => unsafe { CStr::from_ptr(name) },
        _ => c"unknown error",
    };
    Err(DriverError::Call { call, name: name.to_string_lossy().into_owned(), code: result as u32 })
}
