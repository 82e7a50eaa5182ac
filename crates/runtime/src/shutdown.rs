//! Shutdown: one signal that every task of the process can wait for.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Becomes set once, when the process is to drain and end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// Sets a [`Shutdown`].
#[derive(Debug)]
pub struct Trigger(watch::Sender<bool>);

impl Shutdown {
    /// A shutdown and the trigger that sets it. Dropping the trigger sets it too.
    pub fn new() -> (Trigger, Self) {
        let (sender, receiver) = watch::channel(false);
        (Trigger(sender), Self(receiver))
    }

    /// A shutdown that is set by SIGTERM or SIGINT. A second signal ends the process at once.
    ///
    /// # Errors
    ///
    /// When the signal handlers cannot be installed.
    pub fn on_signal() -> std::io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (trigger, shutdown) = Self::new();
        tokio::spawn(async move {
            for first in [true, false] {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                if first {
                    tracing::info!(signal = name, "draining; a second signal ends at once");
                    trigger.set();
                } else {
                    tracing::warn!(signal = name, "ending at once");
                    std::process::exit(130);
                }
            }
        });
        Ok(shutdown)
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is set.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn wait(&self) {
        // An error means that the trigger was dropped: nobody could set it any more.
        let _ = self.0.clone().wait_for(|set| *set).await;
    }

    /// A shutdown that is set as soon as this one or `other` is.
    pub fn or(self, other: Self) -> Self {
        let (trigger, either) = Self::new();
        tokio::spawn(async move {
            tokio::select! {
                () = self.wait() => {}
                () = other.wait() => {}
            }
            trigger.set();
        });
        either
    }
}

impl Trigger {
    /// Sets the shutdown.
    pub fn set(&self) {
        self.0.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_ends_when_set_and_when_the_trigger_is_gone() {
        let (trigger, shutdown) = Shutdown::new();
        assert!(!shutdown.is_set());
        trigger.set();
        shutdown.wait().await;
        assert!(shutdown.is_set());

        let (trigger, shutdown) = Shutdown::new();
        drop(trigger);
        shutdown.wait().await;
    }

    #[tokio::test]
    async fn either_of_two_is_enough() {
        let (first, a) = Shutdown::new();
        let (_second, b) = Shutdown::new();
        let either = a.or(b);
        assert!(!either.is_set());
        first.set();
        either.wait().await;
    }
}
