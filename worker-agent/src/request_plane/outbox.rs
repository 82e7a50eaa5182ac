//! The answers of one client stream on their way out, and what the stream has running.
//!
//! Drivers push once per engine step; the stream's writer takes everything that has gathered and
//! sends it as one frame. The slower the client reads, the more each frame carries.

use futures::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use stator_engine::RequestKey;
use stator_protos::worker::Output;
use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

/// Outputs in one frame at most; what is left goes with the next.
const MAX_OUTPUTS_PER_FRAME: usize = 4096;
/// Values of vectors in one frame at most, beside one vector: 16 MiB.
const MAX_VALUES_PER_FRAME: usize = 4 << 20;
/// Number of outputs that fill a frame of their own, whatever else has come.
const ENOUGH_FOR_A_FRAME: usize = 64;

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
    closed: bool,
}

/// Worker and key of a live request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Index of its worker in the agent.
    pub(crate) worker: usize,
    /// Its name towards the engine.
    pub(crate) key: RequestKey,
}

/// Why a stream takes no further request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionError {
    /// A live request has the same id.
    Duplicate,
    /// The client has as many live requests as it may.
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
    pub(crate) fn admit(
        &self,
        request_id: u64,
        route: Route,
        limit: usize,
    ) -> Result<(), AdmissionError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(AdmissionError::Closed);
        }
        let live = state.live.len();
        match state.live.entry(request_id) {
            Entry::Occupied(_) => Err(AdmissionError::Duplicate),
            Entry::Vacant(_) if live >= limit => Err(AdmissionError::Full),
            Entry::Vacant(entry) => {
                entry.insert(route);
                Ok(())
            }
        }
    }

    /// Worker and key of a live request.
    pub(crate) fn route(&self, request_id: u64) -> Option<Route> {
        self.state.lock().live.get(&request_id).copied()
    }

    /// Whether requests are live.
    pub(crate) fn has_live(&self) -> bool {
        !self.state.lock().live.is_empty()
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

    /// Moves the last output of a request in and forgets the request: whoever reads that it has
    /// ended may use its id again.
    pub(crate) fn push_last(&self, output: Output) {
        let mut state = self.state.lock();
        state.live.remove(&output.request_id);
        self.put(state, std::iter::once(output));
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

    /// Waits for what gathers, and gives everything, up to a frame's limit; `None` when closed and
    /// empty.
    ///
    /// While little is there and more has come, whoever is ready goes first: the tokens of one
    /// step arrive together, and leave in few frames. Nothing waits for what has not come.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&self) -> Option<Vec<Output>> {
        let mut before = 0;
        loop {
            let gathered = poll_fn(|context| self.poll_gathered(context)).await?;
            if gathered == before || gathered >= ENOUGH_FOR_A_FRAME {
                return Some(self.take());
            }
            before = gathered;
            // Comes back when sockets were looked at too.
            tokio::task::yield_now().await;
        }
    }

    /// Number of waiting outputs, once there are some.
    fn poll_gathered(&self, context: &mut Context<'_>) -> Poll<Option<usize>> {
        let state = self.state.lock();
        match state.outputs.len() {
            0 if state.closed => Poll::Ready(None),
            0 => {
                // Under the lock, so that the next push wakes the writer.
                self.writer.register(context.waker());
                Poll::Pending
            }
            gathered => Poll::Ready(Some(gathered)),
        }
    }

    fn take(&self) -> Vec<Output> {
        let mut state = self.state.lock();
        let gathered = state.outputs.len();
        let fits = fitting(&state.outputs);
        let rest = match gathered <= fits {
            // The next frame is likely as large, and has not to grow to it then.
            true => Vec::with_capacity(gathered.min(ENOUGH_FOR_A_FRAME)),
            false => state.outputs.split_off(fits),
        };
        std::mem::replace(&mut state.outputs, rest)
    }
}

