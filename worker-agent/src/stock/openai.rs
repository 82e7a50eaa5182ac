//! Address of an engine that proxies ask themselves.

use crate::config::{Origin, StockSettings};
use stator_dialect::{Description, Kind};
use stator_protos::discovery::ApiRecord;
use std::net::IpAddr;

/// The API of an engine that takes no token ids, as the engine describes itself; nothing of others,
/// because nobody but their agent asks those.
pub(super) fn api(settings: &StockSettings, description: &Description) -> Option<ApiRecord> {
    let Origin::Attached { url } = &settings.origin else { return None };
    let url = reachable(url, settings.reachable_at.as_deref());
    (settings.kind == Kind::Openai).then(|| ApiRecord {
        url,
        model: description.model.clone(),
        takes_cache_salt: description.takes_cache_salt,
    })
}

/// The URL for other machines: an engine that is here for its agent is for them where the agent
/// is, at `host`.
fn reachable(url: &str, host: Option<&str>) -> String {
    let url = url.trim_end_matches('/');
    let own = || {
        let (scheme, rest) = url.split_once("://")?;
        // An IPv6 address stands in brackets, and has colons of its own.
        let end = rest.rfind(':').filter(|at| !rest[*at..].contains(']')).unwrap_or(rest.len());
        let (name, port) = rest.split_at(end);
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let here = bare == "localhost" || bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        let host = host.filter(|_| here)?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Some(format!("{scheme}://{host}{port}"))
    };
    own().unwrap_or_else(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_on_the_loopback_interface_is_where_its_agent_is_for_others() {
        let check = |url: &str, host: Option<&str>, expected: &str| {
            assert_eq!(reachable(url, host), expected, "{url} {host:?}");
        };
        check("http://127.0.0.1:8000/", None, "http://127.0.0.1:8000");
        check("http://127.0.0.1:8000", Some("10.0.0.7"), "http://10.0.0.7:8000");
        check("http://localhost:8000", Some("node-1"), "http://node-1:8000");
        check("http://[::1]:8000", Some("fd00::7"), "http://[fd00::7]:8000");
        check("https://127.0.0.1", Some("node-1"), "https://node-1");
        check("http://10.0.0.9:8000", Some("10.0.0.7"), "http://10.0.0.9:8000");
        check("http://localhost.pool:80", Some("node-1"), "http://localhost.pool:80");
    }
}
