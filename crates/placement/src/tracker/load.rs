//! Sums of what is in flight, worker by worker, as a decision reads them.

use super::{BookingId, InFlight};
use crate::Time;
use crate::deadlines::Deadlines;
use crate::learn::Speed;
use crate::work::Work;
use std::collections::VecDeque;
use std::time::Duration;

/// Bound of [`Loads::everybody`]: a replica with next to no bookings knows next to nothing of
/// others.
const EVERYBODY_MAX: f64 = 64.0;

/// Loads of all workers by their slots. Their sums stand in a row of their own, since a decision
/// reads those of every worker.
#[derive(Default)]
pub(crate) struct Loads {
    sums: Vec<Sums>,
    rows: Vec<Row>,
    queues: Vec<Queue>,
    /// Slots whose worker reported, by when its report is too old.
    reports: Deadlines<u32>,
    /// Over all workers: requests that are booked here, and all that are known of.
    booked_requests: u64,
    all_requests: u64,
}

/// Load in flight at a worker, booked here and by others, in the numbers that costs are made of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) requests: f64,
    pub(crate) prefill_tokens: f64,
    pub(crate) blocks: f64,
    /// Pairs of the prompts that are still to be computed.
    prefill_pairs: f64,
    /// Work of the prompt that is computed now, and the time of its start, in seconds.
    first: Work,
    since_s: f64,
}

impl Sums {
    const NONE: Self = Self {
        requests: 0.0,
        prefill_tokens: 0.0,
        blocks: 0.0,
        prefill_pairs: 0.0,
        first: Work { tokens: 0.0, pairs: 0.0 },
        since_s: 0.0,
    };

    /// Prompt work still to be done, less the part of the first prompt that the worker should have
    /// done by now at `speed`.
    ///
    /// No more than the first is taken off: a stuck worker does not look as if it went on.
    pub(crate) fn backlog(&self, now_s: f64, speed: &Speed) -> Work {
        let all = Work { tokens: self.prefill_tokens, pairs: self.prefill_pairs };
        let (took, takes) = (now_s - self.since_s, speed.work(self.first));
        let done = if took < takes { took / takes } else { 1.0 };
        // Of what takes no time nothing is known.
        if takes > 0.0 && took > 0.0 { all.without(self.first.times(done)) } else { all }
    }
}

#[derive(Clone, Copy, Default)]
struct Row {
    booked: InFlight,
    /// Load that other replicas tell of there, with the pairs of their prompts.
    peers: InFlight,
    peer_pairs: f64,
    /// Load that the worker reported beyond both.
    others: InFlight,
    /// Work of the prompts that are booked here.
    work: Work,
}

/// A prompt that a worker has still to compute.
#[derive(Clone, Copy)]
struct Waiting {
    id: BookingId,
    /// Nothing once it has left.
    work: Work,
    /// Time of its expected turn, if others have prompts before it.
    turn: Time,
}

/// Prompts that a worker has still to compute, as they were booked.
#[derive(Default)]
struct Queue {
    /// Oldest first. The first is still to be computed; of the others some have left.
    waiting: VecDeque<Waiting>,
    /// Waiting prompts that have not left.
    live: usize,
    /// Since when the first is computed.
    since: Time,
    /// All prompt work ever done.
    computed: Work,
    /// Until when the worker's last report counts, if it is in `reports`.
    report_until: Option<Time>,
}

impl Queue {
    fn find(&self, id: BookingId) -> Option<usize> {
        // Bookings come in order, but for those that moved here.
        let ordered = self.waiting.binary_search_by_key(&id, |waiting| waiting.id).ok();
        ordered.or_else(|| self.waiting.iter().position(|waiting| waiting.id == id))
    }
}

impl Loads {
    pub(crate) fn booked(&self, slot: u32) -> InFlight {
        self.rows.get(slot as usize).map(|row| row.booked).unwrap_or_default()
    }

