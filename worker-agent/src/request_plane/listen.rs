//! The agent's sockets: bound before the agent registers, so that its record tells real ports.

use crate::config::Listen;
use anyhow::Context;
use stator_runtime::tls;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::Path;
use tokio::net::{TcpListener, TcpSocket, UnixListener};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// The request plane's listener.
pub(crate) enum Listener {
    Tcp(tls::Listener),
    Unix(UnixListener),
}

/// Binds the request plane, whose TCP connections are over TLS where `tls` says how; returns the
/// listener and the endpoint that reaches it.
///
/// # Errors
///
/// When the address is taken or not ours.
pub(crate) fn request_plane(
    listen: &Listen,
    advertise_host: Option<&str>,
    tls: Option<tls::ServerTls>,
) -> anyhow::Result<(Listener, String)> {
    match listen {
        Listen::Tcp(address) => {
            let tcp = bind(*address).with_context(|| format!("listen: cannot bind {address}"))?;
            let (scheme, listener) = match tls {
                None => ("http", tls::Listener::plain(tcp)),
                Some(tls) => ("https", tls::Listener::tls(tcp, tls)),
            };
            let bound = listener.address().context("listen: no local address")?;
            if bound.ip().is_unspecified() && advertise_host.is_none() {
                let advice = "with --advertise-host others can reach it";
                tracing::warn!(%bound, advice, "the agent's record says that it is at 127.0.0.1");
            }
            let endpoint = format!("{scheme}://{}", reachable(bound, advertise_host));
            Ok((Listener::Tcp(listener), endpoint))
        }
        Listen::Unix(path) => {
            // A socket of an agent that was killed still lies there, and cannot be bound again.
            clear_stale(path);
            let listener = UnixListener::bind(path)
                .with_context(|| format!("listen: cannot bind {}", path.display()))?;
            Ok((Listener::Unix(listener), format!("unix://{}", path.display())))
        }
    }
}

/// Binds a socket of the event plane with `bind`.
///
/// # Errors
///
/// When the endpoint is taken or not ours.
pub(crate) async fn event_plane<S>(
    flag: &str,
    endpoint: &str,
    bind: impl AsyncFnOnce(&str) -> Result<S, stator_zmtp::Error>,
) -> anyhow::Result<S> {
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        clear_stale(Path::new(path));
    }
    bind(endpoint).await.with_context(|| format!("{flag}: cannot bind {endpoint}"))
}

/// The endpoint that reaches a socket of the event plane which is bound to `bound`. A socket at the
/// loopback interface is at no other host.
pub(crate) fn event_endpoint(bound: &str, advertise_host: Option<&str>) -> String {
    match bound.strip_prefix("tcp://").and_then(|address| address.parse::<SocketAddr>().ok()) {
        Some(address) => {
            let host = advertise_host.filter(|_| !address.ip().is_loopback());
            format!("tcp://{}", reachable(address, host))
        }
        None => bound.to_owned(),
    }
}

/// The address under which others reach a socket that lends KV and is bound to `bound`.
pub(crate) fn transfer_address(bound: SocketAddr, advertise_host: Option<&str>) -> String {
    reachable(bound, advertise_host.filter(|_| !bound.ip().is_loopback()))
}

/// Binds a TCP socket, and listens.
pub(crate) fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The address under which others reach a socket bound to `bound`.
fn reachable(bound: SocketAddr, advertise_host: Option<&str>) -> String {
    match advertise_host {
        Some(host) => format!("{host}:{}", bound.port()),
        None if bound.ip().is_unspecified() => {
            SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), bound.port()).to_string()
        }
        None => bound.to_string(),
    }
}

/// Removes a Unix socket that nobody listens on, left by an agent that was killed.
fn clear_stale(path: &Path) {
    let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    if UnixStream::connect(path).is_err_and(refused) {
        // If this fails, binding says why.
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bound: &str, host: Option<&str>) -> String {
        reachable(bound.parse().unwrap(), host)
    }

    #[test]
    fn a_record_never_names_the_unspecified_address() {
        assert_eq!(check("10.0.0.1:7000", None), "10.0.0.1:7000");
        assert_eq!(check("0.0.0.0:7000", None), "127.0.0.1:7000");
        assert_eq!(check("[::]:7000", None), "127.0.0.1:7000");
        assert_eq!(check("0.0.0.0:7000", Some("node-1")), "node-1:7000");
    }

    #[test]
    fn a_loopback_socket_of_the_event_plane_is_at_no_other_host() {
        let at = |bound| event_endpoint(bound, Some("node-1"));
        assert_eq!(at("tcp://0.0.0.0:5557"), "tcp://node-1:5557");
        assert_eq!(at("tcp://127.0.0.1:5557"), "tcp://127.0.0.1:5557");
        assert_eq!(at("ipc:///run/events"), "ipc:///run/events");
    }

    #[tokio::test]
    async fn a_dead_agents_socket_is_replaced_and_a_live_ones_kept() {
        let dir = tempfile::tempdir().unwrap();
        let listen = Listen::Unix(dir.path().join("agent.sock"));
        let (first, endpoint) = request_plane(&listen, None, None).unwrap();
        assert!(endpoint.starts_with("unix:///"));
        assert!(request_plane(&listen, None, None).is_err());
        drop(first);
        assert!(request_plane(&listen, None, None).is_ok());
    }
}
