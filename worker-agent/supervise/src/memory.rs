//! Count of processes that the kernel killed for want of memory.

use std::path::{Path, PathBuf};

/// Kills in a stretch of time, or since the start of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OomKills {
    /// In the control group of this process, which is its container where there is one.
    Own(u64),
    /// On the whole machine.
    Machine(u64),
    /// There is no counter.
    Unknown,
}

impl OomKills {
    /// Reads the counter. Linux only; elsewhere it is unknown.
    pub(crate) fn read() -> Self {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok();
        let own = own.and_then(|groups| counter(&events_file(&groups)?));
        let machine = || counter(Path::new("/proc/vmstat"));
        own.map(Self::Own).or_else(|| machine().map(Self::Machine)).unwrap_or(Self::Unknown)
    }

    /// The kills between `earlier` and this reading.
    pub(crate) fn since(self, earlier: Self) -> Self {
        match (self, earlier) {
            (Self::Own(now), Self::Own(then)) => Self::Own(now.saturating_sub(then)),
            (Self::Machine(now), Self::Machine(then)) => Self::Machine(now.saturating_sub(then)),
            _ => Self::Unknown,
        }
    }

    /// Kills known to be in the own control group.
    pub(crate) fn own(self) -> u64 {
        if let Self::Own(kills) = self { kills } else { 0 }
    }
}

/// The file with the events of a control group, from `/proc/self/cgroup`.
fn events_file(groups: &str) -> Option<PathBuf> {
    // Version 2 has one line, `0::/path`; version 1 has one for each controller.
    let unified = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let memory = || groups.lines().find_map(|line| line.split_once(":memory:"));
    let (root, path, file) = match memory() {
        Some((_, path)) => ("/sys/fs/cgroup/memory", path, "memory.oom_control"),
        None => ("/sys/fs/cgroup", unified?, "memory.events"),
    };
    let path = Path::new(root).join(path.trim_start_matches('/')).join(file);
    // In a container the path may be the host's, while the files are the container's.
    Some(if path.exists() { path } else { Path::new(root).join(file) })
}

fn counter(file: &Path) -> Option<u64> {
    oom_kills(&std::fs::read_to_string(file).ok()?)
}

/// The value of `oom_kill`, in a file with a name and a number on each line.
fn oom_kills(text: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_found_among_its_neighbours() {
        assert_eq!(oom_kills("low 0\noom 3\noom_kill 2\noom_group_kill 1\n"), Some(2));
        assert_eq!(oom_kills("low 0\noom_group_kill 1\n"), None);
        assert_eq!(oom_kills("oom_kill many\n"), None);
    }

    #[test]
    fn only_kills_of_the_same_counter_are_subtracted() {
        assert_eq!(OomKills::Own(5).since(OomKills::Own(3)), OomKills::Own(2));
        assert_eq!(OomKills::Machine(5).since(OomKills::Own(3)), OomKills::Unknown);
        assert_eq!(OomKills::Own(1).since(OomKills::Own(3)), OomKills::Own(0));
    }

    #[test]
    fn the_file_follows_the_version_of_the_control_groups() {
        let file = |groups| events_file(groups).map(|path| path.display().to_string());
        // No such groups exist, so the root's files are taken.
        assert_eq!(file("0::/no/such\n").as_deref(), Some("/sys/fs/cgroup/memory.events"));
        let first = "4:memory:/no/such\n3:cpu:/x\n0::/y\n";
        assert_eq!(file(first).as_deref(), Some("/sys/fs/cgroup/memory/memory.oom_control"));
        assert_eq!(file("3:cpu:/x\n"), None);
    }
}
