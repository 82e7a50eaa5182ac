//! Cost of processes and of the machine, read from `/proc`. Without it (not Linux, or a process of
//! another user) figures are absent instead of wrong.
//!
//! Source: proc(5).

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Clock ticks per second in `/proc`: fixed at 100 on every architecture that matters here. CPU
/// times therefore have a resolution of 10 ms.
const TICKS_PER_SECOND: u64 = 100;

/// Cost of one measured process, with its descendants if asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessCost {
    /// The process.
    pub pid: u32,
    /// Its name, as the system knows it; empty where it could not be read.
    pub name: String,
    /// Processes counted: 1 and its descendants.
    pub processes: usize,
    /// CPU time during the measurement, in milliseconds, resolution 10. `None` where it could not
    /// be read.
    pub cpu_ms: Option<f64>,
    /// Resident memory before the measurement, in bytes.
    pub rss_before_bytes: Option<u64>,
    /// Resident memory after it, in bytes.
    pub rss_after_bytes: Option<u64>,
    /// Most resident memory since the process began (`VmHWM`), in bytes; of several processes,
    /// the sum of their peaks.
    pub rss_peak_bytes: Option<u64>,
}

/// CPU use of the machine during the measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineCost {
    /// CPUs of the machine.
    pub cpus: usize,
    /// CPU time of this load generator, in milliseconds.
    pub client_cpu_ms: f64,
    /// CPU time of everything that is neither this load generator nor a measured process, in
    /// milliseconds: what makes a measurement noisy. Without --pid the server is in it.
    pub other_cpu_ms: f64,
    /// `other_cpu_ms` as a share of all the machine's CPU time, 0 to 1.
    pub other_share: f64,
}

/// Measures from its creation to [`Meter::finish`].
#[derive(Debug)]
pub struct Meter {
    trees: Vec<(u32, Vec<u32>)>,
    before: Vec<Option<Sample>>,
    own: Option<Sample>,
    machine: Option<MachineSample>,
}

/// Resources that processes have used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    cpu: Duration,
    rss_bytes: u64,
    rss_peak_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct MachineSample {
    cpus: usize,
    busy: Duration,
    total: Duration,
}

impl Meter {
    /// Begins to measure these processes, with their present descendants where `children` is set.
    pub fn start(pids: &[u32], children: bool) -> Self {
        let parents = if children { parents() } else { HashMap::new() };
        let trees: Vec<_> = pids.iter().map(|pid| (*pid, tree(*pid, &parents))).collect();
        let before = trees.iter().map(|(_, tree)| sample_all(tree)).collect();
        Self { trees, before, own: sample(std::process::id()), machine: machine() }
    }

    /// Ends the measurement.
    pub fn finish(self) -> (Vec<ProcessCost>, Option<MachineCost>) {
        let costs = self.trees.iter().zip(&self.before).map(|((pid, tree), before)| {
            let after = sample_all(tree);
            ProcessCost {
                pid: *pid,
                name: name(*pid),
                processes: tree.len(),
                cpu_ms: before
                    .zip(after)
                    .map(|(before, after)| ms(after.cpu.saturating_sub(before.cpu))),
                rss_before_bytes: before.map(|sample| sample.rss_bytes),
                rss_after_bytes: after.map(|sample| sample.rss_bytes),
                rss_peak_bytes: after.map(|sample| sample.rss_peak_bytes),
            }
        });
        let costs: Vec<ProcessCost> = costs.collect();
        let machine = self.machine_cost(costs.iter().filter_map(|cost| cost.cpu_ms).sum());
        (costs, machine)
    }

    fn machine_cost(&self, measured_ms: f64) -> Option<MachineCost> {
        let (before, after) = (self.machine?, machine()?);
        let client_cpu_ms = ms(sample(std::process::id())?.cpu.saturating_sub(self.own?.cpu));
        let busy_ms = ms(after.busy.saturating_sub(before.busy));
        let total_ms = ms(after.total.saturating_sub(before.total));
        let other_cpu_ms = (busy_ms - client_cpu_ms - measured_ms).max(0.0);
        let other_share = if total_ms > 0.0 { (other_cpu_ms / total_ms).min(1.0) } else { 0.0 };
        Some(MachineCost { cpus: after.cpus, client_cpu_ms, other_cpu_ms, other_share })
    }
}

