//! Reads and writes that wait for the disk, and who goes first.

use crate::SlotId;
use crate::tier::{TierError, TierRead, TierWrite, Urgency};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use stator_protos::name::BlockName;
use std::collections::VecDeque;
use std::mem::take;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Starts in a row that may pass a waiting request of lesser urgency. So what nobody waits for gets
/// at least this share of the disk, and does not hold its slots for ever.
const PASSED_MAX: u32 = 15;

/// A read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskRequest {
    Read(TierRead),
    Write(TierWrite),
}

impl DiskRequest {
    fn class(&self) -> usize {
        match self {
            Self::Read(read) => match read.urgency {
                Urgency::Demand => 0,
                Urgency::Prefetch => 1,
                Urgency::Offload => 2,
            },
            Self::Write(_) => 2,
        }
    }
}

/// Kinds of requests that can be started now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Startable {
    /// Requests that nobody waits for.
    pub(super) background: bool,
    /// Writes, which need a slot on disk.
    pub(super) writes: bool,
}

/// The queue by itself: a bounded line for each urgency.
#[derive(Debug)]
pub(super) struct DiskQueue {
    lines: [VecDeque<DiskRequest>; 3],
    line_max: usize,
    /// Starts since the last one that passed nobody.
    passed: u32,
}

impl DiskQueue {
    pub(super) fn new(line_max: usize) -> Self {
        Self { lines: Default::default(), line_max, passed: 0 }
    }

    /// Adds a request; `false` if its line is full.
    pub(super) fn push(&mut self, request: DiskRequest) -> bool {
        let line = &mut self.lines[request.class()];
        let fits = line.len() < self.line_max;
        if fits {
            line.push_back(request);
        }
        fits
    }

    /// The request that is next of those that can be started.
    pub(super) fn pop(&mut self, startable: Startable) -> Option<DiskRequest> {
        let can_start = |class: usize, line: &VecDeque<DiskRequest>| match line.front() {
            None => false,
            Some(DiskRequest::Write(_)) => startable.background && startable.writes,
            Some(DiskRequest::Read(_)) => class == 0 || startable.background,
        };
        let mut able = (0..3).filter(|class| can_start(*class, &self.lines[*class]));
        let most_urgent = able.next()?;
        let least_urgent = able.next_back();
        let class = match least_urgent {
            Some(class) if self.passed >= PASSED_MAX => class,
            _ => most_urgent,
        };
        let passes = least_urgent.is_some_and(|least| class != least);
        self.passed = if passes { self.passed + 1 } else { 0 };
        self.lines[class].pop_front()
    }

    /// Takes all requests out.
    pub(super) fn drain(
        &mut self,
        mut is_wanted: impl FnMut(&DiskRequest) -> bool,
    ) -> Vec<DiskRequest> {
        let mut out = Vec::new();
        for line in &mut self.lines {
            let (taken, kept): (Vec<_>, Vec<_>) = line.drain(..).partition(&mut is_wanted);
            out.extend(taken);
            line.extend(kept);
        }
        out
    }
}

/// Wakes the thread that waits for the disk.
pub(super) type Waker = Arc<dyn Fn() + Send + Sync>;

/// The queue between the callers and the thread of a disk tier.
pub(super) struct DiskInbox {
    state: Mutex<InboxState>,
    waker: OnceLock<Waker>,
}

/// Orders that are not requests.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// Requests that did not fit.
    pub(super) refused: Vec<DiskRequest>,
    /// Reads that nobody wants any more.
    pub(super) cancelled: Vec<DiskRequest>,
    /// Whether all blocks are to be forgotten.
    pub(super) clear: bool,
    /// Blocks that are to be forgotten, before all requests.
    pub(super) forget: Vec<BlockName>,
    /// Segments that may be on disk from now on.
    pub(super) segments_max: Option<u32>,
    /// When what waits is refused and the thread ends.
    pub(super) close_at: Option<Instant>,
}

struct InboxState {
    queue: DiskQueue,
    orders: Orders,
}

impl DiskInbox {
    pub(super) fn new(line_max: usize) -> Self {
        let state = InboxState { queue: DiskQueue::new(line_max), orders: Orders::default() };
        Self { state: Mutex::new(state), waker: OnceLock::new() }
    }

    /// Says how to wake the thread. The thread looks here once more before it waits.
    pub(super) fn set_waker(&self, waker: Waker) {
        // Only the thread sets it, at its start.
        let _ = self.waker.set(waker);
    }

    /// Adds a request. One that does not fit is refused by the thread, not here: the caller may
    /// hold locks that the report needs. Refusals are bounded by the slots of the callers.
    pub(super) fn push(&self, request: DiskRequest) {
        let mut state = self.state.lock();
        if state.orders.close_at.is_some() || !state.queue.push(request) {
            state.orders.refused.push(request);
        }
        drop(state);
        self.wake();
    }

    /// Drops a read that still waits. The thread reports it, as what does not fit.
    pub(super) fn cancel(&self, name: BlockName, slot: SlotId) {
        let is_it = |request: &DiskRequest| match request {
            DiskRequest::Read(read) => (read.name, read.slot) == (name, slot),
            DiskRequest::Write(_) => false,
        };
        let mut state = self.state.lock();
        let cancelled = state.queue.drain(is_it);
        state.orders.cancelled.extend(cancelled);
        drop(state);
        self.wake();
    }

    /// Forgets all blocks, those of writes that wait included.
    pub(super) fn clear(&self) {
        let mut state = self.state.lock();
        let writes = state.queue.drain(|request| matches!(request, DiskRequest::Write(_)));
        state.orders.refused.extend(writes);
        state.orders.clear = true;
        drop(state);
        self.wake();
    }

