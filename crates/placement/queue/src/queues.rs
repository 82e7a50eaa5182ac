//! All that waits for one pool.

use crate::band::Band;
use crate::bounds::QueueUsage;
use crate::entry::{BandPlace, FlowId, QueueEntry, QueueHead, QueueTicket, Verdict};
use crate::nanos;
use crate::outcome::{DispatchedRequest, EvictedRequest, Eviction, RejectedRequest};
use crate::rate::DrainMeter;
use crate::settings::CheckedSettings;
use crate::slots::{NONE, QueueSlot, Slots};
use crate::stats::{BandStats, OutcomeCounts, QueueStats};
use std::cmp::Reverse;
use std::time::Duration;

mod admission;
mod arrival;

use arrival::QueueArrival;

/// The requests that wait for one pool; `T` is the caller's data, to place and answer one.
///
/// A waiting request takes about 130 bytes beside its payload, twice as much while vectors have
/// grown. Every operation on a request costs the logarithm of the number of waiting requests.
#[derive(Debug)]
pub struct Queues<T> {
    settings: CheckedSettings,
    /// By priority, the highest first.
    bands: Vec<Band>,
    slots: Slots,
    /// By slot.
    payloads: Vec<Option<T>>,
    usage: QueueUsage,
    meter: DrainMeter,
    /// Counts of bands that were forgotten.
    forgotten: OutcomeCounts,
    closed: bool,
}

impl<T> Queues<T> {
    /// Queues in which nothing waits.
    pub fn new(settings: CheckedSettings) -> Self {
        let band = |band: &crate::BandSettings| Band::new(band.priority, band.policy, true);
        let mut bands: Vec<Band> = settings.bands.iter().map(band).collect();
        bands.sort_by_key(|band| Reverse(band.priority));
        Self {
            bands,
            slots: Slots::default(),
            payloads: Vec::new(),
            usage: QueueUsage::default(),
            meter: DrainMeter::new(settings.drain_window),
            forgotten: OutcomeCounts::default(),
            closed: false,
            settings,
        }
    }

    /// Lets a request wait. Requests that lose their room to it are added to `displaced`.
    ///
    /// # Errors
    ///
    /// [`RejectedRequest`] says why it may not wait, and gives the payload back.
    pub fn push(
        &mut self,
        entry: QueueEntry<T>,
        now: Duration,
        displaced: &mut Vec<EvictedRequest<T>>,
    ) -> Result<QueueTicket, RejectedRequest<T>> {
        let now = self.advance(now);
        let rank = self.band(entry.priority, now);
        let arrival = self.arrival(&entry, rank, now);
        if let Err((reason, limit, current)) = self.admit(&arrival, displaced) {
            let band = &mut self.bands[rank];
            band.counts.refuse(reason);
            let (band, retry_after) = (band.priority, self.retry_after_below(rank + 1));
            let payload = entry.payload;
            return Err(RejectedRequest { reason, limit, current, band, retry_after, payload });
        }
        Ok(self.insert(entry, &arrival))
    }

    /// Offers heads, the next first, and takes out all that `verdict` lets go or leave. Requests
    /// past their deadlines are offered too, so call [`Queues::expire`] first.
    ///
    /// `verdict` may change the payload, and must not panic.
    pub fn pop(
        &mut self,
        now: Duration,
        verdict: &mut impl FnMut(&QueueHead, &mut T) -> Verdict,
        dispatched: &mut Vec<DispatchedRequest<T>>,
    ) {
        let now = self.advance(now);
        let mut tries = self.settings.head_of_line.tries();
        for rank in 0..self.bands.len() {
            let stopped = loop {
                let next = self.bands[rank].flows.next(&self.slots, now);
                let Some((flow, slot)) = next else { break false };
                let head = self.head(rank, slot, now);
                match verdict(&head, payload(&mut self.payloads, slot)) {
                    Verdict::Go => dispatched.push(self.dispatch(&head, true, now)),
                    Verdict::Leave => dispatched.push(self.dispatch(&head, false, now)),
                    Verdict::Wait if tries > 0 => {
                        tries -= 1;
                        self.bands[rank].flows.hold(&mut self.slots, flow);
                    }
                    Verdict::Wait | Verdict::Stop => break true,
                }
            };
            self.bands[rank].flows.resume(&mut self.slots);
            // No lower band is served past a head that may not be passed over.
            if stopped {
                return;
            }
        }
    }

