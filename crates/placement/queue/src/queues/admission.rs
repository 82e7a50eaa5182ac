//! Whether a request may wait.

use super::Queues;
use super::arrival::QueueArrival;
use crate::bounds::{BrokenBound, QueueUsage, fits};
use crate::entry::QueueEntry;
use crate::fairness::Fairness;
use crate::nanos;
use crate::ordering::Ordering;
use crate::outcome::{EvictedRequest, Eviction, QueueRefusal};
use std::time::Duration;

impl<T> Queues<T> {
    /// Describes a request that arrives at the band at a position.
    pub(super) fn arrival(&self, entry: &QueueEntry<T>, rank: usize, now: u64) -> QueueArrival {
        let after = |time: Duration| now.saturating_add(nanos(time));
        let own = entry.deadline.map_or_else(|| after(self.bands[rank].policy.ttl), nanos);
        let deadline = own.min(after(self.settings.ttl_max));
        let one = QueueUsage::one(entry.bytes, entry.tokens);
        QueueArrival { now, rank, flow: entry.flow, deadline, one }
    }

    /// Makes sure that a request may wait, by sending others away if that is set.
    pub(super) fn admit(
        &mut self,
        arrival: &QueueArrival,
        displaced: &mut Vec<EvictedRequest<T>>,
    ) -> Result<(), BrokenBound> {
        if self.closed {
            return Err((QueueRefusal::Closed, 0, self.usage.requests));
        }
        if arrival.deadline <= arrival.now {
            return Err((QueueRefusal::Deadline, 0, 0));
        }
        let band = &self.bands[arrival.rank];
        fits(&band.policy.bounds, band.usage, arrival.one, QueueRefusal::BAND)?;
        self.in_time(arrival)?;
        let broken = fits(&self.settings.total, self.usage, arrival.one, QueueRefusal::TOTAL);
        if broken.is_ok() || !(self.settings.displace && self.can_displace(arrival)) {
            return broken;
        }
        // The lowest band gives way first, and of its requests the newest, which have waited
        // least.
        for rank in (arrival.rank + 1..self.bands.len()).rev() {
            while let Some(slot) = self.bands[rank].newest() {
                if fits(&self.settings.total, self.usage, arrival.one, QueueRefusal::TOTAL).is_ok()
                {
                    return Ok(());
                }
                let gone = self.evict(rank, slot, Eviction::Displaced, arrival.now);
                displaced.push(gone);
            }
        }
        Ok(())
    }

    /// Whether there is room once all lower bands are empty.
    fn can_displace(&self, arrival: &QueueArrival) -> bool {
        let lower = self.bands[arrival.rank + 1..].iter();
        let lower = lower.fold(QueueUsage::default(), |sum, band| sum.plus(band.usage));
        let others = self.usage.minus(lower);
        fits(&self.settings.total, others, arrival.one, QueueRefusal::TOTAL).is_ok()
    }

    /// Refuses what would wait beyond its deadline, if that is set.
    fn in_time(&self, arrival: &QueueArrival) -> Result<(), BrokenBound> {
        let Some(drain) = self.meter.drain().filter(|_| self.settings.evict_hopeless) else {
            return Ok(());
        };
        let left = Duration::from_nanos(arrival.deadline - arrival.now);
        let wait = drain.time(self.ahead(arrival));
        if wait <= left {
            return Ok(());
        }
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Err((QueueRefusal::Hopeless, ms(left), ms(wait)))
    }

    /// Usage that is served before an arriving request: the bands above it and, if its own band
    /// serves in order of arrival, that band, or its flow's part times the number of flows.
    fn ahead(&self, arrival: &QueueArrival) -> QueueUsage {
        let above = self.above(arrival.rank);
        let band = &self.bands[arrival.rank];
        if band.policy.ordering != Ordering::Fcfs {
            return above;
        }
        let mut own = band.usage;
        if band.policy.fairness != Fairness::GlobalStrict {
            let flow = band.flows.usage(arrival.flow);
            let others = band.flows.active() as u64;
            own.requests = own.requests.min(flow.requests.saturating_mul(others));
            own.tokens = own.tokens.min(flow.tokens.saturating_mul(others));
        }
        above.plus(own)
    }
}
