//! CUDA devices of the agent's machine, said once at the start.

use crate::metrics::DeviceMetrics;
use stator_cuda::{CudaReport, NoCuda, probe};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Longest time that the driver gets to answer. It takes about a second where nobody else uses it.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Looks for the CUDA driver, beside whatever else starts, and logs and counts what it finds.
pub(super) async fn look(metrics: DeviceMetrics) {
    match timeout(ANSWER_WITHIN, spawn_blocking(probe)).await {
        Ok(Ok(found)) => say(&found, &metrics),
        Ok(Err(error)) => tracing::warn!(%error, "the search for a CUDA driver failed"),
        Err(_) => tracing::warn!(within = ?ANSWER_WITHIN, "the CUDA driver does not answer"),
    }
}

fn say(found: &Result<CudaReport, NoCuda>, metrics: &DeviceMetrics) {
    match found {
        Ok(CudaReport { version: (major, minor), devices, copies_batches }) => {
            metrics.cuda_devices.set(i64::try_from(devices.len()).unwrap_or(i64::MAX));
            let names = devices.iter().map(|device| device.name.as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            let version = format!("{major}.{minor}");
            tracing::info!(version, devices = devices.len(), names, copies_batches, "CUDA driver");
        }
        Err(reason) => tracing::info!(%reason, "no CUDA driver"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_cuda::report::CudaDevice;
    use std::io::Write;

    #[test]
    fn devices_are_counted() {
        let metrics = DeviceMetrics::default();
        let device = CudaDevice { name: "NVIDIA H100".into(), memory_bytes: 80 << 30 };
        let devices = vec![device.clone(), device];
        say(&Ok(CudaReport { version: (13, 0), devices, copies_batches: true }), &metrics);
        assert_eq!(metrics.cuda_devices.get(), 2);
    }

    #[tokio::test]
    async fn a_machine_without_a_driver_has_no_devices() {
        let metrics = DeviceMetrics::default();
        if probe() == Err(NoCuda::NoLibrary) {
            look(metrics.clone()).await;
            assert_eq!(metrics.cuda_devices.get(), 0);
        } else {
            // Past the test harness, which hides what passing tests print.
            let why = "not run: no devices without a driver: this machine has a CUDA driver";
            let _ = writeln!(std::io::stderr().lock(), "{why}");
        }
    }
}
