//! Engines that may be asked for prefill and to encode media, and be pulled from. Their addresses
//! come with the request: without a limit, whoever can send those headers could make this proxy, or
//! the engine beside it, call any address.

use crate::upstream::metadata::{is_metadata, share};
use crate::upstream::target::Target;
use std::net::IpAddr;
use std::str::FromStr;

/// Networks of pods: addresses that are never routed on the internet, but for loopback and
/// link-local ones, where a pod's own services are. Some clouds have metadata in these networks: see
/// [`is_metadata`].
///
/// Source: RFC 1918, RFC 6598 and RFC 4193.
pub(crate) const PRIVATE: [&str; 5] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];

/// Engines that may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowList {
    /// Everything: the operator relies on something else.
    Everything,
    /// Engines that at least one of these rules allows.
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

/// Text that is neither a network nor a target.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither ADDRESS/BITS nor HOST:PORT")]
pub(crate) struct NoRule(String);

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

impl AllowList {
    /// Whether prefill may be asked of `target`. A name is allowed only where it stands in the
    /// list as it is: what it resolves to is its owner's to say.
    pub(crate) fn allows(&self, target: &Target) -> bool {
        if target.ip().is_some_and(is_metadata) {
            return false;
        }
        match self {
            Self::Everything => true,
            Self::Some(rules) => rules.iter().any(|rule| rule.allows(target)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::metadata::tests::METADATA;

    fn target(text: &str) -> Target {
        text.parse().expect("a target")
    }

    fn check(rules: &[&str], text: &str) -> bool {
        let rules = rules.iter().map(|rule| rule.parse().expect("a rule")).collect();
        AllowList::Some(rules).allows(&target(text))
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
    fn metadata_is_never_allowed_whatever_the_list() {
        for address in METADATA {
            let text = format!("{address}:80");
            assert!(!check(&PRIVATE, &text), "{text}");
            assert!(!check(&["0.0.0.0/0", "::/0", &text], &text), "{text}");
            assert!(!AllowList::Everything.allows(&target(&text)), "{text}");
        }
        for text in ["100.100.100.201:80", "[fd00:ec3::254]:80", "[64:ff9b::10.0.0.1]:80"] {
            assert!(AllowList::Everything.allows(&target(text)), "{text}");
        }
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
}