    /// Gives up a request; `None` if it does not wait any more.
    pub fn cancel(&mut self, ticket: QueueTicket, now: Duration) -> Option<T> {
        if !self.slots.holds(ticket) {
            return None;
        }
        let now = self.advance(now);
        let rank = self.rank(self.slots[ticket.slot].band);
        self.bands[rank].counts.cancelled += 1;
        Some(self.take(rank, ticket.slot, false, now))
    }

    /// Sends away those whose deadlines have come, and, if that is set, those that those above
    /// them will keep from theirs. Forgets flows and bands that were idle for long.
    pub fn expire(&mut self, now: Duration, evicted: &mut Vec<EvictedRequest<T>>) {
        let now = self.advance(now);
        for rank in 0..self.bands.len() {
            let horizon = now.saturating_add(self.held_up(rank));
            while let Some((due, slot)) = self.bands[rank].first_due() {
                if due > horizon {
                    break;
                }
                let reason = if due <= now { Eviction::Deadline } else { Eviction::Hopeless };
                let gone = self.evict(rank, slot, reason, now);
                evicted.push(gone);
            }
        }
        self.forget_idle(now);
    }

    /// Estimated time when [`Queues::expire`] has something to do; `None` while nothing waits.
    pub fn next_event(&self) -> Option<Duration> {
        let event = |(rank, band): (usize, &Band)| {
            let (due, _) = band.first_due()?;
            Some(due.saturating_sub(self.held_up(rank)))
        };
        self.bands.iter().enumerate().filter_map(event).min().map(Duration::from_nanos)
    }

    /// Sends away all that wait and lets nothing in any more.
    pub fn close(&mut self, now: Duration, evicted: &mut Vec<EvictedRequest<T>>) {
        let now = self.advance(now);
        self.closed = true;
        for rank in 0..self.bands.len() {
            while let Some(slot) = self.bands[rank].oldest() {
                let gone = self.evict(rank, slot, Eviction::Closed, now);
                evicted.push(gone);
            }
        }
    }

    /// A request of this priority went through without waiting, which counts as a turn of its flow for
    /// [`crate::Fairness::TurnPriority`], and for nothing else.
    pub fn passed(&mut self, priority: i32, flow: FlowId, now: Duration) {
        if !self.settings.counts_turns() {
            return;
        }
        let (now, most) = (self.advance(now), self.settings.idle_flows_max as usize);
        let rank = self.band(priority, now);
        let band = &mut self.bands[rank];
        if band.policy.fairness.counts_turns() {
            band.last_used = now;
            band.flows.passed(flow, now);
            band.flows.forget(0, most);
        }
    }

    /// The running requests of a flow have produced tokens of answers, which counts for
    /// [`crate::Fairness::Vtc`]. `priority` is that of the band they waited in.
    pub fn charge(&mut self, priority: i32, flow: FlowId, tokens: u64, now: Duration) {
        let rank = self.rank(priority);
        if let Some(band) = self.bands.get_mut(rank).filter(|band| band.priority == priority) {
            band.flows.charge(&self.slots, flow, tokens, nanos(now));
        }
    }

    /// Time after which a refused request of this priority should come back: until all requests of
    /// this priority and above have drained, within the limits that are set.
    pub fn retry_after(&self, priority: i32) -> Duration {
        self.retry_after_below(self.bands.partition_point(|band| band.priority >= priority))
    }

    /// Usage of all bands.
    pub fn waiting(&self) -> QueueUsage {
        self.usage
    }