    /// Load that is booked, here or by other replicas.
    pub(crate) fn known(&self, slot: u32) -> InFlight {
        self.rows
            .get(slot as usize)
            .map_or_else(InFlight::default, |row| row.booked.plus(row.peers))
    }

    /// Known load, and the load of others as far as the worker reported it.
    pub(crate) fn total(&self, slot: u32) -> InFlight {
        let row = self.rows.get(slot as usize).copied().unwrap_or_default();
        row.booked.plus(row.peers).plus(row.others)
    }

    /// Requests in flight at all workers, as far as they are known of.
    pub(crate) fn all_requests(&self) -> u64 {
        self.all_requests
    }

    /// Ratio of all load in flight to the load booked here, over all workers: 1 for the only
    /// replica, and at most [`EVERYBODY_MAX`].
    pub(crate) fn everybody(&self) -> f64 {
        let booked = self.booked_requests.max(1) as f64;
        (self.all_requests as f64 / booked).clamp(1.0, EVERYBODY_MAX)
    }

    /// Other replicas have so much at a worker, with so many pairs.
    pub(crate) fn set_peers(&mut self, slot: u32, peers: InFlight, pairs: f64) {
        self.grow(slot);
        let row = &mut self.rows[slot as usize];
        (row.peers, row.peer_pairs) = (peers, pairs);
        self.refresh(slot);
    }

    /// Work left of the prompts that are booked here.
    pub(crate) fn own_backlog(&self, slot: u32, now_s: f64, speed: &Speed) -> Work {
        let Some(row) = self.rows.get(slot as usize) else { return Work::default() };
        let (prefill_tokens, prefill_pairs) = (row.work.tokens, row.work.pairs);
        Sums { prefill_tokens, prefill_pairs, ..*self.sums_of(slot) }.backlog(now_s, speed)
    }

    /// The sums of a worker.
    #[inline]
    pub(crate) fn sums_of(&self, slot: u32) -> &Sums {
        self.sums.get(slot as usize).unwrap_or(&Sums::NONE)
    }

    /// Work that the worker did on prompts booked here.
    pub(crate) fn computed(&self, slot: u32) -> Work {
        self.queues.get(slot as usize).map_or_else(Work::default, |queue| queue.computed)
    }

    /// Sets the load that others put on the worker, until its report is `ttl` old.
    pub(crate) fn report(&mut self, slot: u32, others: InFlight, now: Time, ttl: Duration) {
        self.grow(slot);
        self.rows[slot as usize].others = others;
        self.refresh(slot);
        // A report counts at the very end of its time too.
        let until = now.after(ttl).after(Duration::from_nanos(1));
        if self.queues[slot as usize].report_until.replace(until).is_none() {
            self.reports.push(until, slot);
        }
    }

    /// Forgets reports that are too old.
    pub(crate) fn expire(&mut self, now: Time) {
        while let Some(slot) = self.reports.pop_due(now) {
            let queue = &mut self.queues[slot as usize];
            match queue.report_until {
                Some(until) if until > now => self.reports.push(until, slot),
                _ => {
                    queue.report_until = None;
                    self.rows[slot as usize].others = InFlight::default();
                    self.refresh(slot);
                }
            }
        }
    }

    /// Another worker is in the slot; nothing is booked there.
    pub(crate) fn clear(&mut self, slot: u32) {
        self.grow(slot);
        let queue = &mut self.queues[slot as usize];
        // Its place among the reports stays, and is found to be over when its time comes.
        let report_until = queue.report_until.map(|_| Time::default());
        *queue = Queue { report_until, ..Queue::default() };
        let row = &mut self.rows[slot as usize];
        (row.peers, row.peer_pairs, row.others) = Default::default();
        self.refresh(slot);
    }

    /// Changes what is booked.
    pub(super) fn change(&mut self, slot: u32, change: impl FnOnce(&mut InFlight)) {
        self.grow(slot);
        let booked = &mut self.rows[slot as usize].booked;
        self.booked_requests -= booked.requests;
        change(booked);
        self.booked_requests += booked.requests;
        self.refresh(slot);
    }

