//! Facts about this machine, from `/proc`, `/sys` and `/dev`.

use super::Root;
use crate::facts::{GpuFacts, HugePageFacts, LimitFacts, MachineFacts, RdmaFacts, RdmaPort};
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};

/// Number of NVIDIA among makers of PCI devices.
const NVIDIA: &str = "0x10de";
/// Start of the PCI classes of displays and 3D controllers.
const DISPLAY: &str = "0x03";
/// Folders in which `libcuda.so.1` may lie, from the root.
const LIBRARY_FOLDERS: [&str; 7] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/local/nvidia/lib64",
    "usr/local/cuda/compat",
    "usr/lib/wsl/lib",
    "run/opengl-driver/lib",
];

pub(crate) fn gather(root: &Root, ports: &[u16]) -> MachineFacts {
    MachineFacts {
        gpus: gpus(root),
        rdma: rdma(root),
        shm_bytes: shm_bytes(root),
        memory_bytes: memory_bytes(root),
        limits: limits(root),
        huge_pages: huge_pages(root),
        io_uring_disabled: number(root, "proc/sys/kernel/io_uring_disabled"),
        ports: ports.iter().map(|port| (*port, taken(*port))).collect(),
    }
}

fn gpus(root: &Root) -> GpuFacts {
    let bus = "sys/bus/pci/devices";
    let is_nvidias = |device: &&String| {
        root.text(&format!("{bus}/{device}/vendor")).as_deref() == Some(NVIDIA)
            && root.text(&format!("{bus}/{device}/class")).is_some_and(|of| of.starts_with(DISPLAY))
    };
    let shown = "proc/driver/nvidia/gpus";
    let model = |gpu: &String| {
        let text = root.text(&format!("{shown}/{gpu}/information"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
        Some(line.trim().to_owned())
    };
    let folders = LIBRARY_FOLDERS.iter().map(|folder| root.path(folder));
    let mut all = folders.chain(library_path());
    GpuFacts {
        on_bus: root.names(bus).iter().filter(is_nvidias).count(),
        driver: root.text("proc/driver/nvidia/version").and_then(|text| driver(&text)),
        models: root.names(shown).iter().filter_map(model).collect(),
        device_error: open_error(&root.path("dev/nvidiactl")),
        has_library: all.any(|folder| folder.join("libcuda.so.1").exists()),
    }
}

fn library_path() -> impl Iterator<Item = std::path::PathBuf> {
    let folders = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&folders).collect::<Vec<_>>().into_iter()
}

/// The version in the driver's first line: the first word of numbers and dots.
fn driver(text: &str) -> Option<String> {
    let words = text.lines().next()?.split_whitespace();
    let is_version = |word: &&str| {
        let parts: Vec<_> = word.split('.').collect();
        parts.len() > 1 && parts.iter().all(|part| part.parse::<u32>().is_ok())
    };
    words.filter(is_version).map(str::to_owned).next()
}

fn rdma(root: &Root) -> RdmaFacts {
    let devices = "sys/class/infiniband";
    let mut ports = Vec::new();
    for device in root.names(devices) {
        for port in root.names(&format!("{devices}/{device}/ports")) {
            let of = |file| root.text(&format!("{devices}/{device}/ports/{port}/{file}"));
            let is_active = of("state").is_some_and(|state| state.contains("ACTIVE"));
            let rate = of("rate").unwrap_or_default();
            ports.push(RdmaPort { name: format!("{device}/{port}"), is_active, rate });
        }
    }
    let nodes = root.names("dev/infiniband");
    let errors: Vec<_> = nodes
        .iter()
        .filter(|name| name.starts_with("uverbs"))
        .map(|name| open_error(&root.path(&format!("dev/infiniband/{name}"))))
        .collect();
    let device_error = match errors.iter().any(Option::is_none) {
        true => None,
        false => Some(errors.into_iter().flatten().next().unwrap_or("there is none".to_owned())),
    };
    RdmaFacts { ports, device_error }
}

fn open_error(path: &std::path::Path) -> Option<String> {
    File::options().read(true).write(true).open(path).err().map(|error| error.to_string())
}

fn shm_bytes(root: &Root) -> Option<u64> {
    let found = rustix::fs::statvfs(root.path("dev/shm")).ok()?;
    Some(found.f_blocks * found.f_frsize)
}

fn memory_bytes(root: &Root) -> Option<u64> {
    let text = root.text("proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    let limit = number::<u64>(root, "sys/fs/cgroup/memory.max");
    let used = number(root, "sys/fs/cgroup/memory.current").unwrap_or(0);
    let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(used));
    Some(left.min(kib << 10))
}

fn limits(root: &Root) -> LimitFacts {
    let of = |resource| getrlimit(resource).current;
    let own = of(Resource::Nproc);
    let group = number::<u64>(root, "sys/fs/cgroup/pids.max");
    LimitFacts {
        files: of(Resource::Nofile),
        locked_bytes: of(Resource::Memlock),
        threads: own.into_iter().chain(group).min(),
    }
}

fn huge_pages(root: &Root) -> HugePageFacts {
    let choices = root.text("sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = |text: String| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned());
    let memory = root.text("proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    let free = field("HugePages_Free").unwrap_or(0);
    HugePageFacts {
        transparent: choices.and_then(chosen),
        reserved_free_bytes: (free * field("Hugepagesize").unwrap_or(0)) << 10,
    }
}

fn number<T: std::str::FromStr>(root: &Root, file: &str) -> Option<T> {
    root.text(file)?.parse().ok()
}

/// The error of taking a port, if it cannot be taken.
fn taken(port: u16) -> Option<String> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (file, content) in files {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
    }

    /// Files as an H100 with a NIC shows them, in a container.
    #[test]
    fn files_of_a_node_become_facts() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root(folder.path().to_owned());
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  \
                       Release Build  (dvs-builder)\nGCC version:";
        write(
            folder.path(),
            &[
                ("proc/driver/nvidia/version", version),
                (
                    "proc/driver/nvidia/gpus/0000:1b:00.0/information",
                    "Model: \t\t NVIDIA H100\nIRQ: 1",
                ),
                ("sys/bus/pci/devices/0000:1b:00.0/vendor", "0x10de\n"),
                ("sys/bus/pci/devices/0000:1b:00.0/class", "0x030200\n"),
                // Its sound, and another maker's display.
                ("sys/bus/pci/devices/0000:1b:00.1/vendor", "0x10de\n"),
                ("sys/bus/pci/devices/0000:1b:00.1/class", "0x040300\n"),
                ("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n"),
                ("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n"),
                ("dev/nvidiactl", ""),
                ("usr/lib64/libcuda.so.1", ""),
                ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
                ("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n"),
                ("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n"),
                ("sys/class/infiniband/mlx5_1/ports/1/rate", "10 Gb/sec\n"),
                ("dev/infiniband/uverbs0", ""),
                (
                    "proc/meminfo",
                    "MemAvailable:  4194304 kB\nHugePages_Free:  2\nHugepagesize:  2048 kB",
                ),
                ("sys/fs/cgroup/memory.max", "2147483648\n"),
                ("sys/fs/cgroup/memory.current", "1073741824\n"),
                ("sys/fs/cgroup/pids.max", "77\n"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
                ("proc/sys/kernel/io_uring_disabled", "2\n"),
            ],
        );
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let facts = gather(&root, &[port]);
        let gpus = GpuFacts {
            on_bus: 1,
            driver: Some("580.95.05".into()),
            models: vec!["NVIDIA H100".into()],
            device_error: None,
            has_library: true,
        };
        assert_eq!(facts.gpus, gpus);
        let port = |name: &str, is_active, rate: &str| RdmaPort {
            name: name.into(),
            is_active,
            rate: rate.into(),
        };
        let ports = vec![
            port("mlx5_0/1", true, "400 Gb/sec (4X NDR)"),
            port("mlx5_1/1", false, "10 Gb/sec"),
        ];
        assert_eq!(facts.rdma, RdmaFacts { ports, device_error: None });
        assert_eq!(facts.memory_bytes, Some(1 << 30));
        assert_eq!(facts.limits.threads, Some(77));
        let transparent = Some("madvise".to_owned());
        let huge_pages = HugePageFacts { transparent, reserved_free_bytes: 4 << 20 };
        assert_eq!(facts.huge_pages, huge_pages);
        assert_eq!(facts.io_uring_disabled, Some(2));
        assert!(facts.ports[0].1.is_some(), "the port is taken");
    }

    #[test]
    fn a_machine_without_anything_has_no_facts() {
        let folder = tempfile::tempdir().unwrap();
        let facts = gather(&Root(folder.path().to_owned()), &[]);
        let gpus = &facts.gpus;
        assert_eq!((gpus.on_bus, gpus.driver.as_deref(), gpus.has_library), (0, None, false));
        assert!(gpus.device_error.is_some());
        assert_eq!(facts.rdma.ports, []);
        assert_eq!(facts.memory_bytes, None);
        assert_eq!(facts.huge_pages, HugePageFacts::default());
    }
}
