//! The process's metrics registry, rendered as OpenMetrics text.

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use std::sync::Arc;

/// Content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of a process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<Registry>>);

impl Metrics {
    /// Lets a crate register its metrics; each crate does so once, at start.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.0.lock())
    }

    /// All metrics as OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.0.lock())
            .expect("writing to a string cannot fail");
        text
    }
}
