//! Memory and descriptors of processes.

use std::sync::Mutex;

/// Memory and descriptors of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Footprint {
    /// Open descriptors.
    pub descriptors: usize,
    /// Resident memory in MiB.
    pub resident_mib: u64,
}

impl Footprint {
    /// Reads the present footprint of a process.
    pub(crate) fn of(process: u32) -> Self {
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        Self { descriptors, resident_mib: kib / 1024 }
    }
}

/// The most that any of several processes took.
#[derive(Debug, Default)]
pub(crate) struct Peak(Mutex<Footprint>);

impl Peak {
    /// Looks at a process.
    pub(crate) fn see(&self, process: u32) {
        let now = Footprint::of(process);
        let mut most = self.0.lock().unwrap();
        most.descriptors = most.descriptors.max(now.descriptors);
        most.resident_mib = most.resident_mib.max(now.resident_mib);
    }

    /// The most so far.
    pub(crate) fn most(&self) -> Footprint {
        *self.0.lock().unwrap()
    }
}
