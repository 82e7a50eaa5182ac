//! Which other engines may be asked for prefill and to encode media, and be pulled from. Their
//! addresses come with the request: without a limit, whoever can send those headers could make this
//! proxy, or the engine beside it, call any address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Networks of pods: addresses that are never routed on the internet, but for loopback and
/// link-local ones, where a pod's own services are. Some clouds have metadata in these networks: see
/// [`is_metadata`].
///
/// Source: RFC 1918, RFC 6598 and RFC 4193.
pub(crate) const PRIVATE: [&str; 5] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];

/// Whether a cloud tells machines their credentials at this address. No engine has such an address,
/// and nobody is ever called there, whatever the list says. An IPv4 address counts however it is
/// written as IPv6.
///
/// Source: the documents of AWS, Azure, GCP, Oracle, Alibaba, Scaleway and OpenStack about the
/// addresses of instance metadata; RFC 3927, RFC 4291, RFC 6052 and RFC 3056.
pub(crate) fn is_metadata(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_metadata_v4(ip),
        IpAddr::V6(ip) => {
            let known = METADATA_V6
                .iter()
                .any(|(network, bits)| share(IpAddr::V6(*network), IpAddr::V6(ip), *bits));
            known || embedded(ip).is_some_and(is_metadata_v4)
        }
    }
}

fn is_metadata_v4(ip: Ipv4Addr) -> bool {
    const OTHERS: [Ipv4Addr; 3] = [
        // Alibaba, Azure and Oracle.
        Ipv4Addr::new(100, 100, 100, 200),
        Ipv4Addr::new(168, 63, 129, 16),
        Ipv4Addr::new(192, 0, 0, 192),
    ];
    ip.is_link_local() || OTHERS.contains(&ip)
}

/// Networks of metadata, and the bits that count.
const METADATA_V6: [(Ipv6Addr, u8); 5] = [
    // AWS, GCP, Oracle, Scaleway, and OpenStack.
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128),
];

/// The IPv4 address that an IPv6 address stands for: by NAT64, 6to4, or in the deprecated form.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let at = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match ip.segments() {
        [0x64, 0xff9b, 0 | 1, _, _, _, high, low] | [0, 0, 0, 0, 0, 0, high, low] => {
            Some(at(high, low))
        }
        [0x2002, high, low, ..] => Some(at(high, low)),
        _ => None,
    }
}

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
        if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            let address: std::net::Ipv6Addr = inner.parse().map_err(|_| wrong())?;
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
pub(crate) mod tests {
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
            "[fd00::1",
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

    /// The metadata addresses of clouds, in every form.
    pub(crate) const METADATA: [&str; 20] = [
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "169.254.0.23",
        "169.254.42.42",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "[::ffff:169.254.169.254]",
        "[::ffff:6464:64c8]",
        "[::169.254.169.254]",
        "[64:ff9b::169.254.169.254]",
        "[64:ff9b:1::a9fe:a9fe]",
        "[2002:a9fe:a9fe::]",
        "[fd00:ec2::254]",
        "[fd00:0ec2:0:0:0:0:0:254]",
        "[fd20:ce::254]",
        "[fd00:c1::a9fe:a9fe]",
        "[fd00:42::42]",
        "[fe80::a9fe:a9fe]",
    ];

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
