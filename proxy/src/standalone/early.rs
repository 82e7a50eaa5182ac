//! Reports of other replicas on workers that this one has not found yet.

use parking_lot::Mutex;
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use std::time::{Duration, Instant};

/// Blocks that are kept, 8 MiB; what comes beyond them is lost.
const HASHES_MAX: usize = 1 << 20;

/// Lifetime of a report: discovery finds a worker everywhere at about the same time.
const KEPT: Duration = Duration::from_secs(10);

/// Prompts that went to workers that are not known yet.
#[derive(Default)]
pub(crate) struct EarlyReports(Mutex<Vec<Sent>>);

struct Sent {
    worker: WorkerRank,
    sequence: Vec<SequenceHash>,
    heard: Instant,
}

impl EarlyReports {
    /// A prompt went to a worker that is not known.
    pub(crate) fn keep(&self, worker: WorkerRank, sequence: &[SequenceHash]) {
        let mut kept = self.0.lock();
        let hashes: usize = kept.iter().map(|sent| sent.sequence.len()).sum();
        if hashes + sequence.len() <= HASHES_MAX {
            kept.push(Sent { worker, sequence: sequence.to_vec(), heard: Instant::now() });
        }
    }

    /// The prompts of a worker that is known now, oldest first.
    pub(crate) fn take(&self, worker: WorkerRank) -> Vec<Vec<SequenceHash>> {
        let mut kept = self.0.lock();
        let of_worker = kept.extract_if(.., |sent| sent.worker == worker);
        of_worker.map(|sent| sent.sequence).collect()
    }

    /// Forgets what has waited too long at `now`.
    pub(crate) fn expire(&self, now: Instant) {
        self.0.lock().retain(|sent| now.saturating_duration_since(sent.heard) < KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::WorkerId;

    fn rank(worker: u64) -> WorkerRank {
        WorkerRank { worker: WorkerId(worker), rank: 0 }
    }

    #[test]
    fn what_came_too_early_is_kept_for_its_worker_within_bounds() {
        let early = EarlyReports::default();
        let sequence = |from| vec![SequenceHash(from), SequenceHash(from + 1)];
        early.keep(rank(1), &sequence(1));
        early.keep(rank(2), &sequence(3));
        early.keep(rank(1), &sequence(5));
        early.keep(rank(1), &vec![SequenceHash(7); HASHES_MAX]);
        assert_eq!(early.take(rank(1)), [sequence(1), sequence(5)]);
        assert!(early.take(rank(1)).is_empty());
        early.expire(Instant::now() + KEPT);
        assert!(early.take(rank(2)).is_empty());
    }
}
