//! Descriptors that a process may have open, and those that its clients need.

use super::RESERVE;
use rustix::process::{Resource, getrlimit};

/// Descriptors beside clients' connections: listeners, files, links to agents and engines.
const OTHERS: u64 = 256;

/// Warns where this process may open too few descriptors for its clients.
pub(super) fn check(connections_max: usize) {
    if let Some(Shortage { limit, needed }) =
        shortage(getrlimit(Resource::Nofile).current, connections_max)
    {
        tracing::warn!(
            limit,
            needed,
            connections_max,
            "the process may open too few descriptors: raise RLIMIT_NOFILE or lower max-connections"
        );
    }
}

/// Too few descriptors.
#[derive(Debug, PartialEq, Eq)]
struct Shortage {
    limit: u64,
    needed: u64,
}

/// The shortage under a limit, if any; `None` as a limit stands for no limit.
fn shortage(limit: Option<u64>, connections_max: usize) -> Option<Shortage> {
    let needed = connections_max as u64 + RESERVE as u64 + OTHERS;
    let limit = limit.filter(|limit| *limit < needed)?;
    Some(Shortage { limit, needed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_the_reserve_and_all_else_need_descriptors() {
        assert_eq!(shortage(None, 1_000_000), None);
        assert_eq!(shortage(Some(16_704), 16_384), None);
        let short = Shortage { limit: 16_703, needed: 16_704 };
        assert_eq!(shortage(Some(16_703), 16_384), Some(short));
    }
}