    /// Whether [`Queues::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Deadline of a waiting request; `None` if it does not wait any more.
    pub fn deadline(&self, ticket: QueueTicket) -> Option<Duration> {
        let slot = self.slots.holds(ticket).then(|| &self.slots[ticket.slot])?;
        Some(Duration::from_nanos(slot.deadline))
    }

    /// Position of the band that a request of this priority would wait in.
    pub fn place(&self, priority: i32) -> BandPlace {
        self.band_place(self.nearest(priority))
    }

    /// Counts for metrics.
    pub fn stats(&self, now: Duration) -> QueueStats {
        let now = nanos(now);
        let waited = |slot: u32| now.saturating_sub(self.slots[slot].arrival);
        let stats = |band: &Band| BandStats {
            priority: band.priority,
            waiting: band.usage,
            oldest_wait: Duration::from_nanos(band.oldest().map_or(0, waited)),
            flows_waiting: band.flows.active(),
            flows: band.flows.len(),
            counts: band.counts,
        };
        QueueStats {
            bands: self.bands.iter().map(stats).collect(),
            forgotten: self.forgotten,
            waiting: self.usage,
            drain: self.meter.drain(),
        }
    }

    /// Bytes that all this takes, with room that is kept for more.
    pub fn memory_bytes(&self) -> usize {
        let bands = self.bands.iter().map(Band::memory_bytes).sum::<usize>();
        bands + self.slots.memory_bytes() + self.payloads.capacity() * size_of::<Option<T>>()
    }

    fn advance(&mut self, now: Duration) -> u64 {
        let now = nanos(now);
        self.meter.advance(now, self.usage.requests > 0);
        now
    }

    /// Position of the band of a priority, or the position to insert it at.
    fn rank(&self, priority: i32) -> usize {
        self.bands.partition_point(|band| band.priority > priority)
    }

    /// The band whose priority is nearest; of two the lower.
    fn nearest(&self, priority: i32) -> usize {
        let distance = |rank: usize| {
            self.bands.get(rank).map_or(u32::MAX, |band| band.priority.abs_diff(priority))
        };
        let lower = self.rank(priority);
        let higher = lower.saturating_sub(1);
        if distance(higher) < distance(lower) { higher } else { lower.min(self.bands.len() - 1) }
    }

    /// The band for requests of a priority, made now if there is room for one more.
    fn band(&mut self, priority: i32, now: u64) -> usize {
        let rank = self.rank(priority);
        let there = self.bands.get(rank).is_some_and(|band| band.priority == priority);
        if there {
            return rank;
        }
        self.forget_idle(now);
        if self.bands.len() >= self.settings.bands_max as usize {
            return self.nearest(priority);
        }
        let mut band = Band::new(priority, self.settings.policy(priority), false);
        band.last_used = now;
        let rank = self.rank(priority);
        self.bands.insert(rank, band);
        rank
    }

    fn above(&self, rank: usize) -> QueueUsage {
        self.bands[..rank].iter().fold(QueueUsage::default(), |sum, band| sum.plus(band.usage))
    }

    /// Nanoseconds that the bands above one take to drain; 0 unless what they hold up is evicted.
    fn held_up(&self, rank: usize) -> u64 {
        let drain = self.meter.drain().filter(|_| self.settings.evict_hopeless);
        drain.map_or(0, |drain| nanos(drain.time(self.above(rank))))
    }

    /// Time after which a request should come back that comes after the first `bands` bands.
    fn retry_after_below(&self, bands: usize) -> Duration {
        let (min, max) = (self.settings.retry_after_min, self.settings.retry_after_max);
        let drained = |drain: crate::Drain| drain.time(self.above(bands));
        self.meter.drain().map_or(min, drained).clamp(min, max)
    }

