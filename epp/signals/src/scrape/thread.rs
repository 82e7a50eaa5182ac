//! A thread that reads pages and does nothing else.

use std::io;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime of its own. Dropping it ends what runs there.
#[derive(Debug)]
pub struct ScrapeThread {
    handle: Handle,
    _running: oneshot::Sender<()>,
}

impl ScrapeThread {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// When the system gives no thread or no event queue.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, dropped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("scrape".into());
        thread.spawn(move || {
            // Nothing is ever sent: this ends with the sender.
            let _ = runtime.block_on(dropped);
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
        let thread = ScrapeThread::start().expect("a thread");
        let name = || std::thread::current().name().map(str::to_owned);
        let found = thread.handle().spawn(async move { name() }).await;
        assert_eq!(found.expect("it ran"), Some("scrape".to_owned()));
        let endless = thread.handle().spawn(std::future::pending::<()>());
        drop(thread);
        assert!(endless.await.is_err_and(|error| error.is_cancelled()));
    }
}
