//! Streams and events.
#![allow(unsafe_code)]

use super::context::CudaContext;
use super::library::{check, copies_batches};
use crate::driver::{
    Attachment, DriverError, DriverFence, DriverLane, IpcHandle, check_end, check_runs,
};
use crate::fold::PagePair;
use crate::kernel::{PAIRS_MAX, PageKernel, THREADS, UNIT};
use crate::runs::CopyRun;
use cudarc::driver::sys;
use std::ptr::null_mut;
use std::sync::Arc;

/// Runs of one batch at most. More are given to the driver in several calls.
const BATCH_MAX: usize = 4096;

/// A stream of the CUDA driver.
#[derive(Debug)]
pub struct CudaLane {
    context: Arc<CudaContext>,
    stream: sys::CUstream,
}

/// An event of the CUDA driver.
#[derive(Debug)]
pub struct CudaFence {
    context: Arc<CudaContext>,
    event: sys::CUevent,
}

// SAFETY: the driver may be called from any thread, and its handles belong to none.
unsafe impl Send for CudaLane {}
// SAFETY: as above.
unsafe impl Send for CudaFence {}

impl CudaLane {
    pub(super) fn new(context: Arc<CudaContext>) -> Result<Self, DriverError> {
        context.enter()?;
        let mut stream = null_mut();
        // Not ordered with the default stream, which an engine in this process may use.
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes a handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
        Ok(Self { context, stream })
    }

    /// Copies runs to memory of another context.
    pub(super) fn copy_across(
        &self,
        from: &Attachment,
        to: &Attachment,
        there: &CudaContext,
        runs: &[CopyRun],
    ) -> Result<(), DriverError> {
        check_runs(from, to, runs)?;
        self.context.enter()?;
        let here = self.context.context;
        for run in runs {
            let (source, target) = (from.address + run.from as u64, to.address + run.to as u64);
            // SAFETY: the run is within attached memory of the two contexts, which stays until all
            // copies have ended.
            let copied = unsafe {
                let (there, stream) = (there.context, self.stream);
                sys::cuMemcpyPeerAsync(target, there, source, here, run.bytes, stream)
            };
            check("cuMemcpyPeerAsync", copied)?;
        }
        Ok(())
    }

    fn copy_batch(&self, from: u64, to: u64, runs: &[CopyRun]) -> Result<(), DriverError> {
        use sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_INVALID;
        use sys::CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let mut sources: Vec<_> = runs.iter().map(|run| from + run.from as u64).collect();
        let mut targets: Vec<_> = runs.iter().map(|run| to + run.to as u64).collect();
        let mut sizes: Vec<_> = runs.iter().map(|run| run.bytes).collect();
        let nowhere = sys::CUmemLocation_st { type_: CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
        let mut attributes = sys::CUmemcpyAttributes_st {
            srcAccessOrder: CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
        };
        // The attributes are those of all runs from the first on.
        let (mut first, mut failed) = (0, 0);
        // SAFETY: the driver reads four lists of the lengths that it is told, before it returns. The
        // runs are within attached memory, which stays until all copies have ended.
        let copied = unsafe {
            sys::cuMemcpyBatchAsync(
                targets.as_mut_ptr(),
                sources.as_mut_ptr(),
                sizes.as_mut_ptr(),
                runs.len(),
                &raw mut attributes,
                &raw mut first,
                1,
                &raw mut failed,
                self.stream,
            )
        };
        check("cuMemcpyBatchAsync", copied)
    }
}

impl DriverLane for CudaLane {
    type Fence = CudaFence;

    fn copy(
        &self,
        from: &Attachment,
        to: &Attachment,
        runs: &[CopyRun],
    ) -> Result<(), DriverError> {
        check_runs(from, to, runs)?;
        self.context.enter()?;
        if copies_batches() && runs.len() > 1 {
            let batches = runs.chunks(BATCH_MAX);
            return batches
                .into_iter()
                .try_for_each(|batch| self.copy_batch(from.address, to.address, batch));
        }
        for run in runs {
            let (source, target) = (from.address + run.from as u64, to.address + run.to as u64);
            // SAFETY: the run is within attached memory, which stays until all copies have ended.
            let copied = unsafe { sys::cuMemcpyAsync(target, source, run.bytes, self.stream) };
            check("cuMemcpyAsync", copied)?;
        }
        Ok(())
    }

