//! Free ports for engines, which cannot pick their own.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Range searched for ports, chosen so that nobody is given one of them before the engine starts:
/// below those that systems give to connections, and between those that engines take for
/// themselves. Mooncake listens anywhere from 15000 to 17000 before the engine serves HTTP, and
/// would answer in its place; SGLang takes one from 22000 to 29999.
const PORTS: std::ops::Range<u16> = 17_001..22_000;
/// Attempts before there are no free ports.
const ATTEMPTS: u64 = 256;

/// Finds `count` free ports in a row, on any address and without `besides`; returns the first.
///
/// The ports stay free unless another process takes them before the engine does.
///
/// # Errors
///
/// Where there are none, or `count` is above 1024.
pub fn free_ports(count: u16, besides: u16) -> io::Result<u16> {
    let none = || io::Error::new(io::ErrorKind::AddrNotAvailable, format!("no {count} free ports"));
    if count > 1024 {
        return Err(none());
    }
    let random = RandomState::new();
    let span = u64::from(PORTS.end - PORTS.start - count);
    let candidates = (0..ATTEMPTS).map(|attempt| random.hash_one(attempt) % span);
    let mut candidates =
        candidates.map(|offset| PORTS.start + u16::try_from(offset).expect("the span is below"));
    let fits =
        |first: &u16| !(*first..*first + count).contains(&besides) && are_free(*first, count);
    candidates.find(fits).ok_or_else(none)
}

fn are_free(first: u16, count: u16) -> bool {
    let listen = |port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    let all: io::Result<Vec<_>> = (first..first + count).map(listen).collect();
    all.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_can_be_listened_on() {
        let first = free_ports(3, 0).unwrap();
        for port in first..first + 3 {
            assert!(PORTS.contains(&port));
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }

    #[test]
    fn no_port_is_one_that_an_engine_takes_for_itself() {
        for taken in [15_000..=17_000, 22_000..=29_999] {
            assert!(!taken.contains(&PORTS.start) && !taken.contains(&(PORTS.end - 1)));
            assert!(!PORTS.contains(taken.start()), "{taken:?}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_not_free() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(!are_free(port, 1));
    }

    #[test]
    fn more_ports_than_there_are_is_an_error() {
        let error = free_ports(2000, 0).unwrap_err();
        assert_eq!(error.to_string(), "no 2000 free ports");
    }
}
