//! The gate at which requests wait until they can be placed: the queues of `stator-queue` with a
//! clock, a lock and futures. It is a crate of its own so that the queues stay pure.
//!
//! A [`Gate`] stands before one pool. [`Gate::admit`] places a request at once if nothing waits
//! and there is room; otherwise the request waits its turn. A request is placed, that is selected
//! for and booked, by [`Grant::try_grant`] at the moment of its turn, so that what it is granted is
//! true then. Whatever makes room calls [`Gate::kick`]; there is no task and no tick.

use parking_lot::Mutex;
use stator_queue::{
    BandPlace, CheckedSettings, DispatchedRequest, EvictedRequest, Eviction, FlowId, QueueEntry,
    QueueRefusal, QueueStats, QueueTicket, Queues, RejectedRequest, Verdict,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

/// Requests that leave before the queue is unlocked for those that come.
const BATCH: usize = 64;

/// Places requests.
pub trait Grant: Send + Sync {
    /// Data needed to place a request; it waits with the request.
    type Request: Send;
    /// A request's place; dropping it gives it back.
    type Place: Send;
    /// Why a request can never be placed.
    type Error: Send;

    /// Selects a worker for a request of a band and books the request there, in one step.
    ///
    /// It runs under the gate's lock and may take the pool's, so that [`Gate::kick`] must not be
    /// called under the pool's. It must neither block nor panic, and not call the gate except for
    /// [`Gate::kick`].
    fn try_grant(
        &self,
        request: &mut Self::Request,
        band: &BandPlace,
    ) -> Attempt<Self::Place, Self::Error>;

    /// The longest wait of a request that could not be placed and begins to wait now, where that
    /// is shorter than the queue's.
    fn patience(&self, _: &Self::Request) -> Option<Duration> {
        None
    }
}

/// Result of an attempt to place a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt<P, E> {
    /// It has its place.
    Granted(P),
    /// It cannot be placed now; others perhaps can.
    Wait,
    /// Nothing can be placed now. Saying so where it is known spares the attempts of others.
    Stop,
    /// It can never be placed.
    Failed(E),
}

/// A request that has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission<P> {
    /// Its place.
    pub place: P,
    /// Priority of its band: what its answer is charged to.
    pub band: i32,
    /// Time that it has waited; zero if it did not have to.
    pub waited: Duration,
}

/// Why a request got no place; one variant per answer that a client can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError<E> {
    /// It may not wait.
    #[error("refused by the queue of priority {band}, {}: {current}, limit {limit}", reason.name())]
    Rejected {
        /// Why.
        reason: QueueRefusal,
        /// As in [`RejectedRequest`].
        limit: u64,
        /// As in [`RejectedRequest`].
        current: u64,
        /// Priority of the band.
        band: i32,
        /// Wait before another try makes sense.
        retry_after: Duration,
    },
    /// It has waited and was sent away.
    #[error("sent away by the queue of priority {band}, {}, after {waited:?}", reason.name())]
    Evicted {
        /// Why.
        reason: Eviction,
        /// Priority of the band.
        band: i32,
        /// Time that it has waited.
        waited: Duration,
        /// Wait before another try makes sense.
        retry_after: Duration,
    },
    /// It can never be placed.
    #[error("it cannot be placed: {0}")]
    Failed(E),
}

/// Counts for metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct GateStats {
    /// Requests that were placed without waiting.
    pub direct: u64,
    /// The queue.
    pub queue: QueueStats,
}

/// The final answer to a request.
type Outcome<G> = Result<Admission<<G as Grant>::Place>, AdmitError<<G as Grant>::Error>>;

/// A request that waits.
struct Waiter<G: Grant> {
    request: G::Request,
    /// Set when its turn has come.
    turn: Option<Result<G::Place, G::Error>>,
    reply: oneshot::Sender<Outcome<G>>,
}

/// The gate of one pool.
pub struct Gate<G: Grant> {
    grant: G,
    queues: Mutex<Queues<Waiter<G>>>,
    /// Requests that wait, as of the last change.
    waiting: AtomicU64,
    /// Kicks since the dispatcher began; it stops when it has seen them all.
    kicks: AtomicU64,
    direct: AtomicU64,
    /// Whether the queues are told of requests that need not wait.
    counts_turns: bool,
    start: Instant,
}

impl<G: Grant + std::fmt::Debug> std::fmt::Debug for Gate<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("grant", &self.grant).finish_non_exhaustive()
    }
}