    fn convert(
        &self,
        from: &Attachment,
        to: &Attachment,
        kernel: &PageKernel,
        pairs: &[PagePair],
    ) -> Result<(), DriverError> {
        let (read, written) = kernel.ends();
        check_end(from, read)?;
        check_end(to, written)?;
        let (pages, limit) = (pairs.len(), PAIRS_MAX);
        if pages > limit {
            return Err(DriverError::Pages { pages, limit });
        }
        let bases = [from.address, to.address];
        if let Some(&address) = bases.iter().find(|base| !base.is_multiple_of(UNIT as u64)) {
            return Err(DriverError::Unaligned { address });
        }
        let call = kernel.call(from.address, to.address, pairs);
        let mut call = call.map_err(|_| DriverError::Pages { pages, limit })?;
        if pairs.is_empty() {
            return Ok(());
        }
        self.context.enter()?;
        let mut parameters = [(&raw mut call).cast()];
        let (blocks, rows) = (kernel.blocks(), pages as u32);
        // SAFETY: the kernel has one parameter, of the type of `call`, which the driver copies. All
        // pages that it names are within attached memory, which stays until the kernel has ended.
        let launched = unsafe {
            let (stream, parameters) = (self.stream, parameters.as_mut_ptr());
            let function = self.context.kernel;
            sys::cuLaunchKernel(
                function,
                blocks,
                rows,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                parameters,
                null_mut(),
            )
        };
        check("cuLaunchKernel", launched)
    }

    fn fence(&self) -> Result<CudaFence, DriverError> {
        use sys::CUevent_flags_enum::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING};
        self.context.enter()?;
        let mut event = null_mut();
        let flags = CU_EVENT_BLOCKING_SYNC as u32 | CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: writes a handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, flags) })?;
        let fence = CudaFence { context: self.context.clone(), event };
        // SAFETY: event and stream are of the same context.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event, self.stream) })?;
        Ok(fence)
    }

    fn wait_for(&self, fence: &CudaFence) -> Result<(), DriverError> {
        self.context.enter()?;
        // SAFETY: both handles are valid as long as their owners.
        let waits = unsafe { sys::cuStreamWaitEvent(self.stream, fence.event, 0) };
        check("cuStreamWaitEvent", waits)
    }
}

impl Drop for CudaLane {
    fn drop(&mut self) {
        // SAFETY: made by `new`. Work that is in the stream still ends, and then it goes.
        let gone = self.context.enter().and_then(|()| {
            check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(self.stream) })
        });
        if let Err(error) = gone {
            tracing::debug!(%error, "the driver keeps a stream");
        }
    }
}

impl CudaFence {
    /// Opens an event that another process made to be opened.
    pub(super) fn foreign(
        context: Arc<CudaContext>,
        handle: IpcHandle,
    ) -> Result<Self, DriverError> {
        context.enter()?;
        let reserved = handle.map(|byte| byte as std::ffi::c_char);
        let mut event = null_mut();
        let handle = sys::CUipcEventHandle_st { reserved };
        // SAFETY: the driver checks handles, and writes one.
        let opened = unsafe { sys::cuIpcOpenEventHandle(&raw mut event, handle) };
        check("cuIpcOpenEventHandle", opened)?;
        Ok(Self { context, event })
    }
}

impl DriverFence for CudaFence {
    fn is_over(&self) -> Result<bool, DriverError> {
        self.context.enter()?;
        // SAFETY: the event is valid as long as `self`.
        match unsafe { sys::cuEventQuery(self.event) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }

    fn wait(&self) -> Result<(), DriverError> {
        self.context.enter()?;
        // SAFETY: as above.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.event) })
    }
}

impl Drop for CudaFence {
    fn drop(&mut self) {
        // SAFETY: made or opened by the one who made `self`.
        let gone = self
            .context
            .enter()
            .and_then(|()| check("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(self.event) }));
        if let Err(error) = gone {
            tracing::debug!(%error, "the driver keeps an event");
        }
    }
}