/// The soft limit on open files of this process, where it is known and finite.
pub fn open_files_limit() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A process and its descendants.
fn tree(root: u32, parents: &HashMap<u32, u32>) -> Vec<u32> {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(parent) = tree.get(next).copied() {
        let children = parents.iter().filter(|(pid, of)| **of == parent && !tree.contains(pid));
        let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
        tree.extend(children);
        next += 1;
    }
    tree
}

/// The parent of every process.
fn parents() -> HashMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = |pid: u32| {
        parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
            .map(|(parent, _)| (pid, parent))
    };
    pids.filter_map(parent).collect()
}

/// The sum over processes; those that have ended meanwhile count nothing, and it is `None` where
/// the first one cannot be read.
fn sample_all(tree: &[u32]) -> Option<Sample> {
    let root = sample(*tree.first()?)?;
    Some(tree[1..].iter().filter_map(|pid| sample(*pid)).fold(root, |sum, sample| Sample {
        cpu: sum.cpu + sample.cpu,
        rss_bytes: sum.rss_bytes + sample.rss_bytes,
        rss_peak_bytes: sum.rss_peak_bytes + sample.rss_peak_bytes,
    }))
}

fn sample(pid: u32) -> Option<Sample> {
    let (_, cpu) = parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let rss_bytes = parse_status(&status, "VmRSS:")?;
    Some(Sample { cpu, rss_bytes, rss_peak_bytes: parse_status(&status, "VmHWM:")? })
}

fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

fn machine() -> Option<MachineSample> {
    parse_machine(&fs::read_to_string("/proc/stat").ok()?)
}

/// Parent and CPU time (user and system) from `/proc/PID/stat`. The name in it may contain
/// anything, so that fields count from its closing parenthesis.
fn parse_stat(stat: &str) -> Option<(u32, Duration)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let parent = fields.get(1)?.parse().ok()?;
    Some((parent, from_ticks(ticks(11)? + ticks(12)?)))
}

/// A size in bytes from `/proc/PID/status`.
fn parse_status(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Busy and total time of all CPUs from `/proc/stat`. Guests are in user time already; time that
/// a hypervisor took away counts as busy, because it was not ours.
fn parse_machine(stat: &str) -> Option<MachineSample> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> =
        line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    let total: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    let is_cpu = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let cpus = stat.lines().filter(is_cpu).count();
    Some(MachineSample { cpus, busy: from_ticks(total - idle), total: from_ticks(total) })
}

fn from_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1_000 / TICKS_PER_SECOND))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "12 (a) b (c)) S 7 12 12 0 -1 4194560 1 2 3 4 150 50 9 9 20 0 8 0 1 2 3";
        assert_eq!(parse_stat(stat), Some((7, Duration::from_secs(2))));
        assert_eq!(parse_stat("12 (a) S 7"), None);
    }

    #[test]
    fn sizes_are_bytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(parse_status(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(parse_status(status, "VmRSS:"), Some(1 << 20));
        assert_eq!(parse_status(status, "VmSwap:"), None);
    }

    #[test]
    fn waiting_for_a_disk_is_idle_and_stolen_time_is_busy() {
        let stat = "cpu  100 10 50 800 40 0 0 100 7 0\ncpu0 1\ncpu1 1\nintr 5\n";
        let sample = parse_machine(stat).unwrap();
        assert_eq!(
            (sample.cpus, sample.busy, sample.total),
            (2, Duration::from_millis(2_600), Duration::from_secs(11))
        );
    }

    #[test]
    fn a_tree_has_all_descendants_once() {
        let parents = HashMap::from([(2, 1), (3, 2), (4, 2), (5, 9)]);
        let mut found = tree(1, &parents);
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3, 4]);
        assert_eq!(tree(5, &parents), [5]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_can_be_measured() {
        let (costs, machine) = Meter::start(&[std::process::id()], true).finish();
        assert!(costs[0].rss_peak_bytes >= costs[0].rss_after_bytes);
        assert!(costs[0].rss_before_bytes > Some(0) && costs[0].cpu_ms.is_some());
        assert!(machine.unwrap().cpus > 0);
        assert!(open_files_limit().is_some_and(|limit| limit > 0));
    }

    #[test]
    fn a_process_that_is_not_there_has_no_figures() {
        let (costs, _) = Meter::start(&[u32::MAX], false).finish();
        assert_eq!(costs[0].cpu_ms, None);
        assert_eq!(costs[0].name, "");
    }
}