impl<G: Grant> Gate<G> {
    /// A gate at which nothing waits.
    pub fn new(grant: G, settings: CheckedSettings) -> Self {
        Self {
            grant,
            counts_turns: settings.counts_turns(),
            queues: Mutex::new(Queues::new(settings)),
            waiting: AtomicU64::new(0),
            kicks: AtomicU64::new(0),
            direct: AtomicU64::new(0),
            start: Instant::now(),
        }
    }

    /// The [`Grant`] that places the requests.
    pub fn grant(&self) -> &G {
        &self.grant
    }

    /// The time that deadlines of entries are in: since the gate was made.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Gets a request its place, at once or after it has waited its turn.
    ///
    /// Without having to wait a request is not queued and nothing is allocated.
    ///
    /// # Errors
    ///
    /// [`AdmitError`]: it may not wait, was sent away, or can never be placed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait, or the place if that was granted meanwhile.
    pub async fn admit(&self, mut entry: QueueEntry<G::Request>) -> Outcome<G> {
        if let Some(outcome) = self.admit_directly(&mut entry) {
            return outcome;
        }
        let mut wait = self.enqueue(entry)?;
        // Room may have come since the attempt, and the newcomer may be the one that fits.
        self.kick();
        wait.outcome().await
    }

    /// Offers room to those that wait: to be called when a request ends, a worker comes or its
    /// load falls. One caller at a time dispatches, on behalf of all that call meanwhile. Not to be
    /// called under a lock that [`Grant::try_grant`] takes.
    pub fn kick(&self) {
        // With the store in `enqueue`: either this sees the newcomer, or the newcomer's own kick
        // sees the room.
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        if self.kicks.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        loop {
            let seen = self.kicks.load(Ordering::SeqCst);
            while self.dispatch() {}
            let done = self.kicks.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::SeqCst);
            if done.is_ok() {
                return;
            }
        }
    }

    /// Sends all away that wait and lets nothing in any more.
    pub fn close(&self) {
        let mut evicted = Vec::new();
        let mut queues = self.queues.lock();
        queues.close(self.now(), &mut evicted);
        self.unlock(queues);
        evicted.into_iter().for_each(answer_evicted);
    }

    /// The answer to a request of this flow has grown by so many tokens. `band` is where it was
    /// admitted.
    pub fn charge(&self, band: i32, flow: FlowId, tokens: u64) {
        let now = self.now();
        self.queues.lock().charge(band, flow, tokens, now);
    }

    /// Wait before a request of this priority that is refused now should come back.
    pub fn retry_after(&self, priority: i32) -> Duration {
        self.queues.lock().retry_after(priority)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Counts for metrics.
    pub fn stats(&self) -> GateStats {
        let direct = self.direct.load(Ordering::Relaxed);
        GateStats { direct, queue: self.queues.lock().stats(self.now()) }
    }

    /// Places a request if nothing waits before it. `None`: it is to wait.
    fn admit_directly(&self, entry: &mut QueueEntry<G::Request>) -> Option<Outcome<G>> {
        let band = {
            let queues = self.queues.lock();
            if queues.waiting().requests > 0 || queues.is_closed() {
                return None;
            }
            queues.place(entry.priority)
        };
        match self.grant.try_grant(&mut entry.payload, &band) {
            Attempt::Granted(place) => {
                self.direct.fetch_add(1, Ordering::Relaxed);
                if self.counts_turns {
                    let now = self.now();
                    self.queues.lock().passed(entry.priority, entry.flow, now);
                }
                let (band, waited) = (band.priority, Duration::ZERO);
                Some(Ok(Admission { place, band, waited }))
            }
            Attempt::Failed(error) => Some(Err(AdmitError::Failed(error))),
            Attempt::Wait | Attempt::Stop => None,
        }
    }

    fn enqueue(
        &self,
        mut entry: QueueEntry<G::Request>,
    ) -> Result<Wait<'_, G>, AdmitError<G::Error>> {
        if let Some(patience) = self.grant.patience(&entry.payload) {
            let end = self.now() + patience;
            entry.deadline = Some(entry.deadline.map_or(end, |deadline| deadline.min(end)));
        }
        let (reply, receiver) = oneshot::channel();
        let entry = entry.map(|request| Waiter { request, turn: None, reply });
        let mut displaced = Vec::new();
        let mut queues = self.queues.lock();
        let pushed = queues.push(entry, self.now(), &mut displaced);
        let deadline = pushed.as_ref().ok().and_then(|ticket| queues.deadline(*ticket));
        self.unlock(queues);
        displaced.into_iter().for_each(answer_evicted);
        let ticket = pushed.map_err(refused)?;
        let deadline = self.start + deadline.unwrap_or_default();
        Ok(Wait { gate: self, ticket, deadline, reply: receiver })
    }

    /// Grants what can be granted; returns whether there may be more.
    fn dispatch(&self) -> bool {
        let (mut dispatched, mut evicted) = (Vec::new(), Vec::new());
        let mut full = false;
        let mut queues = self.queues.lock();
        let (now, mut gone) = (self.now(), 0);
        queues.expire(now, &mut evicted);
        let mut verdict = |head: &stator_queue::QueueHead, waiter: &mut Waiter<G>| {
            if gone == BATCH {
                full = true;
                return Verdict::Stop;
            }
            let verdict = self.turn(waiter, &head.band);
            // Those that stay do not count: they would be offered again and again.
            gone += usize::from(matches!(verdict, Verdict::Go | Verdict::Leave));
            verdict
        };
        queues.pop(now, &mut verdict, &mut dispatched);
        self.unlock(queues);
        evicted.into_iter().for_each(answer_evicted);
        dispatched.into_iter().for_each(answer_dispatched);
        full
    }

    fn turn(&self, waiter: &mut Waiter<G>, band: &BandPlace) -> Verdict {
        if waiter.reply.is_closed() {
            // Its future is gone, and about to take it out.
            return Verdict::Leave;
        }
        match self.grant.try_grant(&mut waiter.request, band) {
            Attempt::Granted(place) => {
                waiter.turn = Some(Ok(place));
                Verdict::Go
            }
            Attempt::Failed(error) => {
                waiter.turn = Some(Err(error));
                Verdict::Leave
            }
            Attempt::Wait => Verdict::Wait,
            Attempt::Stop => Verdict::Stop,
        }
    }

    fn unlock(&self, queues: parking_lot::MutexGuard<'_, Queues<Waiter<G>>>) {
        self.waiting.store(queues.waiting().requests, Ordering::SeqCst);
    }
}

