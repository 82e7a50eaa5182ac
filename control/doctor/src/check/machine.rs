//! Machines: devices, memory, limits and ports.

use crate::args::Patient;
use crate::facts::{GpuFacts, HugePageFacts, LimitFacts, MachineFacts, RdmaFacts};
use crate::finding::{Finding, bytes};

/// Oldest driver for CUDA 12, by its first number. Source: NVIDIA's table of minor versions.
const DRIVER_OLDEST: u32 = 525;
/// First driver of CUDA 12.8, which copies a batch of blocks in one call.
const DRIVER_OF_BATCHES: u32 = 570;
/// Shared memory below which ranks of one engine fail, and below which large engines may, bytes.
const SHM_FAILS: u64 = 1 << 30;
const SHM_SMALL: u64 = 8 << 30;
/// Open files below which a proxy has too few for its clients.
const FILES_FEW: u64 = 16_384;
/// Threads below which an engine and its libraries may have too few.
const THREADS_FEW: u64 = 4096;
/// Memory below which nothing but the bundled model runs well, bytes.
const MEMORY_SMALL: u64 = 2 << 30;

pub(crate) fn check(machine: &MachineFacts, patient: Patient) -> Vec<Finding> {
    let serves = patient == Patient::Node;
    let mut findings = vec![
        gpu(&machine.gpus, serves),
        rdma(&machine.rdma, machine.limits.locked_bytes),
        shared_memory(machine.shm_bytes, serves),
        memory(machine.memory_bytes),
    ];
    findings.extend(limits(&machine.limits, serves));
    findings.extend(huge_pages(&machine.huge_pages));
    findings.extend(io_uring(machine.io_uring_disabled));
    findings.extend(machine.ports.iter().map(|(port, error)| free(*port, error.as_deref())));
    findings
}

fn gpu(gpus: &GpuFacts, serves: bool) -> Finding {
    let Some(driver) = &gpus.driver else {
        return match (gpus.on_bus, serves) {
            (0, false) => Finding::fine("gpu", "none: the built-in engine runs on the processor"),
            (0, true) => Finding::wrong(
                "gpu",
                "no GPU is visible",
                "in a container ask for one: `--gpus all`, or `resources.limits: {nvidia.com/gpu: 1}`",
            ),
            (n, _) => Finding::wrong(
                "gpu",
                format!("{n} on the bus, and no NVIDIA driver is loaded"),
                "install the driver, then `modprobe nvidia`; on Kubernetes the GPU operator does it",
            ),
        };
    };
    let Some(model) = gpus.models.first() else {
        let says = format!("driver {driver} shows no GPU, of {} on the bus", gpus.on_bus);
        let advice = "`dmesg | grep -i -e nvrm -e xid` says why; a GPU that fell off the bus needs a restart";
        return Finding::wrong("gpu", says, advice);
    };
    let says = format!("{} ({model}), driver {driver}", gpus.models.len());
    if let Some(error) = &gpus.device_error {
        let says = format!("{says}, but /dev/nvidiactl: {error}");
        return Finding::wrong("gpu", says, "let this user open /dev/nvidia*, or ask for the GPU");
    }
    if !gpus.has_library {
        let advice =
            "install the container toolkit, with NVIDIA_DRIVER_CAPABILITIES=compute,utility";
        return Finding::wrong("gpu", format!("{says}, but libcuda.so.1 is missing"), advice);
    }
    let first = driver.split('.').next().and_then(|part| part.parse::<u32>().ok());
    match first.unwrap_or(0) {
        of if of < DRIVER_OLDEST => {
            Finding::wrong("gpu", says, format!("update the driver to {DRIVER_OLDEST} or later"))
        }
        of if of < DRIVER_OF_BATCHES => Finding::warning(
            "gpu",
            format!("{says}: copies of KV need a call for each run of bytes"),
            format!("update the driver to {DRIVER_OF_BATCHES} or later"),
        ),
        _ => Finding::fine("gpu", says),
    }
}

