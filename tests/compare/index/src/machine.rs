//! What the operating system says of this process and of the rest of the machine.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// CPU time that all threads of this process have taken.
pub fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Resident memory of this process; 0 where `/proc` does not tell.
pub fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0
}

/// A look at how busy the machine is.
pub struct Load {
    busy_ticks: f64,
    all_ticks: f64,
    own: Duration,
}

impl Load {
    /// The machine now; `None` where `/proc` does not tell.
    pub fn now() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<f64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        // User, nice, system, idle, I/O wait, interrupts, soft ones, stolen; the rest is in user.
        let all_ticks: f64 = ticks.get(..8)?.iter().sum();
        let busy_ticks = all_ticks - ticks[3] - ticks[4];
        Some(Self { busy_ticks, all_ticks, own: process_cpu() })
    }

    /// Per cent of the machine that others have taken since.
    pub fn others_percent(&self) -> Option<f64> {
        let now = Self::now()?;
        let cores = std::thread::available_parallelism().ok()?.get() as f64;
        let elapsed = (now.all_ticks - self.all_ticks) / cores;
        // Ticks are hundredths of a second on every Linux that this runs on.
        let own = (now.own - self.own).as_secs_f64() * 100.0;
        let others = (now.busy_ticks - self.busy_ticks - own).max(0.0);
        (elapsed > 0.0).then(|| 100.0 * others / (elapsed * cores))
    }
}