    /// Forgets blocks, those of writes that wait included. Their number is bounded by what an
    /// operator can name.
    pub(super) fn forget(&self, names: &[BlockName]) {
        let wanted: FxHashSet<_> = names.iter().copied().collect();
        let is_of = |request: &DiskRequest| match request {
            DiskRequest::Write(write) => wanted.contains(&write.block.name),
            DiskRequest::Read(_) => false,
        };
        let mut state = self.state.lock();
        let writes = state.queue.drain(is_of);
        state.orders.refused.extend(writes);
        state.orders.forget.extend(names);
        drop(state);
        self.wake();
    }

    /// Changes how many segments may be on disk.
    pub(super) fn set_segments_max(&self, segments: u32) {
        self.state.lock().orders.segments_max = Some(segments);
        self.wake();
    }

    /// Ends the thread when all is done, or at the deadline.
    pub(super) fn close(&self, deadline: Instant) {
        self.state.lock().orders.close_at = Some(deadline);
        self.wake();
    }

    /// Takes the orders; a closing stays.
    pub(super) fn orders(&self) -> Orders {
        let orders = &mut self.state.lock().orders;
        Orders {
            close_at: orders.close_at,
            clear: take(&mut orders.clear),
            forget: take(&mut orders.forget),
            segments_max: orders.segments_max.take(),
            refused: take(&mut orders.refused),
            cancelled: take(&mut orders.cancelled),
        }
    }

    /// The next request, as [`DiskQueue::pop`].
    pub(super) fn pop(&self, startable: Startable) -> Option<DiskRequest> {
        self.state.lock().queue.pop(startable)
    }

    /// Takes out the requests that are wanted, as [`DiskQueue::drain`].
    pub(super) fn drain(&self, is_wanted: impl FnMut(&DiskRequest) -> bool) -> Vec<DiskRequest> {
        self.state.lock().queue.drain(is_wanted)
    }

    fn wake(&self) {
        if let Some(wake) = self.waker.get() {
            wake();
        }
    }
}

/// The report that refuses a request.
pub(super) fn refusal(request: DiskRequest, error: TierError) -> crate::tier::TierReport {
    use crate::tier::TierReport;
    match request {
        DiskRequest::Read(TierRead { name, slot, .. }) => {
            TierReport::Read { name, slot, result: Err(error) }
        }
        DiskRequest::Write(TierWrite { block, slot, .. }) => {
            TierReport::Written { name: block.name, slot, result: Err(error) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Checksum};

    const ALL: Startable = Startable { background: true, writes: true };

    fn read(name: u128, urgency: Urgency) -> DiskRequest {
        DiskRequest::Read(TierRead { name: BlockName(name), slot: SlotId(0), urgency })
    }

    fn write(name: u128) -> DiskRequest {
        let block = Block {
            name: BlockName(name),
            hash: None,
            parent: None,
            depth: 0,
            tenant: crate::TenantKey::default(),
        };
        DiskRequest::Write(TierWrite { block, slot: SlotId(0), checksum: Checksum(0) })
    }

    #[test]
    fn demand_goes_before_prefetch_before_offload() {
        let mut queue = DiskQueue::new(8);
        let requests = [
            write(1),
            read(2, Urgency::Prefetch),
            read(3, Urgency::Demand),
            read(4, Urgency::Demand),
        ];
        assert!(requests.iter().all(|request| queue.push(*request)));
        let order = std::iter::from_fn(|| queue.pop(ALL));
        let expected = [
            read(3, Urgency::Demand),
            read(4, Urgency::Demand),
            read(2, Urgency::Prefetch),
            write(1),
        ];
        assert_eq!(order.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_full_line_refuses_and_leaves_the_others_room() {
        let mut queue = DiskQueue::new(1);
        assert!(queue.push(write(1)));
        assert!(!queue.push(write(2)));
        assert!(queue.push(read(3, Urgency::Demand)));
    }

    #[test]
    fn an_offload_is_passed_a_bounded_number_of_times() {
        let mut queue = DiskQueue::new(100);
        queue.push(write(1));
        assert!((0..99).all(|name| queue.push(read(name, Urgency::Demand))));
        let place = (0..100).position(|_| queue.pop(ALL) == Some(write(1)));
        assert_eq!(place, Some(PASSED_MAX as usize));
    }

    #[test]
    fn a_read_is_dropped_while_it_waits_and_nothing_else_is() {
        let inbox = DiskInbox::new(8);
        let other = DiskRequest::Read(TierRead {
            name: BlockName(3),
            slot: SlotId(5),
            urgency: Urgency::Demand,
        });
        let all = [read(3, Urgency::Demand), other, read(4, Urgency::Prefetch), write(3)];
        all.iter().for_each(|request| inbox.push(*request));
        inbox.cancel(BlockName(3), SlotId(0));
        inbox.cancel(BlockName(4), SlotId(0));
        // There is no such read any more.
        inbox.cancel(BlockName(3), SlotId(0));
        let cancelled = inbox.orders().cancelled;
        assert_eq!(cancelled, [read(3, Urgency::Demand), read(4, Urgency::Prefetch)]);
        assert_eq!(inbox.orders().cancelled, []);
        assert_eq!([inbox.pop(ALL), inbox.pop(ALL)], [Some(other), Some(write(3))]);
    }

    #[test]
    fn what_cannot_be_started_stays() {
        let mut queue = DiskQueue::new(8);
        queue.push(write(1));
        queue.push(read(2, Urgency::Prefetch));
        assert_eq!(queue.pop(Startable { background: false, writes: true }), None);
        let no_writes = Startable { background: true, writes: false };
        assert_eq!(queue.pop(no_writes), Some(read(2, Urgency::Prefetch)));
        assert_eq!(queue.pop(no_writes), None);
        assert_eq!(queue.drain(|_| true), [write(1)]);
    }
}
