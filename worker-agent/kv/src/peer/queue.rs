//! Reads that wait for a peer.

use super::hints::Hint;
use crate::SlotId;
use crate::tier::{TierRead, Urgency};
use stator_protos::name::BlockName;
use std::collections::VecDeque;
use tokio::time::Instant;

/// A read that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuedRead {
    pub(super) read: TierRead,
    pub(super) hint: Hint,
    pub(super) deadline: Instant,
}

/// Reads that wait for one peer, those on demand and all others.
#[derive(Debug, Default)]
pub(super) struct ReadQueue {
    demand: VecDeque<QueuedRead>,
    others: VecDeque<QueuedRead>,
}

impl ReadQueue {
    /// Adds a read; gives it back if `max` of its urgency wait already.
    pub(super) fn push(&mut self, read: QueuedRead, max: usize) -> Result<(), QueuedRead> {
        let queue = match read.read.urgency {
            Urgency::Demand => &mut self.demand,
            Urgency::Prefetch | Urgency::Offload => &mut self.others,
        };
        if queue.len() >= max {
            return Err(read);
        }
        queue.push_back(read);
        Ok(())
    }

    /// The reads to do next, `max` at most: blocks that follow one another in one list of the same
    /// urgency, those on demand before all others.
    pub(super) fn batch(&mut self, max: usize, only_demand: bool) -> Vec<QueuedRead> {
        let queue = match (self.demand.is_empty(), only_demand) {
            (false, _) => &mut self.demand,
            (true, false) => &mut self.others,
            (true, true) => return Vec::new(),
        };
        let follows = |(one, next): (&QueuedRead, &QueuedRead)| {
            next.hint.list == one.hint.list && next.hint.place == one.hint.place + 1
        };
        let together = queue.iter().zip(queue.iter().skip(1)).take_while(|pair| follows(*pair));
        let count = (1 + together.count()).min(max).min(queue.len());
        queue.drain(..count).collect()
    }

    /// Takes a read out, if it waits.
    pub(super) fn take(&mut self, name: BlockName, slot: SlotId) -> Option<QueuedRead> {
        let is_it = |of: &QueuedRead| (of.read.name, of.read.slot) == (name, slot);
        let queues = [&mut self.demand, &mut self.others];
        queues.into_iter().find_map(|queue| queue.remove(queue.iter().position(is_it)?))
    }

    /// Takes the reads whose time is over.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<QueuedRead> {
        let mut expired = Vec::new();
        for queue in [&mut self.demand, &mut self.others] {
            // All have the same time to wait, so the oldest is the first.
            while let Some(read) = queue.pop_front_if(|read| read.deadline <= now) {
                expired.push(read);
            }
        }
        expired
    }

    /// Takes all reads.
    pub(super) fn drain(&mut self) -> Vec<QueuedRead> {
        self.demand.drain(..).chain(self.others.drain(..)).collect()
    }

    /// Number of reads.
    pub(super) fn len(&self) -> usize {
        self.demand.len() + self.others.len()
    }

    /// The earliest deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let fronts = [self.demand.front(), self.others.front()];
        fronts.into_iter().flatten().map(|read| read.deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn queued(list: u64, place: u32, urgency: Urgency) -> QueuedRead {
        let name = BlockName(u128::from(list) << 32 | u128::from(place));
        QueuedRead {
            read: TierRead { name, slot: SlotId(place), urgency },
            hint: Hint { peer: ([127, 0, 0, 1], 1).into(), list, place },
            deadline: Instant::now(),
        }
    }

    fn check(reads: &[QueuedRead], max: usize, only_demand: bool) -> Vec<Vec<u32>> {
        let mut queue = ReadQueue::default();
        reads.iter().for_each(|read| queue.push(*read, 100).unwrap());
        let mut batches = Vec::new();
        loop {
            let batch = queue.batch(max, only_demand);
            if batch.is_empty() {
                return batches;
            }
            batches.push(batch.iter().map(|read| read.hint.place).collect());
        }
    }

    #[tokio::test]
    async fn blocks_that_follow_one_another_are_read_together() {
        let demand = |list, place| queued(list, place, Urgency::Demand);
        let reads = [demand(1, 4), demand(1, 5), demand(1, 6), demand(2, 7), demand(2, 9)];
        assert_eq!(check(&reads, 9, false), [vec![4, 5, 6], vec![7], vec![9]]);
        assert_eq!(check(&reads, 2, false), [vec![4, 5], vec![6], vec![7], vec![9]]);
    }

    #[tokio::test]
    async fn demand_goes_before_prefetch() {
        let reads = [queued(1, 0, Urgency::Prefetch), queued(2, 1, Urgency::Demand)];
        assert_eq!(check(&reads, 9, false), [[1], [0]]);
        assert_eq!(check(&reads, 9, true), [[1]]);
    }

    #[tokio::test]
    async fn a_read_is_taken_out_while_it_waits() {
        let reads = [queued(1, 0, Urgency::Demand), queued(1, 1, Urgency::Prefetch)];
        let mut queue = ReadQueue::default();
        reads.iter().for_each(|read| queue.push(*read, 9).unwrap());
        let name = reads[1].read.name;
        assert_eq!(queue.take(name, SlotId(0)), None);
        assert_eq!(queue.take(name, SlotId(1)), Some(reads[1]));
        assert_eq!(queue.take(name, SlotId(1)), None);
        assert_eq!(queue.drain(), [reads[0]]);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_wait_within_bounds() {
        let mut queue = ReadQueue::default();
        let first = queued(1, 0, Urgency::Demand);
        queue.push(first, 1).unwrap();
        assert_eq!(queue.push(queued(1, 1, Urgency::Demand), 1).unwrap_err().hint.place, 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        let later = queued(1, 2, Urgency::Prefetch);
        queue.push(later, 1).unwrap();
        assert_eq!(queue.deadline(), Some(first.deadline));
        assert_eq!(queue.expired(first.deadline), [first]);
        assert_eq!(queue.deadline(), Some(later.deadline));
        assert_eq!(queue.drain(), [later]);
        assert_eq!(queue.deadline(), None);
    }
}
