//! Memory that the driver is told of: registered, opened, imported or allocated.
#![allow(unsafe_code)]

use super::context::CudaContext;
use super::library::check;
use crate::driver::{Attachment, AttachmentKind, DriverError, IpcHandle, MemorySource, check_end};
use cudarc::driver::sys;
use stator_kv::SlotId;
use stator_kv::arena::Arena;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Flags with which memory of another process is opened: access to peers is enabled when needed.
const LAZY_PEERS: u32 = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;

pub(super) fn attach(
    context: &CudaContext,
    source: MemorySource,
) -> Result<Attachment, DriverError> {
    context.enter()?;
    match source {
        MemorySource::Arena(arena) => register(arena),
        MemorySource::Ipc { handle, bytes } => open(handle, bytes),
        MemorySource::File { file, bytes } => import(context, &file, bytes),
        MemorySource::Device { bytes } => allocate(bytes),
    }
}

/// Detaches memory. Copies may still run on it, of streams that nobody has any more: they end first.
pub(super) fn detach(context: &CudaContext, attachment: Attachment) -> Result<(), DriverError> {
    let settled = context.settle();
    let Attachment { address, bytes, kind } = attachment;
    // SAFETY: `attach` made the attachment, this takes it, and no copy runs any more. After an error
    // of the device none does either.
    let detached = unsafe {
        match &kind {
            AttachmentKind::Arena(_) => {
                check("cuMemHostUnregister", sys::cuMemHostUnregister(address as *mut _))
            }
            AttachmentKind::Ipc => check("cuIpcCloseMemHandle", sys::cuIpcCloseMemHandle(address)),
            AttachmentKind::File { reserved } => {
                check("cuMemUnmap", sys::cuMemUnmap(address, bytes))
                    .and(check("cuMemAddressFree", sys::cuMemAddressFree(address, *reserved)))
            }
            AttachmentKind::Device => check("cuMemFree", sys::cuMemFree_v2(address)),
        }
    };
    settled.and(detached)
}

fn register(arena: Arc<Arena>) -> Result<Attachment, DriverError> {
    let bytes = arena.stride() * arena.slots() as usize;
    let first = arena.address(SlotId(0));
    // SAFETY: the arena maps so many bytes there, as long as the attachment has it.
    let registered =
        unsafe { sys::cuMemHostRegister_v2(first.cast(), bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) };
    check("cuMemHostRegister", registered)?;
    Ok(Attachment { address: first.addr() as u64, bytes, kind: AttachmentKind::Arena(arena) })
}

fn open(handle: IpcHandle, bytes: usize) -> Result<Attachment, DriverError> {
    let reserved = handle.map(|byte| byte as std::ffi::c_char);
    let (mut address, mut base, mut size) = (0, 0, 0);
    // SAFETY: the driver checks handles. The calls write what their first arguments point to.
    unsafe {
        let handle = sys::CUipcMemHandle_st { reserved };
        let opened = sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, LAZY_PEERS);
        check("cuIpcOpenMemHandle", opened)?;
        let found = sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address);
        let found = check("cuMemGetAddressRange", found);
        let kind = AttachmentKind::Ipc;
        let memory = Attachment { address, bytes: size, kind };
        // The other process said how much it is. The driver knows.
        if let Err(error) = found.and_then(|()| check_end(&memory, bytes)) {
            check("cuIpcCloseMemHandle", sys::cuIpcCloseMemHandle(address))?;
            return Err(error);
        }
        Ok(Attachment { bytes, ..memory })
    }
}

fn import(context: &CudaContext, file: &OwnedFd, bytes: usize) -> Result<Attachment, DriverError> {
    use sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    use sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    // The name of the file kind differs between versions of the bindings; its number does not.
    let kind = sys::CUmemAllocationHandleType_enum(1);
    let (mut handle, mut address) = (0, 0);
    let location = sys::CUmemLocation_st { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: context.device };
    let access = sys::CUmemAccessDesc_st { location, flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    // SAFETY: the driver checks that the file is one of its own, and that the size is the
    // allocation's. The calls write what their first arguments point to. Whatever fails, what was
    // made before is undone.
    unsafe {
        let number = file.as_raw_fd() as usize as *mut std::ffi::c_void;
        let imported = sys::cuMemImportFromShareableHandle(&raw mut handle, number, kind);
        check("cuMemImportFromShareableHandle", imported)?;
        let mapped = check(
            "cuMemAddressReserve",
            sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0),
        )
        .and_then(|()| map(address, bytes, handle, &access));
        // The mapping keeps the memory from now on.
        check("cuMemRelease", sys::cuMemRelease(handle))?;
        mapped?;
    }
    Ok(Attachment { address, bytes, kind: AttachmentKind::File { reserved: bytes } })
}

/// Maps an allocation at reserved addresses, which it frees if that fails.
///
/// # Safety
///
/// The addresses are reserved, for so many bytes, and nothing is mapped there.
unsafe fn map(
    address: sys::CUdeviceptr,
    bytes: usize,
    handle: sys::CUmemGenericAllocationHandle,
    access: &sys::CUmemAccessDesc_st,
) -> Result<(), DriverError> {
    // SAFETY: as the caller vouches.
    unsafe {
        let mapped = check("cuMemMap", sys::cuMemMap(address, bytes, 0, handle, 0));
        let result = mapped.and_then(|()| {
            let set = check("cuMemSetAccess", sys::cuMemSetAccess(address, bytes, access, 1));
            set.inspect_err(|_| drop(check("cuMemUnmap", sys::cuMemUnmap(address, bytes))))
        });
        result.inspect_err(|_| {
            drop(check("cuMemAddressFree", sys::cuMemAddressFree(address, bytes)));
        })
    }
}

fn allocate(bytes: usize) -> Result<Attachment, DriverError> {
    let mut address = 0;
    // SAFETY: writes an address.
    check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) })?;
    Ok(Attachment { address, bytes, kind: AttachmentKind::Device })
}
