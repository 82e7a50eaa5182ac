//! Reads the workers' logs for one replay, a part at a time.

use super::LogEntry;
use super::queue::Message;
use bytes::Bytes;
use std::time::Duration;
use std::vec::IntoIter;

/// Longest wait for a subscriber to take one answer or frame of a replay. The replay is cut off then,
/// so that it holds neither its place nor batches that the log forgets.
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of messages that are taken at once; a larger message is a part of its own.
pub(super) const PART_BYTES: usize = 256 << 10;
/// Batches that are taken from a log at once: a slow replay holds no more of what the log forgets.
const BATCHES: usize = 256;

/// The batches that a subscriber asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplayRange {
    /// Number of the first batch.
    pub(super) start: u64,
    /// The worker's topic; absent for the batches of all workers.
    pub(super) topic: Option<Bytes>,
}

/// The log has forgotten a batch after it gave the one before: the replay is a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log forgot batch {number} meanwhile")]
pub(super) struct LogGap {
    number: u64,
}

/// The batches of one replay: from each log those up to its end when its turn came. Later batches
/// reach subscribers anyway.
pub(super) struct Reader {
    logs: IntoIter<LogEntry>,
    start: u64,
    open: Option<Position>,
}

/// A log, and the next batch to read from it.
struct Position {
    entry: LogEntry,
    next: u64,
    end: u64,
    begun: bool,
}

impl Reader {
    /// Reads what is wanted of these logs.
    pub(super) fn new(mut logs: Vec<LogEntry>, wanted: &ReplayRange) -> Self {
        logs.retain(|entry| wanted.topic.as_ref().is_none_or(|topic| *topic == entry.topic));
        Self { logs: logs.into_iter(), start: wanted.start, open: None }
    }

    /// The next batches, about `bytes_max` of them and at least one; `None` after the last.
    ///
    /// # Errors
    ///
    /// [`LogGap`] where the rest is lost.
    pub(super) fn next(&mut self, bytes_max: usize) -> Result<Option<Vec<Message>>, LogGap> {
        loop {
            let Some(position) = &mut self.open else {
                let Some(entry) = self.logs.next() else { return Ok(None) };
                let end = entry.log.lock().next();
                self.open = Some(Position { entry, next: self.start, end, begun: false });
                continue;
            };
            match position.read(bytes_max)? {
                Some(part) => return Ok(Some(part)),
                None => self.open = None,
            }
        }
    }
}

impl Position {
    fn read(&mut self, bytes_max: usize) -> Result<Option<Vec<Message>>, LogGap> {
        if self.next >= self.end {
            return Ok(None);
        }
        let part = self.entry.log.lock().part(self.next, BATCHES, bytes_max);
        let first = part.first().map(|(first, _)| *first);
        if self.begun && first != Some(self.next) {
            return Err(LogGap { number: self.next });
        }
        let Some(first) = first else { return Ok(None) };
        (self.next, self.begun) = (first + part.len() as u64, true);
        let topic = &self.entry.topic;
        let message = |(number, payload)| Message { topic: topic.clone(), number, payload };
        Ok(Some(part.into_iter().map(message).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::EventLog;
    use super::*;
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn entry(name: &'static str, batches: u64, limit_bytes: usize) -> LogEntry {
        let mut log = EventLog::new(limit_bytes);
        for number in 0..batches {
            log.append(Bytes::copy_from_slice(&number.to_be_bytes()));
        }
        LogEntry { topic: Bytes::from_static(name.as_bytes()), log: Arc::new(Mutex::new(log)) }
    }

    fn read(reader: &mut Reader, bytes_max: usize) -> Vec<(Bytes, u64)> {
        let mut found = Vec::new();
        while let Some(part) = reader.next(bytes_max).unwrap() {
            assert!(!part.is_empty() && part.len() <= BATCHES);
            found.extend(part.into_iter().map(|message| {
                assert_eq!(message.payload, message.number.to_be_bytes().as_slice());
                (message.topic, message.number)
            }));
        }
        found
    }

    #[test]
    fn a_replay_ends_where_the_log_was_when_it_began() {
        let entry = entry("a", 10, 1 << 20);
        let wanted = ReplayRange { start: 8, topic: None };
        let mut reader = Reader::new(vec![entry.clone()], &wanted);
        assert_eq!(reader.next(1).unwrap().unwrap()[0].number, 8);
        entry.log.lock().append(Bytes::new());
        assert_eq!(reader.next(1).unwrap().unwrap()[0].number, 9);
        assert_eq!(reader.next(1), Ok(None));
    }

    #[test]
    fn a_part_is_never_told_for_the_whole() {
        let entry = entry("a", 3, 3 * (64 + 8));
        let mut reader = Reader::new(vec![entry.clone()], &ReplayRange { start: 0, topic: None });
        assert_eq!(reader.next(1).unwrap().unwrap()[0].number, 0);
        for _ in 0..3 {
            entry.log.lock().append(Bytes::from_static(&[0; 8]));
        }
        assert_eq!(reader.next(1), Err(LogGap { number: 1 }));
    }

    proptest! {
        /// Parts of any size together are the batches of the logs from the start on, in order.
        #[test]
        fn all_parts_together_are_the_log(
            batches in 0u64..600, start in 0u64..700, kept in 1usize..700, bytes_max in 1usize..40_000,
            one in any::<bool>(),
        ) {
            let logs = vec![entry("a", batches, kept * (64 + 8)), entry("b", 3, 1 << 20)];
            let topic = one.then_some(Bytes::from_static(b"a"));
            let found = read(&mut Reader::new(logs, &ReplayRange { start, topic }), bytes_max);
            let held = batches.saturating_sub(kept as u64).max(start)..batches;
            let rest = if one { 3..3 } else { start.min(3)..3 };
            let of = |name: &'static str| move |number| (Bytes::from_static(name.as_bytes()), number);
            let expected: Vec<_> = held.map(of("a")).chain(rest.map(of("b"))).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
