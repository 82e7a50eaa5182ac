//! The event log of one worker: the latest batches, bounded in bytes.

use bytes::Bytes;
use std::collections::VecDeque;

/// Overhead of a batch beside its payload: its place in the log and the payload's header.
const BATCH_OVERHEAD_BYTES: usize = 64;

/// Consecutive event batches up to the latest; the oldest go when the bytes run out.
#[derive(Debug)]
pub(crate) struct EventLog {
    batches: VecDeque<Bytes>,
    /// Number of the first batch held, or of the next one where none is.
    first: u64,
    size_bytes: usize,
    limit_bytes: usize,
}

impl EventLog {
    /// An empty log that keeps batches worth `limit_bytes`.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { batches: VecDeque::new(), first: 0, size_bytes: 0, limit_bytes }
    }

    /// Takes the next batch and returns its number.
    pub(crate) fn append(&mut self, payload: Bytes) -> u64 {
        self.size_bytes += payload.len() + BATCH_OVERHEAD_BYTES;
        self.batches.push_back(payload);
        let number = self.first + self.batches.len() as u64 - 1;
        while self.size_bytes > self.limit_bytes {
            let Some(oldest) = self.batches.pop_front() else { break };
            self.size_bytes -= oldest.len() + BATCH_OVERHEAD_BYTES;
            self.first += 1;
        }
        number
    }

    /// Number of the next batch.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.batches.len() as u64
    }

    /// Up to `most` batches from `start` on with their numbers, or from the oldest held if that is
    /// later: about `bytes_max` of them, and at least one.
    pub(crate) fn part(&self, start: u64, most: usize, bytes_max: usize) -> Vec<(u64, Bytes)> {
        let skip = start.saturating_sub(self.first).min(self.batches.len() as u64) as usize;
        let mut room = bytes_max;
        let fits = |batch: &&Bytes| {
            let had = room;
            room = room.saturating_sub(batch.len() + BATCH_OVERHEAD_BYTES);
            had > 0
        };
        let found = self.batches.iter().skip(skip).take(most).take_while(fits).cloned();
        (self.first + skip as u64..).zip(found).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn since(log: &EventLog, start: u64) -> Vec<(u64, Bytes)> {
        log.part(start, usize::MAX, usize::MAX)
    }

    #[test]
    fn a_start_beyond_the_end_gives_nothing_and_an_old_one_the_oldest_held() {
        let mut log = EventLog::new(3 * (BATCH_OVERHEAD_BYTES + 1));
        for n in 0..5u8 {
            assert_eq!(log.append(Bytes::copy_from_slice(&[n])), u64::from(n));
        }
        assert_eq!(since(&log, 0).iter().map(|b| b.0).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(since(&log, 4), [(4, Bytes::from_static(&[4]))]);
        let oldest = vec![(2, Bytes::from_static(&[2]))];
        assert_eq!((log.part(0, 1, usize::MAX), log.next()), (oldest.clone(), 5));
        assert_eq!(log.part(0, 9, 1), oldest);
        assert_eq!(log.part(0, 9, BATCH_OVERHEAD_BYTES + 2).len(), 2);
        for start in [5, u64::MAX] {
            assert_eq!(since(&log, start), []);
        }
    }

    #[test]
    fn a_batch_larger_than_the_log_leaves_it_empty_but_counted() {
        let mut log = EventLog::new(100);
        assert_eq!(log.append(Bytes::from(vec![0; 200])), 0);
        assert_eq!(since(&log, 0), []);
        assert_eq!(log.append(Bytes::new()), 1);
    }

    proptest! {
        /// The log is the longest tail of all batches that fits.
        #[test]
        fn holds_the_longest_tail_that_fits(sizes in prop::collection::vec(0usize..300, 0..50)) {
            let limit = 1000;
            let mut log = EventLog::new(limit);
            for size in &sizes {
                log.append(Bytes::from(vec![7; *size]));
            }
            let cost = |tail: &[usize]| tail.iter().map(|s| s + BATCH_OVERHEAD_BYTES).sum::<usize>();
            let first = (0..=sizes.len()).find(|&n| cost(&sizes[n..]) <= limit).unwrap();
            let held: Vec<_> = since(&log, 0).iter().map(|(n, p)| (*n as usize, p.len())).collect();
            let expected: Vec<_> = (first..sizes.len()).map(|n| (n, sizes[n])).collect();
            prop_assert_eq!(held, expected);
        }
    }
}
