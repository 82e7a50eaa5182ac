//! The progress bar: on a terminal only, and never in the way of the measurement.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::record::Record;

/// Shows how far a measurement is.
#[derive(Debug)]
pub(crate) struct SendProgress(ProgressBar);

impl SendProgress {
    /// A bar for so many requests, or one without an end. Hidden where standard error is no
    /// terminal.
    pub(crate) fn new(requests: Option<u64>) -> Self {
        let template = match requests {
            Some(_) => "{bar:32.cyan/dim} {pos}/{len} {elapsed} {msg}",
            None => "{spinner} {pos} {elapsed} {msg}",
        };
        let style = ProgressStyle::with_template(template).expect("the templates are valid");
        Self(
            ProgressBar::with_draw_target(requests, ProgressDrawTarget::stderr()).with_style(style),
        )
    }

    /// Shows the state after `elapsed`.
    pub(crate) fn show(&self, record: &Record, elapsed: Duration) {
        if self.0.is_hidden() {
            return;
        }
        let seconds = elapsed.as_secs_f64().max(1e-3);
        self.0.set_position(record.succeeded + record.failed);
        self.0.set_message(format!(
            "{:.1} req/s  {:.0} tok/s  TTFT p50 {:.1} ms  {} failed",
            record.succeeded as f64 / seconds,
            record.output_tokens as f64 / seconds,
            record.ttft.quantile(0.5).as_secs_f64() * 1e3,
            record.failed,
        ));
    }

    /// Removes the bar.
    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
