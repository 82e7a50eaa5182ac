//! A connection of HTTP/2 and its streams, all in one task.
//!
//! Servers usually start a task for each stream. Its thread then is another than the one that read
//! the request and will write the answer, and waking it costs as much as a pick does. Here the
//! thread that has read what came works it off too, and what was answered meanwhile leaves in one
//! write. Who has more than microseconds to do for a stream does it in a task of its own.

use futures::future::{CatchUnwind, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use futures::task::AtomicWaker;
use hyper::rt::Executor;
use parking_lot::Mutex;
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Rounds in which a connection looks again after its streams have worked, before it lets other
/// connections have their turn.
const ROUNDS_MAX: u32 = 16;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type Stream = CatchUnwind<AssertUnwindSafe<Work>>;

/// Takes the streams that a connection opens.
#[derive(Clone, Default)]
pub(super) struct OpenedStreams(Arc<Mutex<Vec<Stream>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for OpenedStreams {
    fn execute(&self, stream: F) {
        let work: Work = Box::pin(stream);
        // What is wrong with one stream is no reason to end the others.
        self.0.lock().push(AssertUnwindSafe(work).catch_unwind());
    }
}

/// A connection together with its streams; ends when the connection does.
pub(super) struct ConnectionTask<C> {
    connection: Pin<Box<C>>,
    opened: OpenedStreams,
    streams: FuturesUnordered<Stream>,
    bell: Arc<Bell>,
    waker: Waker,
}

impl<C: Future> ConnectionTask<C> {
    /// A connection that hands its streams to `opened`.
    pub(super) fn new(connection: C, opened: OpenedStreams) -> Self {
        let bell = Arc::<Bell>::default();
        let (waker, streams) = (bell.clone().into(), FuturesUnordered::new());
        Self { connection: Box::pin(connection), opened, streams, bell, waker }
    }

    /// The connection itself.
    pub(super) fn inner(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }

    /// Lets the connection read and write, then the streams work.
    fn round(&mut self) -> Poll<C::Output> {
        let mut cx = Context::from_waker(&self.waker);
        let read = self.connection.as_mut().poll(&mut cx);
        self.streams.extend(self.opened.0.lock().drain(..));
        while let Poll::Ready(Some(ended)) = self.streams.poll_next_unpin(&mut cx) {
            ended
                .unwrap_or_else(|panic| tracing::error!(what = said(&*panic), "a stream panicked"));
        }
        read
    }
}

impl<C: Future> Future for ConnectionTask<C> {
    type Output = C::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let this = self.get_mut();
        this.bell.sleeper.register(cx.waker());
        for _ in 0..ROUNDS_MAX {
            this.bell.hush();
            if let Poll::Ready(ended) = this.round() {
                return Poll::Ready(ended);
            }
            if this.bell.sleep() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Message of a panic.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("nothing")
}

/// Wakes a connection's task, unless it is at work: then it only says that there is more to do.
#[derive(Default)]
struct Bell {
    /// One of the states below.
    state: AtomicU8,
    sleeper: AtomicWaker,
}

/// The task is at work, and has heard all.
const HUSHED: u8 = 0;
/// There is more to do.
const RUNG: u8 = 1;
/// The task waits to be woken.
const ASLEEP: u8 = 2;

impl Bell {
    /// The task is at work and looks at everything from now on.
    fn hush(&self) {
        self.state.store(HUSHED, Ordering::SeqCst);
    }

    /// Goes to sleep; false if there is more to do.
    fn sleep(&self) -> bool {
        let (from, to) = (HUSHED, ASLEEP);
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(RUNG, Ordering::SeqCst) == ASLEEP {
            self.sleeper.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, poll_fn};
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::oneshot;

    /// A connection that opens `streams` when it is first looked at, and ends when it is looked at
    /// after `done` of them are over.
    fn opening(
        streams: Vec<Work>,
        done: usize,
    ) -> (ConnectionTask<impl Future<Output = usize>>, Arc<AtomicUsize>) {
        let (opened, over) = (OpenedStreams::default(), Arc::new(AtomicUsize::new(0)));
        let (to, count) = (opened.clone(), over.clone());
        let mut streams = Some(streams);
        let connection = poll_fn(move |cx| {
            for stream in streams.take().into_iter().flatten() {
                let (count, waker) = (count.clone(), cx.waker().clone());
                to.execute(async move {
                    stream.await;
                    count.fetch_add(1, Ordering::SeqCst);
                    waker.wake();
                });
            }
            let over = count.load(Ordering::SeqCst);
            if over >= done { Poll::Ready(over) } else { Poll::Pending }
        });
        (ConnectionTask::new(connection, opened), over)
    }

    #[test]
    fn what_streams_have_done_is_looked_at_before_the_task_sleeps() {
        let (mut connection, _) = opening(vec![Box::pin(async {}), Box::pin(async {})], 2);
        assert_eq!((&mut connection).now_or_never(), Some(2));
    }

    #[tokio::test]
    async fn a_stream_that_waits_wakes_the_connection_and_holds_up_no_other() {
        let (sender, receiver) = oneshot::channel::<()>();
        let waits = Box::pin(async move {
            let _ = receiver.await;
        });
        let (mut connection, over) = opening(vec![waits, Box::pin(async {})], 2);
        assert_eq!(futures::poll!(&mut connection), Poll::Pending);
        assert_eq!(over.load(Ordering::SeqCst), 1);
        let task = tokio::spawn(connection);
        tokio::task::yield_now().await;
        sender.send(()).expect("the stream waits");
        assert_eq!(task.await.expect("it does not panic"), 2);
    }

    #[test]
    fn a_stream_that_panics_ends_alone() {
        let (mut connection, over) =
            opening(vec![Box::pin(async { panic!("on purpose") }), Box::pin(async {})], 2);
        assert_eq!((&mut connection).now_or_never(), None);
        assert_eq!(over.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn streams_end_with_their_connection() {
        let held = Arc::new(());
        let holds = held.clone();
        let stream = Box::pin(async move {
            let _holds = holds;
            pending::<()>().await;
        });
        let (mut connection, _) = opening(vec![stream], 1);
        assert_eq!((&mut connection).now_or_never(), None);
        assert_eq!(Arc::strong_count(&held), 2);
        drop(connection);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn a_connection_without_rest_lets_others_have_their_turn() {
        // It rings its own bell whenever it is looked at.
        let busy = ConnectionTask::new(
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                Poll::<()>::Pending
            }),
            OpenedStreams::default(),
        );
        let task = tokio::spawn(busy);
        tokio::task::yield_now().await;
        task.abort();
        assert!(task.await.is_err_and(|error| error.is_cancelled()));
    }
}