fn rdma(rdma: &RdmaFacts, locked_bytes: Option<u64>) -> Finding {
    if rdma.ports.is_empty() {
        return Finding::fine("rdma", "none: KV moves between machines over TCP");
    }
    let active = || rdma.ports.iter().filter(|port| port.is_active);
    let names: Vec<_> = active().map(|port| format!("{} ({})", port.name, port.rate)).collect();
    if let Some(error) = &rdma.device_error {
        let says = format!("{} ports, but /dev/infiniband/uverbs*: {error}", rdma.ports.len());
        let advice =
            "in a container ask for `rdma/…`, or mount /dev/infiniband; outside, join its group";
        return Finding::wrong("rdma", says, advice);
    }
    if let Some(limit) = locked_bytes {
        let says = format!("devices are there, but only {} may be locked", bytes(limit));
        let advice = "`ulimit -l unlimited`; in a container the capability IPC_LOCK";
        return Finding::wrong("rdma", says, advice);
    }
    match names.len() {
        0 => Finding::warning(
            "rdma",
            format!("{} ports, and none is active", rdma.ports.len()),
            "look at cables and at the subnet manager: `ibstat`",
        ),
        _ => Finding::fine("rdma", names.join(", ")),
    }
}

fn shared_memory(shm_bytes: Option<u64>, serves: bool) -> Finding {
    let advice = "`--shm-size=8g`, or an emptyDir with `medium: Memory` at /dev/shm";
    match shm_bytes {
        None => Finding::wrong("shm", "there is no /dev/shm", advice),
        Some(size) if size < SHM_FAILS && serves => {
            Finding::wrong("shm", format!("/dev/shm has {}, ranks need 1 GiB", bytes(size)), advice)
        }
        Some(size) if size < SHM_FAILS || (serves && size < SHM_SMALL) => {
            let says = format!("/dev/shm has {}; engines of several ranks use 8 GiB", bytes(size));
            Finding::warning("shm", says, advice)
        }
        Some(size) => Finding::fine("shm", format!("/dev/shm has {}", bytes(size))),
    }
}

fn memory(memory_bytes: Option<u64>) -> Finding {
    match memory_bytes {
        None => Finding::note("memory", "its size is unknown", "/proc/meminfo cannot be read"),
        Some(free) if free < MEMORY_SMALL => {
            let advice = "raise the container's limit, or end what uses the memory";
            Finding::warning("memory", format!("{} are free", bytes(free)), advice)
        }
        Some(free) => Finding::fine("memory", format!("{} are free", bytes(free))),
    }
}

fn limits(limits: &LimitFacts, serves: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(files) = limits.files.filter(|files| serves && *files < FILES_FEW) {
        let says = format!("{files} files may be open; a proxy uses up to {FILES_FEW}");
        let advice = "`ulimit -n 65536`, LimitNOFILE= of systemd, or --max-connections below it";
        findings.push(Finding::warning("limits", says, advice));
    }
    if let Some(threads) = limits.threads.filter(|threads| *threads < THREADS_FEW) {
        let says = format!("{threads} threads may run; engines start up to {THREADS_FEW}");
        let advice = "`ulimit -u unlimited`; in a container the limit of processes (pids)";
        findings.push(Finding::warning("limits", says, advice));
    }
    if findings.is_empty() {
        let text = |of: Option<u64>| of.map_or("unlimited".into(), |of| of.to_string());
        let (files, threads) = (text(limits.files), text(limits.threads));
        findings.push(Finding::fine("limits", format!("files {files}, threads {threads}")));
    }
    findings
}

fn huge_pages(pages: &HugePageFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.push(match pages.transparent.as_deref() {
        Some("never") => Finding::warning(
            "hugepages",
            "transparent huge pages are off, so large indexes are slower",
            "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` on the host",
        ),
        Some(choice) => Finding::fine("hugepages", format!("transparent huge pages: {choice}")),
        None => {
            let says = "the kernel tells nothing of huge pages";
            Finding::note(
                "hugepages",
                says,
                "mount /sys, or use a kernel with transparent huge pages",
            )
        }
    });
    if pages.reserved_free_bytes > 0 {
        let size = bytes(pages.reserved_free_bytes);
        let says = format!("{size} are reserved as explicit huge pages, which stator does not use");
        let advice = "give them back unless another program wants them: `sysctl vm.nr_hugepages=0`";
        findings.push(Finding::note("hugepages", says, advice));
    }
    findings
}

fn io_uring(disabled: Option<u8>) -> Option<Finding> {
    let is_off = disabled.is_some_and(|of| of > 0);
    is_off.then(|| {
        let says = "io_uring is off, so the disk tier of KV reads and writes with threads";
        Finding::note("io_uring", says, "`sysctl kernel.io_uring_disabled=0` on the host")
    })
}

