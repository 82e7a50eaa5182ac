//! The process's metrics registry, rendered as OpenMetrics text.

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;

/// Content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Last line of every page.
const END: &str = "# EOF\n";

/// All metrics of a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<Page>>);

#[derive(Default)]
struct Page {
    registry: Registry,
    texts: Vec<Box<Text>>,
}

/// Writes whole families after those that are there.
type Text = dyn Fn(&mut String) + Send + Sync;

impl Metrics {
    /// Lets a crate register its metrics; each crate does so once, at start.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.0.lock().registry)
    }

    /// Shows families that are written already, as somebody else's are, after the registered ones:
    /// `text` writes them as OpenMetrics text without its end mark, under names of their own.
    pub fn register_text(&self, text: impl Fn(&mut String) + Send + Sync + 'static) {
        self.0.lock().texts.push(Box::new(text));
    }

    /// All metrics as OpenMetrics text.
    pub fn render(&self) -> String {
        let (mut out, page) = (String::new(), self.0.lock());
        prometheus_client::encoding::text::encode(&mut out, &page.registry)
            .expect("writing to a string cannot fail");
        if !page.texts.is_empty() {
            out.truncate(out.strip_suffix(END).map_or(out.len(), str::len));
            page.texts.iter().for_each(|text| text(&mut out));
            out.push_str(END);
        }
        out
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::gauge::Gauge;

    #[test]
    fn what_is_written_already_stands_after_what_is_registered() {
        let metrics = Metrics::default();
        let gauge: Gauge = Gauge::default();
        metrics.register(|registry| registry.register("a", "A gauge", gauge.clone()));
        let own = "# HELP a A gauge.\n# TYPE a gauge\na 0\n";
        assert_eq!(metrics.render(), format!("{own}# EOF\n"));
        metrics.register_text(|out| out.push_str("# TYPE b gauge\nb 1\n"));
        metrics.register_text(|_| ());
        assert_eq!(metrics.render(), format!("{own}# TYPE b gauge\nb 1\n# EOF\n"));
    }
}