    /// Queues a prompt of at least one token. If others have prompts before it, its turn should
    /// come at `turn`.
    pub(super) fn queued(&mut self, slot: u32, id: BookingId, work: Work, turn: Time) {
        let queue = &mut self.queues[slot as usize];
        if queue.waiting.is_empty() {
            queue.since = turn;
        }
        queue.waiting.push_back(Waiting { id, work, turn });
        queue.live += 1;
        let row = &mut self.rows[slot as usize];
        row.work = row.work.plus(work);
        self.refresh(slot);
    }

    /// Whether nobody else has prompts to be computed by a worker.
    pub(super) fn is_alone(&self, slot: u32) -> bool {
        let row = self.rows.get(slot as usize).copied().unwrap_or_default();
        row.peers.prefill_tokens + row.others.prefill_tokens == 0
    }

    /// A prompt was computed.
    pub(super) fn prefilled(&mut self, slot: u32, id: BookingId, work: Work, now: Time) {
        if work.tokens > 0.0 {
            let queue = &mut self.queues[slot as usize];
            queue.computed = queue.computed.plus(work);
            self.left(slot, id, now);
        }
    }

    /// A prompt is no longer to be computed.
    pub(super) fn left(&mut self, slot: u32, id: BookingId, now: Time) {
        let (queue, row) = (&mut self.queues[slot as usize], &mut self.rows[slot as usize]);
        queue.live -= 1;
        let gone = |waiting: &Waiting| waiting.work.tokens == 0.0;
        if let Some(found) = queue.find(id) {
            let work = std::mem::take(&mut queue.waiting[found].work);
            // The last takes everything with it, so that no rounding stays behind.
            row.work = if queue.live > 0 { row.work.without(work) } else { Work::default() };
            if found == 0 {
                while queue.waiting.pop_front_if(|waiting| gone(waiting)).is_some() {}
                queue.since = queue.waiting.front().map_or(now, |next| next.turn.max(now));
            }
        }
        // Behind a prompt that takes long others come and go.
        if queue.waiting.len() > 2 * queue.live + 16 {
            queue.waiting.retain(|waiting| !gone(waiting));
        }
        self.refresh(slot);
    }

    /// Prompts in the queue, those that left it included.
    #[cfg(test)]
    pub(super) fn waiting(&self, slot: u32) -> usize {
        self.queues[slot as usize].waiting.len()
    }

    /// Brings a worker's sums up to date.
    fn refresh(&mut self, slot: u32) {
        let InFlight { requests, prefill_tokens, blocks } = self.total(slot);
        // Sums are of whole numbers below 2^53, so that nothing is lost on the way.
        self.all_requests -= self.sums[slot as usize].requests as u64;
        self.all_requests += requests;
        let (queue, row) = (&self.queues[slot as usize], &self.rows[slot as usize]);
        // Reports say nothing of how long prompts are: as long as those that were computed here.
        let pairs_per_token = queue.computed.pairs / queue.computed.tokens.max(1.0);
        let reported_pairs = row.others.prefill_tokens as f64 * pairs_per_token;
        self.sums[slot as usize] = Sums {
            requests: requests as f64,
            prefill_tokens: prefill_tokens as f64,
            blocks: blocks as f64,
            prefill_pairs: row.work.pairs + row.peer_pairs + reported_pairs,
            first: queue.waiting.front().map_or_else(Work::default, |first| first.work),
            since_s: queue.since.0.as_secs_f64(),
        };
    }

    fn grow(&mut self, slot: u32) {
        let wanted = slot as usize + 1;
        if self.rows.len() < wanted {
            self.sums.resize(wanted, Sums::default());
            self.rows.resize(wanted, Row::default());
            self.queues.resize_with(wanted, Queue::default);
        }
    }
}