    fn insert(&mut self, entry: QueueEntry<T>, arrival: &QueueArrival) -> QueueTicket {
        let band = &mut self.bands[arrival.rank];
        let key = band.policy.ordering.key(&entry, arrival.now, arrival.deadline);
        let ticket = self.slots.add(QueueSlot {
            number: 0,
            arrival: arrival.now,
            deadline: arrival.deadline,
            bytes: entry.bytes,
            tokens: entry.tokens,
            band: band.priority,
            flow: NONE,
            older: NONE,
            newer: NONE,
        });
        band.insert(&mut self.slots, ticket.slot, entry.flow, key);
        band.counts.queued += 1;
        self.usage = self.usage.plus(arrival.one);
        let slot = ticket.slot as usize;
        if self.payloads.len() <= slot {
            self.payloads.resize_with(slot + 1, || None);
        }
        self.payloads[slot] = Some(entry.payload);
        ticket
    }

    fn band_place(&self, rank: usize) -> BandPlace {
        BandPlace {
            priority: self.bands[rank].priority,
            rank: rank as u32,
            bands: self.bands.len() as u32,
            highest: self.bands[0].priority,
            lowest: self.bands[self.bands.len() - 1].priority,
        }
    }

    fn head(&self, rank: usize, at: u32, now: u64) -> QueueHead {
        let slot = &self.slots[at];
        let band = &self.bands[rank];
        QueueHead {
            ticket: self.slots.ticket(at),
            band: self.band_place(rank),
            flow: band.flows.id(slot.flow),
            tokens: slot.tokens,
            waited: Duration::from_nanos(now.saturating_sub(slot.arrival)),
        }
    }

    fn dispatch(&mut self, head: &QueueHead, served: bool, now: u64) -> DispatchedRequest<T> {
        let QueueHead { ticket, band, flow, tokens, waited } = *head;
        let rank = band.rank as usize;
        if served {
            self.meter.dispatched(tokens);
            self.bands[rank].counts.dispatched += 1;
        } else {
            self.bands[rank].counts.cancelled += 1;
        }
        let payload = self.take(rank, ticket.slot, served, now);
        DispatchedRequest { ticket, band: band.priority, flow, waited, payload }
    }

    fn evict(&mut self, rank: usize, at: u32, reason: Eviction, now: u64) -> EvictedRequest<T> {
        let ticket = self.slots.ticket(at);
        let waited = Duration::from_nanos(now.saturating_sub(self.slots[at].arrival));
        let retry_after = self.retry_after_below(rank + 1);
        let band = &mut self.bands[rank];
        band.counts.evict(reason);
        let band = band.priority;
        let payload = self.take(rank, at, false, now);
        EvictedRequest { ticket, reason, band, waited, retry_after, payload }
    }

    /// Takes a request out of everything.
    fn take(&mut self, rank: usize, at: u32, served: bool, now: u64) -> T {
        let one = QueueUsage::one(self.slots[at].bytes, self.slots[at].tokens);
        self.usage = self.usage.minus(one);
        self.bands[rank].remove(&mut self.slots, at, served, now);
        let most = self.settings.idle_flows_max as usize;
        self.bands[rank].flows.forget(0, most);
        self.slots.release(at);
        self.payloads[at as usize].take().expect("a waiting request has its payload")
    }

    fn forget_idle(&mut self, now: u64) {
        let since = |idle: Duration| now.saturating_sub(nanos(idle));
        let bands_since = since(self.settings.band_idle);
        let most = self.settings.idle_flows_max as usize;
        let forgotten = &mut self.forgotten;
        self.bands.retain_mut(|band| {
            let flow_idle = band.policy.fairness.idle().unwrap_or(self.settings.flow_idle);
            band.flows.forget(since(flow_idle), most);
            let stays = band.configured
                || band.usage.requests > 0
                || band.flows.len() > 0
                || band.last_used >= bands_since;
            if !stays {
                forgotten.add(&band.counts);
            }
            stays
        });
    }
}

fn payload<T>(payloads: &mut [Option<T>], at: u32) -> &mut T {
    payloads[at as usize].as_mut().expect("a waiting request has its payload")
}
