//! The answers of one client stream on their way out, and what the stream has running.
//!
//! Drivers push once per engine step; the stream's writer takes everything that has gathered and
//! sends it as one frame. The slower the client reads, the more each frame carries.

use crate::engine::RequestKey;
use futures::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use stator_protos::worker::Output;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

/// Outputs in one frame at most; what is left goes with the next.
const MAX_OUTPUTS_PER_FRAME: usize = 4096;

/// Answers and live requests of one client stream. Bounded, because live requests are: each has
/// at most `choices * max_tokens` tokens to come.
#[derive(Debug)]
pub(crate) struct Outbox {
    id: u64,
    state: Mutex<State>,
    writer: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    outputs: Vec<Output>,
    live: FxHashMap<u64, Route>,
    /// Whether the writer lets what is about to come catch up with what is there.
    gathering: bool,
    closed: bool,
}

/// Where a live request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Index of its worker in the agent.
    pub(crate) worker: usize,
    /// Its name towards the engine.
    pub(crate) key: RequestKey,
}

/// Why a stream takes no further request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A live request has the same id.
    Duplicate,
    /// As many requests are live as may be.
    Full,
    /// The stream has ended.
    Closed,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, state: Mutex::default(), writer: AtomicWaker::new() }
    }

    /// Identity within the process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Notes a request as live, at most `limit` of them.
    pub(crate) fn admit(&self, request_id: u64, route: Route, limit: usize) -> Result<(), Refused> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        let live = state.live.len();
        match state.live.entry(request_id) {
            Entry::Occupied(_) => Err(Refused::Duplicate),
            Entry::Vacant(_) if live >= limit => Err(Refused::Full),
            Entry::Vacant(entry) => {
                entry.insert(route);
                Ok(())
            }
        }
    }

    /// Where a live request runs.
    pub(crate) fn route(&self, request_id: u64) -> Option<Route> {
        self.state.lock().live.get(&request_id).copied()
    }

    /// Moves `outputs` in and forgets the requests in `ended`; both are empty afterwards.
    pub(crate) fn push(&self, outputs: &mut Vec<Output>, ended: &mut Vec<u64>) {
        let mut state = self.state.lock();
        for id in ended.drain(..) {
            state.live.remove(&id);
        }
        self.put(state, outputs.drain(..));
    }

    /// Moves one output of a request that goes on in.
    pub(crate) fn push_one(&self, output: Output) {
        self.put(self.state.lock(), std::iter::once(output));
    }

    fn put(&self, mut state: MutexGuard<'_, State>, outputs: impl Iterator<Item = Output>) {
        if state.closed {
            return;
        }
        let waited = state.outputs.is_empty();
        state.outputs.extend(outputs);
        // Where something was there before, the writer knows.
        let wakes = waited && !state.outputs.is_empty();
        drop(state);
        if wakes {
            self.writer.wake();
        }
    }

    /// Ends the stream after what is already in; returns what was still live.
    pub(crate) fn close(&self) -> Vec<Route> {
        let mut state = self.state.lock();
        state.closed = true;
        let routes = state.live.drain().map(|(_, route)| route).collect();
        drop(state);
        self.writer.wake();
        routes
    }

    /// Everything that has gathered, up to a frame's limit; `None` when closed and empty.
    ///
    /// Of what comes after a silence nothing is taken at once: the writer goes to the end of the
    /// line first, so that the tokens of one step, which arrive together, leave in one frame.
    pub(crate) fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<Vec<Output>>> {
        let mut state = self.state.lock();
        if state.outputs.is_empty() {
            if state.closed {
                return Poll::Ready(None);
            }
            // Under the lock, so that the next push wakes the writer.
            self.writer.register(context.waker());
            return Poll::Pending;
        }
        if !std::mem::replace(&mut state.gathering, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if state.outputs.len() > MAX_OUTPUTS_PER_FRAME {
            let rest = state.outputs.split_off(MAX_OUTPUTS_PER_FRAME);
            return Poll::Ready(Some(std::mem::replace(&mut state.outputs, rest)));
        }
        state.gathering = false;
        Poll::Ready(Some(std::mem::take(&mut state.outputs)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::task::noop_waker;

    const ROUTE: Route = Route { worker: 0, key: RequestKey(1) };

    fn output(request_id: u64) -> Output {
        Output { request_id, ..Output::default() }
    }

    fn take(outbox: &Outbox) -> Poll<Option<usize>> {
        let waker = noop_waker();
        let look = || outbox.poll_take(&mut Context::from_waker(&waker));
        // What has come is gathered at the first look, and taken at the second.
        let taken = if let Poll::Ready(taken) = look() { Poll::Ready(taken) } else { look() };
        taken.map(|taken| taken.map(|outputs| outputs.len()))
    }

    #[test]
    fn what_gathered_is_taken_at_once_and_in_bounded_frames() {
        let outbox = Outbox::new();
        assert_eq!(take(&outbox), Poll::Pending);
        for step in 0..3 {
            outbox.push(&mut vec![output(step)], &mut vec![]);
        }
        assert_eq!(take(&outbox), Poll::Ready(Some(3)));
        outbox.push(&mut vec![Output::default(); MAX_OUTPUTS_PER_FRAME + 1], &mut vec![]);
        assert_eq!(take(&outbox), Poll::Ready(Some(MAX_OUTPUTS_PER_FRAME)));
        assert_eq!(take(&outbox), Poll::Ready(Some(1)));
        assert_eq!(take(&outbox), Poll::Pending);
    }

    #[test]
    fn ids_are_unique_among_live_requests_and_their_number_is_bounded() {
        let outbox = Outbox::new();
        assert_eq!(outbox.admit(7, ROUTE, 2), Ok(()));
        assert_eq!(outbox.admit(7, ROUTE, 2), Err(Refused::Duplicate));
        assert_eq!(outbox.admit(8, ROUTE, 2), Ok(()));
        assert_eq!(outbox.admit(9, ROUTE, 2), Err(Refused::Full));
        outbox.push(&mut vec![output(7)], &mut vec![7]);
        assert_eq!(outbox.admit(7, ROUTE, 2), Ok(()));
    }

    #[test]
    fn a_closed_stream_delivers_what_it_has_and_takes_nothing_new() {
        let outbox = Outbox::new();
        outbox.admit(1, ROUTE, 9).unwrap();
        outbox.push(&mut vec![output(1)], &mut vec![]);
        assert_eq!(outbox.close(), [ROUTE]);
        outbox.push(&mut vec![output(1)], &mut vec![]);
        assert_eq!(outbox.admit(2, ROUTE, 9), Err(Refused::Closed));
        assert_eq!(take(&outbox), Poll::Ready(Some(1)));
        assert_eq!(take(&outbox), Poll::Ready(None));
    }
}
