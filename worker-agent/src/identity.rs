//! Identities of the agent and its workers: names that survive a restart, lives that do not.

use crate::config::{Listen, is_agent_id};
use stator_protos::{Generation, WorkerId};
use std::time::{SystemTime, UNIX_EPOCH};

/// Identity of an agent that was given none: the host's name and the request plane's place.
pub(crate) fn agent_id(listen: &Listen, endpoint: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().take(64).collect();
    let host = if is_agent_id(&host) { host } else { "agent".into() };
    match listen {
        Listen::Tcp(_) => {
            let port = endpoint.rsplit(':').next().unwrap_or_default();
            format!("{host}-{port}")
        }
        Listen::Unix(_) => format!("{host}-{:016x}", fnv1a(endpoint.as_bytes())),
    }
}

/// Identity of the agent's worker number `index`: the same after a restart.
pub(crate) fn worker_id(agent_id: &str, index: u32) -> WorkerId {
    WorkerId(fnv1a(format!("{agent_id}/{index}").as_bytes()))
}

/// A life that begins `now`: later than `previous`, even if the clock was set back.
pub(crate) fn generation(now: SystemTime, previous: Option<Generation>) -> Generation {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let by_clock = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    Generation(by_clock.max(previous.map_or(0, |life| life.0.saturating_add(1))))
}

/// Source: the 64-bit FNV-1a hash; it only has to be stable and to spread a few names.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn identities_are_stable_and_distinct() {
        assert_eq!(worker_id("a", 0), worker_id("a", 0));
        let mut ids: Vec<_> = (0..1024).map(|n| worker_id("node-7000", n)).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 1024);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn a_made_identity_is_a_valid_one() {
        let tcp = Listen::Tcp("127.0.0.1:7000".parse().unwrap());
        assert!(agent_id(&tcp, "http://127.0.0.1:7000").ends_with("-7000"));
        let unix = Listen::Unix("/run/agent.sock".into());
        assert!(is_agent_id(&agent_id(&unix, "unix:///run/agent.sock")));
    }

    #[test]
    fn a_later_life_is_larger_even_if_the_clock_was_set_back() {
        let at = |s| UNIX_EPOCH + Duration::from_secs(s);
        let first = generation(at(1000), None);
        assert!(generation(at(1001), Some(first)) > first);
        assert!(generation(at(10), Some(first)) > first);
    }
}
