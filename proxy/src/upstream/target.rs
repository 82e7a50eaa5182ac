//! Addresses of engines: a host and a port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// A host, which is an address or a name, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// An address, IPv6 without brackets, or a name in lower case.
    pub host: String,
    /// Its port, never 0.
    pub port: u16,
}

/// Text that is no `host:port`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not HOST:PORT")]
pub(crate) struct NoTarget(String);

impl Target {
    /// The address, where the host is one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.ip()?, self.port))
    }

    /// The host as it stands in a URL: IPv6 in brackets.
    pub(crate) fn url_host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// The host, where it is an address. An IPv4 address that is written as IPv6 is that IPv4
    /// address.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        self.host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
    }
}

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        let wrong = || NoTarget(text.chars().take(100).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            let address: Ipv6Addr = inner.parse().map_err(|_| wrong())?;
            return Ok(Self { host: address.to_string(), port });
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        match !host.is_empty() && host.len() <= 253 && host.bytes().all(plain) {
            true => Ok(Self { host: host.to_ascii_lowercase(), port }),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.url_host(), self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(text: &str) -> Target {
        text.parse().expect("a target")
    }

    #[test]
    fn targets_are_read_and_written() {
        for text in ["10.0.0.1:8000", "[fd00::1]:8000", "prefill-0.pool.svc:80"] {
            assert_eq!(target(text).to_string(), text);
        }
        assert_eq!(target("Prefill:1"), target("prefill:1"));
        for text in [
            "",
            "10.0.0.1",
            ":80",
            "a:0",
            "a:99999",
            "fd00::1:80",
            "[a]:80",
            "[fd00::1",
            "a b:80",
            "a/b:80",
            "u@h:80",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in ".{0,40}") {
            if let Ok(target) = text.parse::<Target>() {
                prop_assert_eq!(target.to_string().parse(), Ok(target));
            }
        }
    }
}
