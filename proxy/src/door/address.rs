//! Addresses of clients, as shares are counted by them.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// Bits of an IPv6 address that are one client's: the smallest network that sites are given.
///
/// Source: RFC 6177.
const IPV6_CLIENT_BITS: u32 = 64;

/// One client as others see it: an IPv4 address, or an IPv6 network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientAddress(IpAddr);

impl ClientAddress {
    /// The client that connects from this address.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(v6) => {
                let mask = u128::MAX << (128 - IPV6_CLIENT_BITS);
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
            v4 => v4,
        })
    }
}

/// Addresses that share their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

/// Text that is no network.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an address nor ADDRESS/BITS")]
pub struct NoNetwork(String);

impl Network {
    /// Whether an address belongs to it.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let differ = |xor: u128, width: u32| xor.checked_shr(width - self.bits).unwrap_or(0) != 0;
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => !differ(u128::from(a.to_bits() ^ b.to_bits()), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => !differ(a.to_bits() ^ b.to_bits(), 128),
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Self, NoNetwork> {
        let wrong = || NoNetwork(text.chars().take(100).collect());
        let (address, bits) = match text.trim().split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).ok().filter(|bits| *bits <= most);
        Ok(Self { address, bits: bits.ok_or_else(wrong)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_an_ipv4_address_or_an_ipv6_network() {
        let of = |text: &str| ClientAddress::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn networks_hold_the_addresses_that_share_their_bits() {
        let holds = |network: &str, address: &str| {
            network.parse::<Network>().unwrap().contains(address.parse().unwrap())
        };
        assert!(holds("10.1.0.0/16", "10.1.2.3") && !holds("10.1.0.0/16", "10.2.0.1"));
        assert!(holds("10.1.0.1", "10.1.0.1") && !holds("10.1.0.1", "10.1.0.2"));
        assert!(holds("10.1.0.1", "::ffff:10.1.0.1"));
        assert!(holds("2001:db8::/32", "2001:db8:9::1") && !holds("2001:db8::/32", "10.0.0.1"));
        assert!(holds("0.0.0.0/0", "192.0.2.1") && holds("::/0", "2001:db8::1"));
        for wrong in ["", "gateway", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "10.0.0.0/"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