/// Number of outputs that the next frame has room for, at least one.
fn fitting(outputs: &[Output]) -> usize {
    let mut values = 0;
    let fits = |output: &&Output| {
        values += output.pooled.len();
        values <= MAX_VALUES_PER_FRAME
    };
    outputs.iter().take(MAX_OUTPUTS_PER_FRAME).take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::task::{Wake, Waker};

    const ROUTE: Route = Route { worker: 0, key: RequestKey(1) };

    fn output(request_id: u64) -> Output {
        Output { request_id, ..Output::default() }
    }

    /// How many outputs the next frame has, where there is one: at the first look what has come
    /// gathers, at the second it is taken.
    async fn take(outbox: &Outbox) -> Poll<Option<usize>> {
        let mut next = pin!(outbox.next());
        let mut taken = poll!(next.as_mut());
        if taken.is_pending() {
            taken = poll!(next);
        }
        taken.map(|taken| taken.map(|outputs| outputs.len()))
    }

    #[tokio::test]
    async fn what_gathered_is_taken_at_once_and_in_bounded_frames() {
        let outbox = Outbox::new();
        assert_eq!(take(&outbox).await, Poll::Pending);
        for step in 0..3 {
            outbox.push(&mut vec![output(step)], &mut vec![]);
        }
        assert_eq!(take(&outbox).await, Poll::Ready(Some(3)));
        outbox.push(&mut vec![Output::default(); MAX_OUTPUTS_PER_FRAME + 1], &mut vec![]);
        assert_eq!(take(&outbox).await, Poll::Ready(Some(MAX_OUTPUTS_PER_FRAME)));
        assert_eq!(take(&outbox).await, Poll::Ready(Some(1)));
        assert_eq!(take(&outbox).await, Poll::Pending);
    }

    #[tokio::test]
    async fn vectors_leave_in_frames_of_bounded_size() {
        let outbox = Outbox::new();
        let pooled = |values| Output { pooled: vec![0.0; values], ..Output::default() };
        let third = MAX_VALUES_PER_FRAME / 3;
        let mut outputs: Vec<_> = (0..4).map(|_| pooled(third)).collect();
        outputs.push(pooled(MAX_VALUES_PER_FRAME + 1));
        outbox.push(&mut outputs, &mut vec![]);
        for expected in [3, 1, 1] {
            assert_eq!(take(&outbox).await, Poll::Ready(Some(expected)));
        }
    }

    #[tokio::test]
    async fn little_is_kept_back_only_while_more_comes_and_much_is_not() {
        let outbox = Outbox::new();
        let mut next = pin!(outbox.next());
        assert_eq!(poll!(next.as_mut()), Poll::Pending);
        for step in 0..3 {
            outbox.push_one(output(step));
            assert_eq!(poll!(next.as_mut()), Poll::Pending);
        }
        assert_eq!(poll!(next.as_mut()).map(|taken| taken.map(|t| t.len())), Poll::Ready(Some(3)));
        outbox.push(&mut vec![Output::default(); ENOUGH_FOR_A_FRAME], &mut vec![]);
        let taken = poll!(pin!(outbox.next())).map(|taken| taken.map(|t| t.len()));
        assert_eq!(taken, Poll::Ready(Some(ENOUGH_FOR_A_FRAME)));
    }

    #[test]
    fn ids_are_unique_among_live_requests_and_their_number_is_bounded() {
        let outbox = Outbox::new();
        assert_eq!(outbox.admit(7, ROUTE, 2), Ok(()));
        assert_eq!(outbox.admit(7, ROUTE, 2), Err(AdmissionError::Duplicate));
        assert_eq!(outbox.admit(8, ROUTE, 2), Ok(()));
        assert_eq!(outbox.admit(9, ROUTE, 2), Err(AdmissionError::Full));
        outbox.push_one(output(7));
        assert_eq!(outbox.admit(7, ROUTE, 2), Err(AdmissionError::Duplicate));
        outbox.push_last(output(7));
        assert_eq!(outbox.admit(7, ROUTE, 2), Ok(()));
        outbox.push(&mut vec![output(7)], &mut vec![7]);
        assert_eq!(outbox.admit(7, ROUTE, 2), Ok(()));
    }

    #[tokio::test]
    async fn a_closed_stream_delivers_what_it_has_and_takes_nothing_new() {
        let outbox = Outbox::new();
        outbox.admit(1, ROUTE, 9).unwrap();
        outbox.push(&mut vec![output(1)], &mut vec![]);
        assert_eq!(outbox.close(), [ROUTE]);
        outbox.push(&mut vec![output(1)], &mut vec![]);
        assert_eq!(outbox.admit(2, ROUTE, 9), Err(AdmissionError::Closed));
        assert_eq!(take(&outbox).await, Poll::Ready(Some(1)));
        assert_eq!(take(&outbox).await, Poll::Ready(None));
    }

    /// A writer that counts how often it was told to look.
    #[derive(Default)]
    struct Writer(AtomicU32);

    impl Wake for Writer {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[derive(Clone, Debug)]
    enum Event {
        /// So many outputs of one request come, the last of them perhaps its last.
        Comes(u64, usize, bool),
        /// The writer looks once, as it does when it is woken.
        Look,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let comes = (0..3_u64, 1..100_usize, any::<bool>());
        let comes = comes.prop_map(|(request, count, ends)| Event::Comes(request, count, ends));
        vec(prop_oneof![comes, Just(Event::Look)], 0..40)
    }

    proptest! {
        /// However outputs and looks alternate: each output leaves once, those of a request in
        /// their order, and when no more come a writer that looks when woken leaves none behind.
        #[test]
        fn what_gathers_leaves_whole_in_order_and_without_a_further_push(events in events()) {
            let (outbox, mut made) = (Outbox::new(), Vec::new());
            let writer = Arc::new(Writer::default());
            let waker = Waker::from(writer.clone());
            let mut left: Vec<(u64, u32)> = Vec::new();
            let mut next = Box::pin(outbox.next());
            let mut look = |left: &mut Vec<(u64, u32)>| loop {
                match next.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(outputs) => {
                        let outputs = outputs.expect("it is open");
                        left.extend(outputs.iter().map(|output| (output.request_id, output.choice)));
                        next = Box::pin(outbox.next());
                    }
                    Poll::Pending => return,
                }
            };
            look(&mut left);
            for event in events {
                match event {
                    Event::Look => look(&mut left),
                    Event::Comes(request_id, count, ends) => {
                        for nth in 1..=count {
                            let choice = made.len() as u32;
                            made.push((request_id, choice));
                            let output = Output { request_id, choice, ..Output::default() };
                            match ends && nth == count {
                                true => outbox.push_last(output),
                                false => outbox.push_one(output),
                            }
                        }
                    }
                }
            }
            while writer.0.swap(0, Ordering::Relaxed) > 0 {
                look(&mut left);
            }
            prop_assert_eq!(left, made);
        }
    }
}
