//! Answers to the question for the CUDA driver.

use crate::driver::DriverError;
use std::fmt;

/// The driver and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaReport {
    /// Version of CUDA that the driver has, as major and minor number.
    pub version: (u32, u32),
    /// Devices, in the driver's order.
    pub devices: Vec<CudaDevice>,
    /// Whether the driver copies many pieces in one call (from 12.8 on).
    pub copies_batches: bool,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// Name of the product.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: usize,
}

/// Reason why there is no CUDA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCuda {
    /// The driver's library is not installed.
    #[error("no library libcuda.so.1")]
    NoLibrary,
    /// The driver lacks a function that this room calls.
    #[error("the driver has no function {0}: it is older than 11.4")]
    TooOld(&'static str),
    /// This process sees no device with this UUID.
    #[error("no device {0} in this process")]
    NoDevice(DeviceUuid),
    /// The driver does not start. Without a device it says so here.
    #[error(transparent)]
    Refused(#[from] DriverError),
}

/// The driver's UUID of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
