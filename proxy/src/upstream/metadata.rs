//! Addresses of clouds' metadata services, which no request may reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// Whether two addresses of one family have the same first `bits`.
pub(crate) fn share(a: IpAddr, b: IpAddr, bits: u8) -> bool {
    let differ = |xor: u128, width: u32| xor.checked_shr(width - u32::from(bits)).unwrap_or(0);
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => differ(u128::from(a.to_bits() ^ b.to_bits()), 32) == 0,
        (IpAddr::V6(a), IpAddr::V6(b)) => differ(a.to_bits() ^ b.to_bits(), 128) == 0,
        _ => false,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
        /// As counting the equal leading bits.
        #[test]
        fn networks_agree_with_their_bits(a in any::<u32>(), flip in 0_u32..33, bits in 0_u8..33) {
            let b = if flip == 32 { a } else { a ^ (1 << flip) };
            let expected = (a ^ b).leading_zeros() >= u32::from(bits);
            prop_assert_eq!(share(IpAddr::V4(a.into()), IpAddr::V4(b.into()), bits), expected);
        }
    }
}
