//! A thread with a runtime of its own, for work whose tasks wake each other: on one thread that
//! wakes no other, and what becomes ready together is seen to together.

use std::io;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Such a thread. Dropping it ends what runs there.
#[derive(Debug)]
pub struct Lane {
    handle: Handle,
    _running: oneshot::Sender<()>,
}

impl Lane {
    /// Starts it under a name of at most 15 bytes.
    ///
    /// # Errors
    ///
    /// When the system gives no thread or no event queue.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, dropped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(move || {
            // Nothing is ever sent: this ends with the sender.
            let _ = runtime.block_on(dropped);
            // What blocks, such as the look-up of a name, keeps nobody waiting.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _running: running })
    }

    /// Where tasks are started.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