fn free(port: u16, error: Option<&str>) -> Finding {
    match error {
        None => Finding::fine("ports", format!("port {port} is free")),
        Some(error) => Finding::wrong(
            "ports",
            format!("port {port}: {error}"),
            format!(
                "`ss -ltnp 'sport = :{port}'` names who has it; or choose another, as --http-port"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::RdmaPort;
    use crate::finding::Severity;
    use crate::finding::Severity::{Fine, Note, Warning, Wrong};

    fn h100() -> GpuFacts {
        GpuFacts {
            on_bus: 2,
            driver: Some("580.95.05".into()),
            models: vec!["NVIDIA H100".into(); 2],
            device_error: None,
            has_library: true,
        }
    }

    fn gpus(change: impl FnOnce(&mut GpuFacts)) -> Severity {
        let mut gpus = h100();
        change(&mut gpus);
        gpu(&gpus, true).severity
    }

    #[test]
    fn a_gpu_needs_a_driver_a_device_and_a_library() {
        assert_eq!(gpu(&h100(), true).says, "2 (NVIDIA H100), driver 580.95.05");
        assert_eq!(gpus(|_| {}), Fine);
        assert_eq!(gpus(|of| of.driver = None), Wrong);
        assert_eq!(gpus(|of| of.models.clear()), Wrong);
        assert_eq!(gpus(|of| of.device_error = Some("denied".into())), Wrong);
        assert_eq!(gpus(|of| of.has_library = false), Wrong);
        assert_eq!(gpus(|of| of.driver = Some("470.1".into())), Wrong);
        assert_eq!(gpus(|of| of.driver = Some("550.54.15".into())), Warning);
    }

    #[test]
    fn only_a_node_must_have_a_gpu() {
        assert_eq!(gpu(&GpuFacts::default(), false).severity, Fine);
        assert_eq!(gpu(&GpuFacts::default(), true).severity, Wrong);
    }

    #[test]
    fn rdma_needs_a_device_locked_memory_and_a_link() {
        let port = RdmaPort { name: "mlx5_0/1".into(), is_active: true, rate: "400".into() };
        let up = RdmaFacts { ports: vec![port.clone()], device_error: None };
        assert_eq!(rdma(&up, None).says, "mlx5_0/1 (400)");
        assert_eq!(rdma(&up, Some(65_536)).severity, Wrong);
        let closed = RdmaFacts { device_error: Some("denied".into()), ..up.clone() };
        assert_eq!(rdma(&closed, None).severity, Wrong);
        let ports = vec![RdmaPort { is_active: false, ..port }];
        assert_eq!(rdma(&RdmaFacts { ports, ..up }, None).severity, Warning);
        assert_eq!(rdma(&RdmaFacts::default(), Some(65_536)).severity, Fine);
    }

    #[test]
    fn the_usual_shared_memory_of_a_container_is_too_small_to_serve() {
        assert_eq!(shared_memory(Some(64 << 20), true).severity, Wrong);
        assert_eq!(shared_memory(Some(64 << 20), false).severity, Warning);
        assert_eq!(shared_memory(Some(4 << 30), true).severity, Warning);
        assert_eq!(shared_memory(Some(4 << 30), false).severity, Fine);
        assert_eq!(shared_memory(None, false).severity, Wrong);
    }

    #[test]
    fn limits_that_are_too_low_are_all_named() {
        let low = LimitFacts { files: Some(1024), locked_bytes: None, threads: Some(512) };
        let severities = |serves| -> Vec<_> {
            limits(&low, serves).iter().map(|finding| finding.severity).collect()
        };
        assert_eq!(severities(true), [Warning, Warning]);
        assert_eq!(severities(false), [Warning]);
        let none = limits(&LimitFacts::default(), true);
        assert_eq!(none[0].says, "files unlimited, threads unlimited");
    }

    #[test]
    fn a_taken_port_is_wrong() {
        let finding = free(8000, Some("Address already in use (os error 98)"));
        assert_eq!(finding.severity, Wrong);
        assert_eq!(finding.says, "port 8000: Address already in use (os error 98)");
        assert_eq!(free(8000, None).severity, Fine);
    }

    #[test]
    fn kernels_without_huge_pages_or_io_uring_are_told() {
        let pages =
            HugePageFacts { transparent: Some("never".into()), reserved_free_bytes: 1 << 30 };
        let severities: Vec<_> = huge_pages(&pages).iter().map(|of| of.severity).collect();
        assert_eq!(severities, [Warning, Note]);
        assert_eq!(io_uring(Some(0)), None);
        assert_eq!(io_uring(Some(2)).map(|of| of.severity), Some(Note));
    }
}
