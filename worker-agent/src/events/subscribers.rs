//! The subscribers of the request plane, and what waits for each of them.
//!
//! Nobody waits for a subscriber. A bounded queue holds what it has not read yet; one that reads too
//! slowly loses the oldest messages, and one that reads nothing for long loses its place.

use super::queue::{Message, Queue};
use crate::metrics::AgentMetrics;
use parking_lot::Mutex;
use stator_runtime::Shutdown;
use stator_runtime::quota::{Hold, Quota, QuotaRefusal};
use stator_runtime::shutdown::Trigger;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Subscribers at once.
const SUBSCRIBERS_MAX: usize = 1024;
/// Subscribers of one IP address; those at Unix sockets have no address and may have all.
const PER_ADDRESS_MAX: usize = 256;
/// Longest time in which a subscriber that is losing messages reads nothing.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Everyone who subscribed.
#[derive(Debug)]
pub(crate) struct Subscribers {
    seats: Mutex<Vec<Seat>>,
    places: Quota<IpAddr>,
    metrics: AgentMetrics,
}

/// A subscriber as the publisher sees it.
#[derive(Debug)]
struct Seat {
    prefixes: Vec<String>,
    queue: Arc<Queue>,
    _place: Hold<IpAddr>,
    /// Dropped with the seat, which tells the subscription.
    _seated: Trigger,
}

/// A subscriber as whoever sends to it sees it. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    all: Arc<Subscribers>,
    queue: Arc<Queue>,
    cut: Shutdown,
}

/// The subscriber has read nothing for too long and lost its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the subscriber read nothing for {STALL_MAX:?} and lost messages")]
pub(crate) struct CutOff;

impl Subscribers {
    /// Nobody yet.
    pub(crate) fn new(metrics: AgentMetrics) -> Self {
        let places = Quota::new(SUBSCRIBERS_MAX, PER_ADDRESS_MAX);
        Self { seats: Mutex::default(), places, metrics }
    }

    /// Seats a subscriber to the topics that begin with one of these.
    ///
    /// # Errors
    ///
    /// [`QuotaRefusal`] where all places, or those of its address, are taken.
    pub(crate) fn join(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        prefixes: Vec<String>,
    ) -> Result<Subscription, QuotaRefusal> {
        let place = self.places.take(address, 1).inspect_err(|_| {
            self.metrics.subscribers_refused.inc();
        })?;
        let queue = Arc::new(Queue::default());
        let (seated, cut) = Shutdown::new();
        let seat = Seat { prefixes, queue: queue.clone(), _place: place, _seated: seated };
        self.seats.lock().push(seat);
        self.metrics.subscribers.inc();
        Ok(Subscription { all: self.clone(), queue, cut })
    }

    /// Hands a message to all who want it; returns how many messages were lost for want of room.
    pub(crate) fn publish(&self, message: &Message) -> u64 {
        let (mut lost, mut stalled) = (0, false);
        let mut seats = self.seats.lock();
        for seat in seats.iter().filter(|seat| seat.wants(&message.topic)) {
            let displaced = seat.queue.push(message.clone());
            lost += displaced;
            stalled |= displaced > 0 && seat.is_stalled();
        }
        if stalled {
            self.remove(&mut seats, Seat::is_stalled);
        }
        lost
    }

    /// Cuts everybody off.
    #[cfg(test)]
    pub(crate) fn clear(&self) {
        self.remove(&mut self.seats.lock(), |_| true);
    }

    fn remove(&self, seats: &mut Vec<Seat>, goes: impl Fn(&Seat) -> bool) {
        seats.retain(|seat| {
            let goes = goes(seat);
            if goes {
                // Who does not read keeps the subscription: its memory ends here.
                seat.queue.clear();
                self.metrics.subscribers.dec();
            }
            !goes
        });
    }
}

impl Seat {
    fn wants(&self, topic: &[u8]) -> bool {
        self.prefixes.iter().any(|prefix| topic.starts_with(prefix.as_bytes()))
    }

    fn is_stalled(&self) -> bool {
        self.queue.stalled_for() > STALL_MAX
    }
}

