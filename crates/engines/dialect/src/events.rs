//! Endpoints of ZMQ publishers, as an engine binds them and as others connect to them.

/// Address to connect to for the KV events that an engine on `host` publishes at `endpoint`.
///
/// `None` where the engine connects instead of binding: engines bind files and wildcards alone.
pub(crate) fn publisher(endpoint: &str, host: &str) -> Option<String> {
    if endpoint.starts_with("ipc://") {
        return Some(endpoint.to_owned());
    }
    at_host(endpoint, host)
}

/// Address to connect to for the replay of events from an engine on `host`. Engines bind every
/// replay endpoint, wildcard or not.
pub(crate) fn replay(endpoint: &str, host: &str) -> String {
    at_host(endpoint, host).unwrap_or_else(|| endpoint.to_owned())
}

/// The endpoint with a host in place of a wildcard, where there is one.
fn at_host(endpoint: &str, host: &str) -> Option<String> {
    let (bound, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    let wildcard = matches!(bound, "*" | "0.0.0.0" | "[::]" | "::");
    wildcard.then(|| format!("tcp://{host}:{port}"))
}

/// Endpoint of a data-parallel rank, derived from that of rank 0: the port plus `rank`.
pub(crate) fn shifted(endpoint: &str, rank: u16) -> String {
    let at_port = endpoint.rsplit_once(':').and_then(|(before, port)| {
        let port: u16 = port.parse().ok()?;
        Some(format!("{before}:{}", port.checked_add(rank)?))
    });
    at_port.unwrap_or_else(|| endpoint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_become_the_engines_host() {
        for bound in ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557"] {
            assert_eq!(publisher(bound, "10.0.0.1").as_deref(), Some("tcp://10.0.0.1:5557"));
            assert_eq!(replay(bound, "10.0.0.1"), "tcp://10.0.0.1:5557");
        }
        assert_eq!(publisher("ipc:///tmp/x", "h").as_deref(), Some("ipc:///tmp/x"));
    }

    #[test]
    fn what_an_engine_connects_to_is_no_publisher_but_replay_is_always_bound() {
        for connected in
            ["tcp://127.0.0.1:5557", "tcp://collector:5557", "inproc://x", "", "tcp://*"]
        {
            assert_eq!(publisher(connected, "10.0.0.1"), None, "{connected}");
        }
        assert_eq!(replay("tcp://127.0.0.1:6557", "10.0.0.1"), "tcp://127.0.0.1:6557");
    }

    #[test]
    fn ranks_publish_on_the_following_ports() {
        assert_eq!(shifted("tcp://*:5557", 0), "tcp://*:5557");
        assert_eq!(shifted("tcp://*:5557", 3), "tcp://*:5560");
        assert_eq!(shifted("ipc:///tmp/x", 1), "ipc:///tmp/x");
    }
}
