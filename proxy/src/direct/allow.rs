//! Which other engines may be asked for prefill and to encode media, and be pulled from. Their
//! addresses come with the request: without a limit, whoever can send those headers could make this
//! proxy, or the engine beside it, call any address.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Networks of pods: addresses that are never routed on the internet, but for loopback and
/// link-local ones, where a pod's own services and a cloud's metadata are.
///
/// Source: RFC 1918, RFC 6598 and RFC 4193.
pub(crate) const PRIVATE: [&str; 5] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];

/// A host, which is an address or a name, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// An address, IPv6 without brackets, or a name in lower case.
    pub host: String,
    /// Its port, never 0.
    pub port: u16,
}

/// What is no `host:port`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not HOST:PORT")]
pub(crate) struct NoTarget(String);

/// Which engines may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowList {
    /// Everything: the operator relies on something else.
    Everything,
    /// What at least one of these allows.
    Some(Vec<Rule>),
}

/// One line of an [`AllowList`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Addresses that share the first `bits` with `address`, on any port.
    Network {
        /// An address of the network.
        address: IpAddr,
        /// Bits that count, at most 32 or 128.
        bits: u8,
    },
    /// Exactly this.
    Target(Target),
}

/// What is neither a network nor a target.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither ADDRESS/BITS nor HOST:PORT")]
pub(crate) struct NoRule(String);

impl Target {
    /// The address, where the host is one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.ip()?, self.port))
    }

    /// The host as it stands in a URL: IPv6 in brackets.
    pub(crate) fn url_host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// An IPv4 address that is written as IPv6 is that IPv4 address.
    fn ip(&self) -> Option<IpAddr> {
        self.host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
    }
}

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        let wrong = || NoTarget(text.chars().take(100).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?.to_string(),
            None => host.to_ascii_lowercase(),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = !host.is_empty() && host.len() <= 253 && host.bytes().all(plain);
        match is_name || host.contains(':') && text.starts_with('[') {
            true => Ok(Self { host, port }),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.url_host(), self.port)
    }
}

impl FromStr for Rule {
    type Err = NoRule;

    fn from_str(text: &str) -> Result<Self, NoRule> {
        let wrong = || NoRule(text.to_owned());
        let Some((address, bits)) = text.split_once('/') else {
            return text.parse().map(Self::Target).map_err(|_| wrong());
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?;
        Ok(Self::Network { address, bits })
    }
}

impl Rule {
    fn allows(&self, target: &Target) -> bool {
        match self {
            Self::Target(own) => match (own.ip(), target.ip()) {
                (Some(own_ip), Some(ip)) => own_ip == ip && own.port == target.port,
                _ => own == target,
            },
            Self::Network { address, bits } => {
                target.ip().is_some_and(|ip| share(*address, ip, *bits))
            }
        }
    }
}

/// Whether two addresses of one family have the same first `bits`.
fn share(a: IpAddr, b: IpAddr, bits: u8) -> bool {
    let differ = |xor: u128, width: u32| xor.checked_shr(width - u32::from(bits)).unwrap_or(0);
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => differ(u128::from(a.to_bits() ^ b.to_bits()), 32) == 0,
        (IpAddr::V6(a), IpAddr::V6(b)) => differ(a.to_bits() ^ b.to_bits(), 128) == 0,
        _ => false,
    }
}

impl AllowList {
    /// Whether prefill may be asked of `target`. A name is allowed only where it stands in the
    /// list as it is: what it resolves to is its owner's to say.
    pub(crate) fn allows(&self, target: &Target) -> bool {
        match self {
            Self::Everything => true,
            Self::Some(rules) => rules.iter().any(|rule| rule.allows(target)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(text: &str) -> Target {
        text.parse().expect("a target")
    }

    fn check(rules: &[&str], text: &str) -> bool {
        let rules = rules.iter().map(|rule| rule.parse().expect("a rule")).collect();
        AllowList::Some(rules).allows(&target(text))
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
            "a b:80",
            "a/b:80",
            "u@h:80",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_private_networks_are_allowed_by_default() {
        for text in
            ["10.1.2.3:8000", "172.31.0.1:1", "192.168.0.1:80", "100.64.0.1:1", "[fd00::1]:1"]
        {
            assert!(check(&PRIVATE, text), "{text}");
        }
        for text in [
            "127.0.0.1:80",
            "169.254.169.254:80",
            "172.32.0.1:80",
            "8.8.8.8:80",
            "[::1]:80",
            "[fe80::1]:80",
            "[::ffff:127.0.0.1]:80",
            "[::ffff:169.254.169.254]:80",
            "0.0.0.0:80",
            "localhost:80",
            "kubernetes.default.svc:443",
            "10.0.0.1.example.org:80",
            "0x0a.1:80",
        ] {
            assert!(!check(&PRIVATE, text), "{text}");
        }
        assert!(check(&PRIVATE, "[::ffff:10.0.0.1]:80"));
    }

    #[test]
    fn single_targets_are_allowed_as_they_stand() {
        let rules = ["prefill:8000", "127.0.0.1:9000", "[::1]:9001"];
        for text in ["prefill:8000", "PREFILL:8000", "127.0.0.1:9000", "[0:0::1]:9001"] {
            assert!(check(&rules, text), "{text}");
        }
        for text in ["prefill:8001", "127.0.0.1:9001", "127.0.0.2:9000"] {
            assert!(!check(&rules, text), "{text}");
        }
        assert!(AllowList::Everything.allows(&target("example.org:80")));
    }

    #[test]
    fn wrong_rules_are_refused() {
        for text in
            ["", "10.0.0.0/33", "fc00::/129", "10.0.0.0/", "/8", "host", "host/8", "1.2.3.4"]
        {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
    }

    proptest! {
        /// As counting the equal leading bits.
        #[test]
        fn networks_agree_with_their_bits(a in any::<u32>(), flip in 0_u32..33, bits in 0_u8..33) {
            let b = if flip == 32 { a } else { a ^ (1 << flip) };
            let expected = (a ^ b).leading_zeros() >= u32::from(bits);
            prop_assert_eq!(share(IpAddr::V4(a.into()), IpAddr::V4(b.into()), bits), expected);
        }

        #[test]
        fn any_text_is_answered(text in ".{0,40}") {
            if let Ok(target) = text.parse::<Target>() {
                prop_assert_eq!(target.to_string().parse(), Ok(target));
            }
        }
    }
}