impl Subscription {
    /// The next messages, about `bytes_max` of them and at least one.
    ///
    /// # Errors
    ///
    /// [`CutOff`] once the subscriber has lost its place.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&self, bytes_max: usize) -> Result<Vec<Message>, CutOff> {
        tokio::select! {
            biased;
            () = self.cut.wait() => Err(CutOff),
            part = self.queue.part(bytes_max) => Ok(part),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let ours = |seat: &Seat| Arc::ptr_eq(&seat.queue, &self.queue);
        self.all.remove(&mut self.all.seats.lock(), ours);
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::{QUEUE_BYTES, QUEUE_MESSAGES};
    use super::*;
    use bytes::Bytes;

    fn message(topic: &'static str, number: u64, payload_bytes: usize) -> Message {
        let payload = Bytes::from(vec![0; payload_bytes]);
        Message { topic: Bytes::from_static(topic.as_bytes()), number, payload }
    }

    fn all() -> Arc<Subscribers> {
        Arc::new(Subscribers::new(AgentMetrics::default()))
    }

    fn join(all: &Arc<Subscribers>, prefixes: &[&str]) -> Subscription {
        let prefixes = prefixes.iter().map(|&prefix| prefix.to_owned()).collect();
        all.join(None, prefixes).unwrap()
    }

    #[tokio::test]
    async fn a_subscriber_hears_what_it_wants_from_when_it_joined() {
        let all = all();
        all.publish(&message("load/1", 0, 1));
        let (events, everything) = (join(&all, &["kv-events/1", "kv-events/2"]), join(&all, &[""]));
        for (number, topic) in
            ["kv-events/1", "load/1", "kv-events/3", "kv-events/2"].iter().enumerate()
        {
            assert_eq!(all.publish(&message(topic, number as u64, 1)), 0);
        }
        let heard = async |subscription: &Subscription| {
            let part = subscription.next(usize::MAX).await.unwrap();
            part.into_iter().map(|message| message.number).collect::<Vec<_>>()
        };
        assert_eq!(heard(&events).await, [0, 3]);
        assert_eq!(heard(&everything).await, [0, 1, 2, 3]);
        drop(events);
        assert_eq!((all.seats.lock().len(), all.metrics.subscribers.get()), (1, 1));
    }

    #[tokio::test]
    async fn a_slow_reader_loses_the_oldest_and_others_lose_nothing() {
        let all = all();
        let (slow, quick) = (join(&all, &["kv"]), join(&all, &["kv"]));
        let mut heard = 0;
        for number in 0..QUEUE_MESSAGES as u64 + 10 {
            assert_eq!(
                all.publish(&message("kv", number, 0)),
                u64::from(number >= QUEUE_MESSAGES as u64)
            );
            heard += quick.next(1).await.unwrap().len();
        }
        assert_eq!(heard, QUEUE_MESSAGES + 10);
        assert_eq!(slow.next(1).await.unwrap()[0].number, 10);
        drop(quick);
        assert_eq!(all.publish(&message("kv", 0, QUEUE_BYTES)), 0);
        let all_before = QUEUE_MESSAGES as u64;
        assert_eq!(all.publish(&message("kv", 0, 1)), all_before, "bytes are bounded too");
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscriber_that_reads_nothing_while_it_loses_is_cut_off() {
        let all = all();
        let (silent, idle) = (join(&all, &["kv"]), join(&all, &["load"]));
        let full = message("kv", 0, QUEUE_BYTES);
        all.publish(&full);
        tokio::time::advance(STALL_MAX + Duration::from_millis(1)).await;
        assert_eq!(all.seats.lock().len(), 2, "it has lost nothing yet");
        all.publish(&full);
        assert_eq!(all.seats.lock().len(), 1);
        assert_eq!(silent.next(1).await, Err(CutOff));
        assert_eq!(silent.queue.stalled_for(), Duration::ZERO, "nothing waits for it");
        // One that has nothing to read is no such thing, however late the next burst comes.
        for _ in 0..3 {
            all.publish(&message("load", 0, QUEUE_BYTES));
        }
        assert!(idle.next(1).await.is_ok());
        drop((silent, idle));
        assert_eq!((all.places.held(), all.metrics.subscribers.get()), (0, 0));
    }

    #[tokio::test]
    async fn places_are_bounded_in_all_and_for_one_address() {
        let all = all();
        let at = |n: usize| Some(IpAddr::from([10, 0, (n / PER_ADDRESS_MAX) as u8, 1]));
        let mut held: Vec<_> =
            (0..PER_ADDRESS_MAX).map(|n| all.join(at(n), vec![]).unwrap()).collect();
        assert!(matches!(all.join(at(0), vec![]), Err(QuotaRefusal::Share { .. })));
        held.extend((PER_ADDRESS_MAX..SUBSCRIBERS_MAX).map(|n| all.join(at(n), vec![]).unwrap()));
        assert!(matches!(all.join(None, vec![]), Err(QuotaRefusal::Limit { .. })));
        assert_eq!(all.metrics.subscribers_refused.get(), 2);
        held.pop();
        assert!(all.join(None, vec![]).is_ok());
    }
}
