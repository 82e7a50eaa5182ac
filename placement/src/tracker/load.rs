//! Sums of what is in flight, worker by worker, as a decision reads them.

use super::{BookingId, InFlight};
use crate::Time;
use crate::deadlines::Deadlines;
use std::collections::VecDeque;
use std::time::Duration;

/// Loads of all workers by their slots. Their sums stand in a row of their own, since a decision
/// reads those of every worker.
#[derive(Default)]
pub(crate) struct Loads {
    sums: Vec<Sums>,
    rows: Vec<Row>,
    queues: Vec<Queue>,
    /// Slots whose worker reported, by when its report is too old.
    reports: Deadlines<u32>,
}

/// What is in flight at a worker, booked and of others, as the numbers that costs are made of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) requests: f64,
    pub(crate) prefill_tokens: f64,
    pub(crate) blocks: f64,
    /// Prompt tokens of the request that is computed now, and since when, in seconds.
    first_tokens: f64,
    since_s: f64,
}

impl Sums {
    /// Prompt tokens that are still to be computed, less what the worker should have computed of
    /// the first prompt by now if each token takes `token_s` seconds; 0 is unknown.
    ///
    /// No more than the first: a worker that is stuck does not look as if it went on.
    pub(crate) fn backlog(&self, now_s: f64, token_s: f64) -> f64 {
        if token_s <= 0.0 {
            return self.prefill_tokens;
        }
        let done = (now_s - self.since_s).max(0.0) / token_s;
        (self.prefill_tokens - done.min(self.first_tokens)).max(0.0)
    }
}

#[derive(Clone, Copy, Default)]
struct Row {
    booked: InFlight,
    others: InFlight,
}

/// Prompts that a worker has still to compute, as they were booked.
#[derive(Default)]
struct Queue {
    /// Oldest first. The first is still to be computed; of the others some have left.
    waiting: VecDeque<(BookingId, u64)>,
    /// How many of them have not left.
    live: usize,
    /// Since when the first is computed.
    since: Time,
    /// Prompt tokens that were computed, ever.
    computed: u64,
    /// Until when the worker's last report counts, if it is in `reports`.
    report_until: Option<Time>,
}

impl Queue {
    fn find(&self, id: BookingId) -> Option<usize> {
        // Bookings come in order, but for those that moved here.
        let ordered = self.waiting.binary_search_by_key(&id, |waiting| waiting.0).ok();
        ordered.or_else(|| self.waiting.iter().position(|waiting| waiting.0 == id))
    }
}

impl Loads {
    pub(crate) fn booked(&self, slot: u32) -> InFlight {
        self.rows.get(slot as usize).map(|row| row.booked).unwrap_or_default()
    }

    /// What is booked, and what others have there as far as the worker reported it.
    pub(crate) fn total(&self, slot: u32) -> InFlight {
        let Some(Row { booked, others }) = self.rows.get(slot as usize) else {
            return InFlight::default();
        };
        InFlight {
            requests: booked.requests + others.requests,
            prefill_tokens: booked.prefill_tokens.saturating_add(others.prefill_tokens),
            blocks: booked.blocks + others.blocks,
        }
    }

    /// The sums of a worker.
    pub(crate) fn sums_of(&self, slot: u32) -> Sums {
        self.sums.get(slot as usize).copied().unwrap_or_default()
    }

    /// Prompt tokens that the worker computed for requests booked here.
    pub(crate) fn computed(&self, slot: u32) -> u64 {
        self.queues.get(slot as usize).map_or(0, |queue| queue.computed)
    }

    /// What others put on the worker, until its report is `ttl` old.
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
        self.rows[slot as usize].others = InFlight::default();
        self.refresh(slot);
    }

    /// Changes what is booked.
    pub(super) fn change(&mut self, slot: u32, change: impl FnOnce(&mut InFlight)) {
        self.grow(slot);
        change(&mut self.rows[slot as usize].booked);
        self.refresh(slot);
    }

    /// A prompt is to be computed.
    pub(super) fn queued(&mut self, slot: u32, id: BookingId, tokens: u64, now: Time) {
        let queue = &mut self.queues[slot as usize];
        if queue.waiting.is_empty() {
            queue.since = now;
        }
        queue.waiting.push_back((id, tokens));
        queue.live += 1;
        self.refresh(slot);
    }

    /// A prompt was computed.
    pub(super) fn prefilled(&mut self, slot: u32, id: BookingId, tokens: u64, now: Time) {
        if tokens > 0 {
            let queue = &mut self.queues[slot as usize];
            queue.computed = queue.computed.wrapping_add(tokens);
            self.left(slot, id, now);
        }
    }

    /// A prompt is no longer to be computed.
    pub(super) fn left(&mut self, slot: u32, id: BookingId, now: Time) {
        let queue = &mut self.queues[slot as usize];
        queue.live -= 1;
        if queue.waiting.front().is_some_and(|first| first.0 == id) {
            queue.waiting.pop_front();
            queue.since = now;
            while queue.waiting.pop_front_if(|waiting| waiting.1 == 0).is_some() {}
        } else if let Some(found) = queue.find(id) {
            queue.waiting[found].1 = 0;
        }
        // Behind a prompt that takes long others come and go.
        if queue.waiting.len() > 2 * queue.live + 16 {
            queue.waiting.retain(|waiting| waiting.1 > 0);
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
        let queue = &self.queues[slot as usize];
        self.sums[slot as usize] = Sums {
            requests: requests as f64,
            prefill_tokens: prefill_tokens as f64,
            blocks: blocks as f64,
            first_tokens: queue.waiting.front().map_or(0.0, |first| first.1 as f64),
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
