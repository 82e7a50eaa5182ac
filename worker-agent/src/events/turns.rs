//! The order in which replays run.
//!
//! A replay lasts as long as its peer takes to read it. So several run at once, one for each
//! connection and a few for each address, and who waits has its turn before an address that has
//! more running: peers that do not read hold up nobody but, within limits, their own host.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Replays that run at once.
const RUNNING_MAX: usize = 32;
/// Replays that run at once for one address; Unix sockets, which have none, count as one.
const PER_ADDRESS_MAX: usize = 8;
/// Requests of one connection that may wait.
const WAITING_MAX: usize = 16;

/// The requests that wait or run, by connection. `K` tells connections apart.
#[derive(Debug)]
pub(super) struct Turns<K, T> {
    /// Connections with a request; who had a turn goes to the end.
    lines: VecDeque<Line<K, T>>,
    /// Running replays by address, without zeros.
    running: HashMap<Option<IpAddr>, usize>,
}

#[derive(Debug)]
struct Line<K, T> {
    connection: K,
    address: Option<IpAddr>,
    waiting: VecDeque<T>,
    is_running: bool,
}

impl<K, T> Default for Turns<K, T> {
    fn default() -> Self {
        Self { lines: VecDeque::new(), running: HashMap::new() }
    }
}

impl<K: Clone + PartialEq, T> Turns<K, T> {
    /// A connection asks; false if too many requests of it wait.
    pub(super) fn push(&mut self, connection: K, address: Option<IpAddr>, request: T) -> bool {
        let known = self.lines.iter_mut().find(|line| line.connection == connection);
        let Some(line) = known else {
            let waiting = VecDeque::from([request]);
            self.lines.push_back(Line { connection, address, waiting, is_running: false });
            return true;
        };
        if line.waiting.len() >= WAITING_MAX {
            return false;
        }
        line.waiting.push_back(request);
        true
    }

    /// The next request to run, if one may; [`Turns::done`] is to be called at its end.
    pub(super) fn next(&mut self) -> Option<(K, T)> {
        if self.running.values().sum::<usize>() >= RUNNING_MAX {
            return None;
        }
        let running = |line: &Line<K, T>| self.running.get(&line.address).copied().unwrap_or(0);
        let may = |line: &&(usize, &Line<K, T>)| {
            !line.1.is_running && !line.1.waiting.is_empty() && running(line.1) < PER_ADDRESS_MAX
        };
        let lines = self.lines.iter().enumerate();
        let (at, _) = lines.filter(|line| may(&line)).min_by_key(|(_, line)| running(line))?;
        let mut line = self.lines.remove(at)?;
        let next = line.waiting.pop_front().map(|request| (line.connection.clone(), request));
        line.is_running = true;
        *self.running.entry(line.address).or_default() += 1;
        self.lines.push_back(line);
        next
    }

    /// A connection's running replay has ended.
    pub(super) fn done(&mut self, connection: &K) {
        let found = self.lines.iter().position(|line| line.connection == *connection);
        let Some(line) = found.and_then(|at| self.lines.get_mut(at)) else { return };
        line.is_running = false;
        if let Some(count) = self.running.get_mut(&line.address) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&line.address);
            }
        }
        if line.waiting.is_empty() {
            self.lines.remove(found.expect("it was found"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(n: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, n]))
    }

    #[test]
    fn a_connection_has_one_replay_at_a_time_and_some_that_wait() {
        let mut turns = Turns::default();
        for request in 0..=WAITING_MAX {
            assert_eq!(turns.push('a', at(1), request), request < WAITING_MAX);
        }
        assert_eq!(turns.next(), Some(('a', 0)));
        assert_eq!(turns.next(), None);
        turns.done(&'a');
        assert_eq!(turns.next(), Some(('a', 1)));
    }

    #[test]
    fn an_address_with_many_requests_leaves_room_for_others() {
        let mut turns = Turns::default();
        for connection in 0..100 {
            assert!(turns.push(connection, at(1), ()));
        }
        let first: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(first.len(), PER_ADDRESS_MAX);
        assert!(turns.push(100, at(2), ()));
        assert_eq!(turns.next(), Some((100, ())));
        // In the order in which they came.
        turns.done(&0);
        assert_eq!(turns.next(), Some((PER_ADDRESS_MAX, ())));
    }

    #[test]
    fn who_has_fewer_running_comes_first_where_all_wait() {
        let mut turns = Turns::default();
        for connection in 0..100u8 {
            turns.push(connection, at(connection % 5), ());
        }
        let first: Vec<_> = std::iter::from_fn(|| turns.next()).map(|(c, ())| c % 5).collect();
        assert_eq!(first.len(), RUNNING_MAX);
        for address in 0..5 {
            let count = first.iter().filter(|found| **found == address).count();
            assert!((6..=7).contains(&count), "{first:?}");
        }
    }

    proptest! {
        /// Every accepted request runs once, within the bounds, in any order, and nothing stays.
        #[test]
        fn everything_that_was_taken_runs(steps in prop::collection::vec((0u8..12, any::<bool>()), 0..200)) {
            let mut turns = Turns::default();
            let (mut taken, mut ran, mut running) = (0, 0, Vec::new());
            for (connection, asks) in steps {
                if asks {
                    taken += usize::from(turns.push(connection, at(connection % 2), ()));
                } else if let Some(connection) = running.pop() {
                    turns.done(&connection);
                }
                while let Some((connection, ())) = turns.next() {
                    prop_assert!(!running.contains(&connection));
                    running.push(connection);
                    ran += 1;
                }
                prop_assert!(running.len() <= RUNNING_MAX);
            }
            while let Some(connection) = running.pop() {
                turns.done(&connection);
                while let Some((connection, ())) = turns.next() {
                    running.push(connection);
                    ran += 1;
                }
            }
            prop_assert_eq!(taken, ran);
            prop_assert!(turns.lines.is_empty() && turns.running.is_empty());
        }
    }
}
