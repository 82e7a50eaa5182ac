//! Work for the connections to a peer: whoever has room takes what is most urgent.

use super::path::ReadPath;
use super::pull::{Pull, PullPart};
use crate::Checksum;
use crate::tier::{TierError, Urgency};
use crate::transfer::wire::FRAME_BYTES_MAX;
use parking_lot::Mutex;
use stator_protos::name::BlockName;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Leases that are to be ended, at most: the peer ends the others itself at their deadline.
const ENDS_MAX: usize = 64;

/// Something to ask the peer for.
pub(super) enum Job {
    /// A lease of blocks.
    Lease(LeaseJob),
    /// The end of a lease.
    End(u64),
    /// A frame.
    Part(Arc<Pull>, PullPart),
}

/// A lease that is wanted. Dropping it says that the peer did not answer.
pub(super) struct LeaseJob {
    pub(super) names: Vec<BlockName>,
    /// Time for which it is needed.
    pub(super) time: Duration,
    pub(super) urgency: Urgency,
    pub(super) answer: oneshot::Sender<LeaseAnswer>,
}

/// The peer's answer.
#[derive(Debug)]
pub(super) enum LeaseAnswer {
    /// The peer keeps the leading blocks; none where there are no checksums.
    Leased {
        number: u64,
        checksums: Vec<Checksum>,
        /// Time for which the peer waited for its disk.
        waited: Duration,
    },
    /// The peer has too many leases.
    Busy,
}

/// The work for one peer's connections.
pub(super) struct Board {
    work: Mutex<BoardWork>,
    /// Counts changes, so that no connection misses one.
    changes: watch::Sender<u64>,
    answers: AtomicU64,
}

#[derive(Default)]
struct BoardWork {
    leases: VecDeque<LeaseJob>,
    ends: VecDeque<u64>,
    /// Ends that a connection has taken and not sent yet.
    unsent_ends: usize,
    demand: Vec<Arc<Pull>>,
    others: Vec<Arc<Pull>>,
}

impl BoardWork {
    fn is_finished(&self) -> bool {
        let is_read = !self.demand.is_empty() || !self.others.is_empty();
        !is_read && self.ends.is_empty() && self.unsent_ends == 0
    }
}

impl Board {
    pub(super) fn new() -> Self {
        Self { work: Mutex::default(), changes: watch::Sender::new(0), answers: AtomicU64::new(0) }
    }

    /// Sees all changes from now on.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Says that there may be work.
    pub(super) fn stir(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Counts an answer of the peer.
    pub(super) fn answered(&self) {
        self.answers.fetch_add(1, Relaxed);
    }

    /// Answers of the peer so far.
    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Relaxed)
    }

    /// Asks for a lease, those on demand before all others. The answer's sender is dropped if the peer
    /// does not answer.
    pub(super) fn lease(
        &self,
        names: Vec<BlockName>,
        time: Duration,
        urgency: Urgency,
    ) -> oneshot::Receiver<LeaseAnswer> {
        let (answer, receiver) = oneshot::channel();
        let mut work = self.work.lock();
        let behind = work.leases.iter().position(|other| other.urgency > urgency);
        let place = behind.unwrap_or(work.leases.len());
        work.leases.insert(place, LeaseJob { names, time, urgency, answer });
        drop(work);
        self.stir();
        receiver
    }

    /// Lets connections read the frames of a pull that has a lease.
    pub(super) fn add(&self, pull: Arc<Pull>, urgency: Urgency) {
        let mut work = self.work.lock();
        let pulls = match urgency {
            Urgency::Demand => &mut work.demand,
            Urgency::Prefetch | Urgency::Offload => &mut work.others,
        };
        pulls.push(pull);
        drop(work);
        self.stir();
    }

    /// Ends a pull and its lease.
    pub(super) fn remove(&self, pull: &Arc<Pull>) {
        let mut work = self.work.lock();
        work.demand.retain(|other| !Arc::ptr_eq(other, pull));
        work.others.retain(|other| !Arc::ptr_eq(other, pull));
        if let Some(lease) = pull.lease().filter(|_| work.ends.len() < ENDS_MAX) {
            work.ends.push_back(lease);
        }
        drop(work);
        self.stir();
    }

    /// A connection has sent so many ends of leases.
    pub(super) fn sent_ends(&self, ends: usize) {
        let mut work = self.work.lock();
        work.unsent_ends = work.unsent_ends.saturating_sub(ends);
        drop(work);
        self.stir();
    }

    /// Waits until nothing is read and the peer was told of the ends of all leases. Never comes true
    /// where a connection was cut before it told.
    pub(super) async fn finished(&self) {
        let mut changes = self.watch();
        loop {
            changes.mark_unchanged();
            if self.work.lock().is_finished() {
                return;
            }
            // The board has the sender.
            let _ = changes.changed().await;
        }
    }

    /// The most urgent work: leases, because others can be read meanwhile, then frames on demand,
    /// then all other frames.
    pub(super) fn take(&self) -> Option<Job> {
        let mut work = self.work.lock();
        if let Some(number) = work.ends.pop_front() {
            work.unsent_ends += 1;
            return Some(Job::End(number));
        }
        while let Some(lease) = work.leases.pop_front() {
            if !lease.answer.is_closed() {
                return Some(Job::Lease(lease));
            }
        }
        let pulls = work.demand.iter().chain(&work.others);
        let mut pulls = pulls.filter(|pull| pull.path() == ReadPath::Sockets);
        pulls.find_map(|pull| Some(Job::Part(pull.clone(), pull.ask()?)))
    }

    /// The most urgent frames that are read straight from the peer's arena, of so many bytes at most.
    pub(super) fn take_direct(&self, bytes: usize) -> Vec<(Arc<Pull>, PullPart)> {
        let work = self.work.lock();
        let (mut parts, mut room) = (Vec::new(), bytes);
        let pulls = work.demand.iter().chain(&work.others);
        for pull in pulls.filter(|pull| pull.path() == ReadPath::Direct) {
            // A frame that does not fit any more may be smaller than this.
            while room >= FRAME_BYTES_MAX {
                let Some(part) = pull.ask() else { break };
                room -= part.range.len as usize;
                parts.push((pull.clone(), part));
            }
        }
        parts
    }

    /// Lets connections ask for all that was to be read straight from the peer's arena.
    pub(super) fn leave_direct(&self) {
        let work = self.work.lock();
        work.demand.iter().chain(&work.others).for_each(|pull| pull.leave_direct());
        drop(work);
        self.stir();
    }

    /// Fails all work: there is no connection to the peer.
    pub(super) fn fail(&self, error: TierError) {
        let mut work = self.work.lock();
        work.leases.clear();
        work.ends.clear();
        work.demand.iter().chain(&work.others).for_each(|pull| pull.fail(error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_on_demand_are_asked_for_first() {
        let board = Board::new();
        let order = [Urgency::Prefetch, Urgency::Demand, Urgency::Prefetch, Urgency::Demand];
        let _answers: Vec<_> = (0..)
            .zip(order)
            .map(|(name, urgency)| board.lease(vec![BlockName(name)], Duration::ZERO, urgency))
            .collect();
        let taken = std::iter::from_fn(|| match board.take()? {
            Job::Lease(lease) => Some(lease.names[0].0),
            _ => None,
        });
        assert_eq!(taken.collect::<Vec<_>>(), [1, 3, 0, 2]);
    }
}
