//! Looks for the CUDA driver. Nothing else of this room can be made before.

use crate::cuda::library;
use crate::report::{CudaReport, NoCuda};

/// Looks for the driver and lists its devices. Takes no memory of any device; the first call in a
/// process may take a second.
///
/// # Errors
///
/// There is no driver that works.
pub fn probe() -> Result<CudaReport, NoCuda> {
    library::load()?;
    Ok(CudaReport {
        version: library::version()?,
        devices: library::devices()?,
        copies_batches: library::copies_batches(),
    })
}