/// A request's part in the queue. Dropping it gives that up.
struct Wait<'a, G: Grant> {
    gate: &'a Gate<G>,
    ticket: QueueTicket,
    deadline: Instant,
    reply: oneshot::Receiver<Outcome<G>>,
}

impl<G: Grant> Wait<'_, G> {
    /// Waits for the request's outcome.
    async fn outcome(&mut self) -> Outcome<G> {
        let reply = tokio::select! {
            biased;
            reply = &mut self.reply => reply,
            () = sleep_until(self.deadline) => {
                // Its deadline has come: this sends it away, unless it was granted just now.
                self.gate.kick();
                (&mut self.reply).await
            }
        };
        reply.expect("whoever takes a request out of the queue answers it")
    }
}

impl<G: Grant> Drop for Wait<'_, G> {
    fn drop(&mut self) {
        let mut queues = self.gate.queues.lock();
        let waiter = queues.cancel(self.ticket, self.gate.now());
        self.gate.unlock(queues);
        if waiter.is_some() {
            // It may have kept others from their turns.
            self.gate.kick();
        }
    }
}

/// Answers a request whose turn has come. Nobody is there any more: the place is given back.
fn answer_dispatched<G: Grant>(dispatched: DispatchedRequest<Waiter<G>>) {
    let DispatchedRequest { band, waited, payload: Waiter { turn, reply, .. }, .. } = dispatched;
    let Some(turn) = turn else { return };
    let outcome = turn.map(|place| Admission { place, band, waited }).map_err(AdmitError::Failed);
    drop(reply.send(outcome));
}

fn answer_evicted<G: Grant>(evicted: EvictedRequest<Waiter<G>>) {
    let EvictedRequest { reason, band, waited, retry_after, payload, .. } = evicted;
    let error = AdmitError::Evicted { reason, band, waited, retry_after };
    // Nobody is there any more: there is nobody to tell.
    drop(payload.reply.send(Err(error)));
}

fn refused<T, E>(rejected: RejectedRequest<T>) -> AdmitError<E> {
    let RejectedRequest { reason, limit, current, band, retry_after, .. } = rejected;
    AdmitError::Rejected { reason, limit, current, band, retry_after }
}

#[cfg(test)]
mod tests;
