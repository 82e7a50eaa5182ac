//! A thread with a runtime of its own, for tasks that wake each other. On one thread such a wake-up
//! crosses to no other thread, and tasks that become ready together run together.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// A thread that runs tasks on a runtime of its own. Dropping the lane ends its tasks.
#[derive(Debug)]
pub struct Lane {
    handle: Handle,
    _running: oneshot::Sender<()>,
}

impl Lane {
    /// Starts a lane whose thread has this name, of at most 15 bytes.
    ///
    /// # Errors
    ///
    /// When the system gives no thread or no event queue.
    pub fn start(name: &str) -> io::Result<Self> {
        Self::run(name, Builder::new_current_thread().enable_all().build()?)
    }

    /// Starts a lane that polls its sockets at most once per `pace`, to batch work at the cost of
    /// that much latency.
    ///
    /// An idle lane sleeps until `pace` has passed since it last woke, then handles in one go all
    /// input that arrived during the sleep. Input that arrives after at least `pace` of silence is
    /// not delayed. A lane that stays busy for longer than `pace` does not sleep.
    ///
    /// # Errors
    ///
    /// As [`Lane::start`].
    pub fn paced(name: &str, pace: Duration) -> io::Result<Self> {
        thread_local!(static WOKEN: Cell<Option<Instant>> = const { Cell::new(None) });
        let runtime = Builder::new_current_thread()
            .enable_all()
            .on_thread_unpark(|| WOKEN.set(Some(Instant::now())))
            .on_thread_park(move || {
                let left = WOKEN.get().map(|woken| pace.saturating_sub(woken.elapsed()));
                // The kernel queues the events that come during the sleep; they do not end it.
                if let Some(left) = left.filter(|left| !left.is_zero()) {
                    std::thread::sleep(left);
                }
            })
            .build()?;
        Self::run(name, runtime)
    }

    fn run(name: &str, runtime: Runtime) -> io::Result<Self> {
        let handle = runtime.handle().clone();
        let (running, dropped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(move || {
            // Nothing is ever sent: this ends with the sender.
            let _ = runtime.block_on(dropped);
            // Blocking calls, such as the look-up of a name, do not delay the end of the thread.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _running: running })
    }

    /// The handle that starts tasks on this lane.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use tokio::io::AsyncReadExt;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    #[tokio::test]
    async fn tasks_run_there_until_it_is_dropped() {
        let lane = Lane::start("lane").expect("a thread");
        let name = || std::thread::current().name().map(str::to_owned);
        let found = lane.handle().spawn(async move { name() }).await;
        assert_eq!(found.expect("it ran"), Some("lane".to_owned()));
        let endless = lane.handle().spawn(std::future::pending::<()>());
        drop(lane);
        assert!(endless.await.is_err_and(|error| error.is_cancelled()));
    }

    /// The streams of a round are written to in turns, and nothing more until all of it has come.
    #[tokio::test]
    async fn what_comes_in_a_pause_is_in_order_and_waits_for_nothing_more_to_come() {
        let lane = Lane::paced("paced", Duration::from_millis(1)).expect("a thread");
        let (sender, mut came) = mpsc::unbounded_channel();
        let mut writers = Vec::new();
        for stream in 0..8 {
            let (writer, reader) = UnixStream::pair().expect("a pair");
            reader.set_nonblocking(true).expect("a socket's mode");
            let sender = sender.clone();
            lane.handle().spawn(async move {
                let mut reader = tokio::net::UnixStream::from_std(reader).expect("a socket");
                while let Ok(number) = reader.read_u8().await {
                    sender.send((stream, number)).expect("a test that reads");
                }
            });
            writers.push(writer);
        }
        let mut seen = vec![Vec::new(); writers.len()];
        for round in 0..50 {
            for number in [2 * round, 2 * round + 1] {
                for writer in &mut writers {
                    writer.write_all(&[number]).expect("a reader");
                }
            }
            for _ in 0..2 * writers.len() {
                let next = timeout(Duration::from_secs(30), came.recv()).await;
                let (stream, number) = next.expect("it comes").expect("a lane that reads");
                seen[stream].push(number);
            }
        }
        let expected: Vec<u8> = (0..100).collect();
        assert_eq!(seen, vec![expected; writers.len()]);
    }
}
