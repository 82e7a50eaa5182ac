//! The CUDA driver of one device.

mod attach;
mod context;
mod lane;
pub(crate) mod library;

pub use lane::{CudaFence, CudaLane};

use crate::driver::{Attachment, Driver, DriverError, IpcHandle, MemorySource};
use crate::report::NoCuda;
use crate::runs::CopyRun;
use context::CudaContext;
use std::sync::Arc;

/// A device of the CUDA driver. It costs the device some hundred megabytes, as every process does
/// that computes on it.
#[derive(Debug)]
pub struct CudaDriver {
    context: Arc<CudaContext>,
}

impl CudaDriver {
    /// Opens a device and loads the kernel.
    ///
    /// # Errors
    ///
    /// There is no driver that works, no such device, or the device does not take the kernel.
    pub fn open(device: u32) -> Result<Arc<Self>, NoCuda> {
        library::load()?;
        Ok(Arc::new(Self { context: Arc::new(CudaContext::open(device)?) }))
    }

    /// Opens the device with this UUID, which is the same in all processes.
    ///
    /// # Errors
    ///
    /// The conditions of [`CudaDriver::open`].
    pub fn open_uuid(uuid: [u8; 16]) -> Result<Arc<Self>, NoCuda> {
        library::load()?;
        let device = library::device_of(uuid)?;
        Self::open(device.ok_or(NoCuda::NoDevice(crate::report::DeviceUuid(uuid)))?)
    }
}

impl Driver for CudaDriver {
    type Lane = CudaLane;

    fn attach(&self, source: MemorySource) -> Result<Attachment, DriverError> {
        attach::attach(&self.context, source)
    }

    fn detach(&self, attachment: Attachment) -> Result<(), DriverError> {
        attach::detach(&self.context, attachment)
    }

    fn lane(&self) -> Result<CudaLane, DriverError> {
        CudaLane::new(self.context.clone())
    }

    fn reach(&self, other: &Self) -> Result<(), DriverError> {
        self.context.reach(&other.context)
    }

    fn copy_across(
        &self,
        lane: &CudaLane,
        from: &Attachment,
        to: &Attachment,
        there: &Self,
        runs: &[CopyRun],
    ) -> Result<(), DriverError> {
        lane.copy_across(from, to, &there.context, runs)
    }

    fn foreign_fence(&self, handle: IpcHandle) -> Result<CudaFence, DriverError> {
        CudaFence::foreign(self.context.clone(), handle)
    }
}
