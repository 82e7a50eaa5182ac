//! Workload: requests and their times. Pure: a request depends on the arguments, the seed and its
//! index alone.

mod content;
mod conversation;
mod synthetic;
mod trace;

use std::time::Duration;

use anyhow::{Result, ensure};

pub use content::{Content, PromptInput};
pub use conversation::Conversations;
pub use synthetic::Synthetic;
pub use trace::Trace;

use crate::args::{Endpoint, LoadArgs, PromptKind};
use crate::seed::{Purpose, Seed};

/// Requests of a measurement where neither a number nor a duration is given.
const REQUESTS_DEFAULT: u64 = 256;
/// Concurrency of a closed loop where none is given.
const CONCURRENCY_DEFAULT: u32 = 16;
/// Bound on requests in flight in an open loop where none is given.
const IN_FLIGHT_DEFAULT: u32 = 16_384;

/// One thing that arrives: a request, or a conversation of several that follow each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Said before the first turn; only in conversations.
    pub system: Option<String>,
    /// Turns in order; at least one.
    pub turns: Vec<Turn>,
}

/// One request, or one turn of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Prompt of the turn.
    pub prompt: PromptInput,
    /// Tokens that the answer should have, at least 1.
    pub output_tokens: u32,
}

impl Session {
    /// A session of one request.
    pub fn single(prompt: PromptInput, output_tokens: u32) -> Self {
        Self { system: None, turns: vec![Turn { prompt, output_tokens }] }
    }
}

/// Makes sessions. Cheap and callable from many threads: nothing is kept between calls.
pub trait SessionSource: Send + Sync {
    /// The session with this number.
    fn session(&self, index: u64) -> Session;
}

/// Start times of sessions.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// Closed loop: one starts when another has ended.
    Closed,
    /// Open loop: at random, `rate` per second on average.
    Poisson {
        /// Sessions per second.
        rate: f64,
        /// Seed of the times.
        seed: u64,
    },
    /// Open loop: at recorded times, ascending, counted from the start.
    At(Vec<Duration>),
}

impl Schedule {
    /// The times of arrival in an open loop, counted from the start; `None` in a closed one.
    pub fn times(&self) -> Option<Box<dyn Iterator<Item = Duration> + Send + '_>> {
        match self {
            Self::Closed => None,
            Self::Poisson { rate, seed } => Some(Box::new(poisson(*rate, *seed))),
            Self::At(times) => Some(Box::new(times.iter().copied())),
        }
    }
}

/// A whole workload. A value of this type is valid.
pub struct Workload {
    /// Makes the sessions.
    pub source: Box<dyn SessionSource>,
    /// Start times of the sessions.
    pub schedule: Schedule,
    /// Number of sessions; `None` is without limit, until the duration ends.
    pub sessions: Option<u64>,
    /// Requests in all, where the number is known.
    pub requests: Option<u64>,
    /// Sessions in flight at once: exactly in a closed loop, at most in an open one.
    pub in_flight_max: u32,
    /// Unmeasured requests that come first; they share no prefix with the measured ones.
    pub warmup: Synthetic,
}

impl Workload {
    /// The workload that the arguments ask for.
    ///
    /// # Errors
    ///
    /// When arguments contradict each other, or the trace cannot be read.
    pub fn new(args: &LoadArgs) -> Result<Self> {
        let content = content(args)?;
        // The warm-up has prompts of its own, so that it leaves nothing for the measurement to reuse.
        let warmup = Synthetic::new(
            &args.prompt,
            content.clone(),
            Seed::of(args.pace.seed, Purpose::Warmup, 0).next(),
        );
        let seed = args.pace.seed;
        if let Some(path) = &args.trace.trace {
            let trace = Trace::read(path, &args.trace, content, seed)?;
            let schedule = Schedule::At(trace.times());
            let sessions = trace.len().min(args.pace.requests.unwrap_or(u64::MAX));
            let requests = Some(sessions);
            let in_flight_max = args.pace.concurrency.unwrap_or(IN_FLIGHT_DEFAULT);
            let source = Box::new(trace);
            return Ok(Self {
                source,
                schedule,
                sessions: requests,
                requests,
                in_flight_max,
                warmup,
            });
        }
        let (schedule, in_flight_default) = match args.pace.rate {
            Some(rate) => (Schedule::Poisson { rate, seed }, IN_FLIGHT_DEFAULT),
            None => (Schedule::Closed, CONCURRENCY_DEFAULT),
        };
        let in_flight_max = args.pace.concurrency.unwrap_or(in_flight_default);
        let synthetic = Synthetic::new(&args.prompt, content, seed);
        if let Some(sessions) = args.prompt.conversations {
            let requests = Some(sessions * u64::from(args.prompt.turns));
            let source = Box::new(Conversations::new(synthetic, args.prompt.turns));
            let sessions = Some(sessions);
            return Ok(Self { source, schedule, sessions, requests, in_flight_max, warmup });
        }
        let unlimited = args.pace.duration.is_some();
        let requests = args.pace.requests.or((!unlimited).then_some(REQUESTS_DEFAULT));
        let source = Box::new(synthetic);
        Ok(Self { source, schedule, sessions: requests, requests, in_flight_max, warmup })
    }
}

/// Content of prompts, as the arguments ask for it.
pub(crate) fn content(args: &LoadArgs) -> Result<Content> {
    let default = match args.target.endpoint {
        Endpoint::Chat => PromptKind::Text,
        Endpoint::Completions if args.prompt.conversations.is_some() => PromptKind::Text,
        Endpoint::Completions => PromptKind::Tokens,
    };
    let kind = args.prompt.prompt_kind.unwrap_or(default);
    if kind == PromptKind::Text {
        return match &args.prompt.words {
            Some(path) => Content::words(path),
            None => Ok(Content::common_words()),
        };
    }
    ensure!(
        args.target.endpoint == Endpoint::Completions,
        "prompt-kind: tokens needs endpoint completions, it is chat"
    );
    ensure!(
        args.prompt.conversations.is_none(),
        "prompt-kind: tokens cannot carry the answers of a conversation, use text"
    );
    Ok(Content::tokens(args.prompt.vocab_size))
}

/// Times of arrival with exponentially distributed gaps.
fn poisson(rate: f64, seed: u64) -> impl Iterator<Item = Duration> + Send {
    let mut seed = Seed::of(seed, Purpose::Arrival, 0);
    let mut at = 0.0;
    std::iter::repeat_with(move || {
        at += -(1.0 - seed.unit()).ln() / rate;
        Duration::from_secs_f64(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_arrivals_ascend_at_the_wanted_rate() {
        let schedule = Schedule::Poisson { rate: 50.0, seed: 1 };
        let times: Vec<Duration> = schedule.times().unwrap().take(10_000).collect();
        assert!(times.is_sorted());
        let rate = times.len() as f64 / times.last().unwrap().as_secs_f64();
        assert!((rate - 50.0).abs() < 2.0, "{rate}");
        // The standard deviation of an exponential distribution is its mean.
        let gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05);
    }

    #[test]
    fn equal_seeds_give_equal_arrivals() {
        let times = |seed| poisson(3.0, seed).take(5).collect::<Vec<_>>();
        assert_eq!(times(4), times(4));
        assert_ne!(times(4), times(5));
    }

    #[test]
    fn a_closed_loop_has_no_times() {
        assert!(Schedule::Closed.times().is_none());
    }
}
