//! Waits of requests and models for absent workers: flags and settings.

use clap::Args;
use std::time::Duration;

/// Waits of requests and models for absent workers.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Absent workers")]
pub struct AbsenceArgs {
    /// Longest wait for a worker if a model has none at the moment, in milliseconds. New requests
    /// wait, and answers that lost their worker continue where they were. The bounds of the queue
    /// hold too. A request that has waited longer gets 503. Default: 30 s.
    #[arg(long, env = "STATOR_WORKER_WAIT_MS", default_value_t = 30_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    pub worker_wait_ms: u64,

    /// Time for which a model stays known after its last worker left, in seconds. Until then it is
    /// listed, and its requests wait for a worker. After it they get 404. Default: 10 min.
    #[arg(long, env = "STATOR_MODEL_LINGER_S", default_value_t = 600, value_name = "S",
          value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub model_linger_s: u64,

    /// Longest silence of an agent that runs requests, in milliseconds. After it the requests
    /// continue on other workers. Agents send something every half second, whatever their engines
    /// compute. Default: 2 s.
    #[arg(long, env = "STATOR_AGENT_SILENCE_MS", default_value_t = 2_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1_000..=3_600_000))]
    pub agent_silence_ms: u64,
}

/// Checked settings of [`AbsenceArgs`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Absence {
    /// Longest wait of a request for a worker where its model has none.
    pub worker_wait: Duration,
    /// Time for which a model without workers stays known.
    pub model_linger: Duration,
    /// Longest silence of an agent that has requests.
    pub agent_silence: Duration,
}

impl From<AbsenceArgs> for Absence {
    fn from(args: AbsenceArgs) -> Self {
        Self {
            worker_wait: Duration::from_millis(args.worker_wait_ms),
            model_linger: Duration::from_secs(args.model_linger_s),
            agent_silence: Duration::from_millis(args.agent_silence_ms),
        }
    }
}
