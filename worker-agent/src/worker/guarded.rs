//! An engine whose panics end the engine alone.

use stator_engine::Engine;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An engine behind a guard: a panic ends the engine, and its driver goes on.
pub(crate) struct GuardedEngine {
    /// `None` once the engine has failed.
    engine: Option<Box<dyn Engine>>,
    /// The panic's message, until the driver has read it.
    failure: Option<String>,
}

impl GuardedEngine {
    pub(crate) fn new(engine: Box<dyn Engine>) -> Self {
        Self { engine: Some(engine), failure: None }
    }

    /// Calls the engine; `None` once it has failed.
    pub(crate) fn call<T>(&mut self, call: impl FnOnce(&mut dyn Engine) -> T) -> Option<T> {
        let engine = self.engine.as_deref_mut()?;
        match catch_unwind(AssertUnwindSafe(|| call(engine))) {
            Ok(value) => Some(value),
            Err(panic) => {
                self.failure = Some(message_of(panic.as_ref()));
                // What it left behind may be inconsistent: even dropping it may panic.
                let engine = self.engine.take();
                let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
                None
            }
        }
    }

    /// The message of the panic that ended the engine, once.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".into())
}
