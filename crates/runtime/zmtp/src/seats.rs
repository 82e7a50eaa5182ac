//! The peers that may stay connected to a bound socket.
//!
//! The table has a limit, and so has the share of each address in it, so that no host locks others
//! out. Where there is no room a newcomer takes the place of a connection that has no use: one
//! whose peer has asked for nothing, was sent nothing, or takes nothing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Connections to one socket.
pub(crate) const CONNECTIONS_MAX: usize = 1024;
/// Connections to one socket from one IP address. Peers at Unix sockets have no address and may
/// have all.
pub(crate) const PER_ADDRESS_MAX: usize = 256;
/// Time after which a connection that takes nothing of what it is sent counts as idle.
const SLOW: Duration = Duration::from_secs(1);

/// Use of a connection so far. Its task writes it, the table reads it.
#[derive(Debug)]
pub(crate) struct SeatUsage {
    start: Instant,
    asked: AtomicBool,
    served: AtomicBool,
    /// Milliseconds from `start` to when the peer last took something while more waited; 0 while
    /// nothing waits.
    owed_since: AtomicU64,
}

impl Default for SeatUsage {
    fn default() -> Self {
        let (asked, served) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { start: Instant::now(), asked, served, owed_since: AtomicU64::new(0) }
    }
}

impl SeatUsage {
    /// The peer subscribed to something, asked for something, or sent a message.
    pub(crate) fn asked(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// The peer was sent everything there was.
    pub(crate) fn served(&self) {
        self.owed_since.store(0, Ordering::Relaxed);
        if self.asked.load(Ordering::Relaxed) {
            self.served.store(true, Ordering::Relaxed);
        }
    }

    /// Something waits to be taken by the peer, who last took something then.
    pub(crate) fn owes(&self, since: Instant) {
        let since = u64::try_from((since - self.start).as_millis()).unwrap_or(u64::MAX);
        self.owed_since.store(since.max(1), Ordering::Relaxed);
    }

    /// Whether nobody would miss the connection.
    pub(crate) fn is_idle(&self) -> bool {
        let owed_since = self.owed_since.load(Ordering::Relaxed);
        let is_slow = owed_since > 0
            && self.start.elapsed() > Duration::from_millis(owed_since).saturating_add(SLOW);
        let used = self.asked.load(Ordering::Relaxed) && self.served.load(Ordering::Relaxed);
        !used || is_slow
    }
}

/// Whether there is room for one more connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is.
    Free,
    /// In the place of this one.
    InPlaceOf(usize),
    /// There is none.
    None,
}

/// One connection as the table sees it.
#[derive(Debug)]
pub(crate) struct Seat<T> {
    /// Address of the peer; `None` at a Unix socket.
    pub(crate) address: Option<IpAddr>,
    pub(crate) usage: Arc<SeatUsage>,
    /// Handle that ends the connection.
    pub(crate) connection: T,
}

/// Decides about a newcomer; `seats` are in the order of their coming.
///
/// Within its address's share, and where the table is full, the oldest idle connection gives way.
/// Where none is idle, the newest of the address that has most does, if that has more than the
/// newcomer's would: every address gets in.
pub(crate) fn room<T>(seats: &[Seat<T>], address: Option<IpAddr>) -> Room {
    let own = seats.iter().filter(|seat| seat.address == address).count();
    let over_share = address.is_some() && own >= PER_ADDRESS_MAX;
    if !over_share && seats.len() < CONNECTIONS_MAX {
        return Room::Free;
    }
    let candidate = |seat: &Seat<T>| !over_share || seat.address == address;
    if let Some(idle) = seats.iter().position(|seat| candidate(seat) && seat.usage.is_idle()) {
        return Room::InPlaceOf(idle);
    }
    // An address that is over its share takes no place from others.
    if over_share {
        return Room::None;
    }
    let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
    for seat in seats {
        *counts.entry(seat.address).or_default() += 1;
    }
    let Some((most, count)) = counts.into_iter().max_by_key(|(_, count)| *count) else {
        return Room::None;
    };
    if count <= own + 1 {
        return Room::None;
    }
    seats.iter().rposition(|seat| seat.address == most).map_or(Room::None, Room::InPlaceOf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, n]))
    }

    fn seats(address: Option<IpAddr>, count: usize, used: bool) -> Vec<Seat<()>> {
        let seat = |_| {
            let usage = Arc::new(SeatUsage::default());
            if used {
                usage.asked();
                usage.served();
            }
            Seat { address, usage, connection: () }
        };
        (0..count).map(seat).collect()
    }

    #[test]
    fn an_address_has_a_share_and_its_oldest_idle_connection_gives_way() {
        let mut known = seats(address(1), PER_ADDRESS_MAX, true);
        assert_eq!(room(&known, address(1)), Room::None);
        assert_eq!(room(&known, address(2)), Room::Free);
        assert_eq!(room(&seats(None, PER_ADDRESS_MAX, false), None), Room::Free);
        known.splice(0..1, seats(address(2), 1, false));
        assert_eq!(room(&known, address(1)), Room::Free);
        known.splice(5..7, seats(address(1), 3, false));
        assert_eq!(room(&known, address(1)), Room::InPlaceOf(5));
    }

    #[test]
    fn in_a_full_table_the_oldest_idle_connection_of_any_address_gives_way() {
        let mut known = seats(None, CONNECTIONS_MAX - 2, true);
        known.extend(seats(address(1), 2, false));
        assert_eq!(room(&known, address(2)), Room::InPlaceOf(CONNECTIONS_MAX - 2));
        assert_eq!(room(&known, None), Room::InPlaceOf(CONNECTIONS_MAX - 2));
    }

    #[test]
    fn every_address_gets_in_where_others_have_more() {
        let shares = [(1, 256), (2, 255), (3, 256), (4, 256), (5, 1)];
        let known: Vec<_> =
            shares.into_iter().flat_map(|(n, count)| seats(address(n), count, true)).collect();
        assert_eq!(known.len(), CONNECTIONS_MAX);
        let Room::InPlaceOf(victim) = room(&known, address(5)) else { panic!("it gets in") };
        assert_ne!(known[victim].address, address(5));
        assert!(matches!(room(&known, address(6)), Room::InPlaceOf(_)));
        assert_eq!(room(&known, address(2)), Room::None);
        // Nobody has more than one.
        let each = |n: usize| seats(Some(IpAddr::from([10, 1, (n >> 8) as u8, n as u8])), 1, true);
        let known: Vec<_> = (0..CONNECTIONS_MAX).flat_map(each).collect();
        assert_eq!(room(&known, address(1)), Room::None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_is_idle_that_asks_for_nothing_gets_nothing_or_takes_nothing() {
        let usage = SeatUsage::default();
        usage.served();
        assert!(usage.is_idle(), "it was greeted, no more");
        usage.asked();
        assert!(usage.is_idle());
        usage.served();
        assert!(!usage.is_idle());
        tokio::time::advance(Duration::from_secs(100)).await;
        usage.owes(Instant::now());
        assert!(!usage.is_idle());
        tokio::time::advance(SLOW + Duration::from_millis(1)).await;
        assert!(usage.is_idle());
        usage.served();
        assert!(!usage.is_idle());
    }
}
