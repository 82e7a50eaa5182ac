//! The life of an engine, as a function of what was seen: values in, values out, time passed in.
//!
//! ```text
//! New ─▶ Starting ─▶ Ready ⇄ Unhealthy        any ─▶ Stopping ─▶ Stopped
//!           │          │         │
//!           └──────────┴────┬────┘ ends, or is ended for a cause (Killing)
//!                           ▼
//!                        Failed ─▶ Starting, after a pause; or for good
//! ```

mod observation;
mod policy;
#[cfg(test)]
mod tests;
mod watch;

pub use observation::{Health, Observation, Progress};
pub use policy::Policy;

use crate::cause::Cause;
use crate::phase::Phase;
use std::time::{Duration, Instant};
use watch::Watch;

/// Where an engine stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Not started yet.
    New,
    /// Its process runs and was not ready yet.
    Starting {
        /// When the process started.
        since: Instant,
        /// How far it says it is.
        phase: Phase,
        /// What it answered last, if anybody asked it.
        why: Option<String>,
    },
    /// It serves.
    Ready {
        /// Since when, without a break.
        since: Instant,
    },
    /// It served, its process lives, and it does not answer as it should.
    Unhealthy {
        /// What it answered, or that it did not.
        reason: String,
    },
    /// It was killed, and its end is awaited.
    Killing {
        /// Why.
        cause: Cause,
    },
    /// It ended, or could not be started.
    Failed {
        /// Why.
        cause: Cause,
        /// When it is started again; `None` if it is given up.
        restart_at: Option<Instant>,
    },
    /// It was asked to end.
    Stopping {
        /// When it is killed; `None` once it has been.
        kill_at: Option<Instant>,
    },
    /// It ended because it was asked to.
    Stopped,
}

/// What happened to an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process runs: a new generation, of which nothing is cached and no request runs.
    Started {
        /// Its id, which is that of its process group too.
        pid: u32,
        /// Starts so far, this one included.
        generation: u64,
    },
    /// Its start has come further.
    Progressed(Phase),
    /// It serves, for the first time or again.
    Ready,
    /// It does not serve, though its process lives; `Ready` or `Failed` follows.
    Unhealthy {
        /// What it answered, or that it did not.
        reason: String,
    },
    /// It ended without having been asked to, or could not be started.
    Failed {
        /// Why.
        cause: Cause,
        /// When it is started again; `None` if it is given up.
        restart_in: Option<Duration>,
    },
    /// It ended because it was asked to.
    Stopped {
        /// Whether it did so in time, and was not killed.
        by_itself: bool,
    },
}

/// What the edge is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the process.
    Start,
    /// Ask all of its processes to end: SIGTERM.
    Terminate,
    /// End all of its processes: SIGKILL.
    Kill,
}

/// What the edge tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The time has come: see [`Life::due`].
    Due,
    /// A process was started, as [`Action::Start`] asked.
    Started {
        /// Its id.
        pid: u32,
    },
    /// It printed that it is in this phase.
    Progressed(Phase),
    /// Somebody looked at it.
    Observed(Observation),
    /// Its process ended, or could not be started, and this is why if nobody asked it to.
    Ended(Cause),
    /// It is to end, within this time by itself.
    Stop {
        /// How long before it is killed.
        grace: Duration,
    },
}

/// What follows from an input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// What is to be done.
    pub action: Option<Action>,
    /// What there is to tell.
    pub event: Option<Event>,
}

/// The life of one engine through all its restarts.
#[derive(Clone, Debug)]
pub struct Life {
    policy: Policy,
    state: State,
    watch: Watch,
    generation: u64,
    /// Failures in a row.
    failures: u32,
}

impl Life {
    /// An engine that is to be started at once.
    pub fn new(policy: Policy) -> Self {
        Self { policy, state: State::New, watch: Watch::default(), generation: 0, failures: 0 }
    }

    /// Where it stands.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Whether nothing will ever happen again.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Stopped | State::Failed { restart_at: None, .. })
    }

    /// When the next [`Input::Due`] is wanted, if nothing else happens.
    pub fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Starting { since, .. } => Some(*since + self.policy.start_timeout),
            State::Failed { restart_at, .. } => *restart_at,
            State::Stopping { kill_at } => *kill_at,
            _ => None,
        }
    }

    /// Takes one step.
    pub fn step(&mut self, now: Instant, input: Input) -> Step {
        match input {
            Input::Due => self.passed(now),
            Input::Started { pid } => self.started(now, pid),
            Input::Progressed(phase) => self.progressed(phase),
            Input::Observed(observation) => self.observed(now, observation),
            Input::Ended(cause) => self.ended(now, cause),
            Input::Stop { grace } => self.stop(now, grace),
        }
    }

    fn passed(&mut self, now: Instant) -> Step {
        if self.state != State::New && self.due().is_none_or(|due| now < due) {
            return Step::default();
        }
        match &mut self.state {
            State::New | State::Failed { .. } => Step::action(Action::Start),
            State::Stopping { kill_at } => {
                *kill_at = None;
                Step::action(Action::Kill)
            }
            State::Starting { phase, why, .. } => {
                let (waited, phase, why) = (self.policy.start_timeout, *phase, why.take());
                self.kill(Cause::StartTimeout { waited, phase, why })
            }
            _ => Step::default(),
        }
    }

    fn started(&mut self, now: Instant, pid: u32) -> Step {
        self.generation += 1;
        self.watch = Watch::default();
        self.state = State::Starting { since: now, phase: Phase::default(), why: None };
        Step::event(Event::Started { pid, generation: self.generation })
    }

    fn progressed(&mut self, new: Phase) -> Step {
        match &mut self.state {
            State::Starting { phase, .. } if *phase < new => {
                *phase = new;
                Step::event(Event::Progressed(new))
            }
            _ => Step::default(),
        }
    }

    fn observed(&mut self, now: Instant, observation: Observation) -> Step {
        match (&mut self.state, observation.health) {
            (State::Starting { why, .. }, Health::Unavailable(reason)) => {
                *why = Some(reason);
                Step::default()
            }
            (State::Starting { .. } | State::Unhealthy { .. }, Health::Ready) => {
                self.watch = Watch::default();
                self.watch.progress(now, observation.progress);
                self.state = State::Ready { since: now };
                Step::event(Event::Ready)
            }
            (State::Ready { .. }, Health::Ready) => {
                let stalled = self.watch.progress(now, observation.progress);
                if stalled.is_zero() || stalled < self.policy.hang_timeout {
                    return Step::default();
                }
                let running = observation.progress.map_or(0, |progress| progress.running);
                self.kill(Cause::Hung { running, stalled })
            }
            (State::Ready { since }, Health::Unavailable(reason)) => {
                // Health that lasted counts, whatever comes after it.
                if now.duration_since(*since) >= self.policy.forget_after {
                    self.failures = 0;
                }
                self.watch = Watch::default();
                self.watch.unhealthy(now);
                self.state = State::Unhealthy { reason: reason.clone() };
                Step::event(Event::Unhealthy { reason })
            }
            (State::Unhealthy { .. }, Health::Unavailable(reason)) => {
                let lasted = self.watch.unhealthy(now);
                if lasted >= self.policy.unhealthy_timeout {
                    return self.kill(Cause::HalfDead { reason, lasted });
                }
                self.state = State::Unhealthy { reason };
                Step::default()
            }
            _ => Step::default(),
        }
    }

    fn ended(&mut self, now: Instant, cause: Cause) -> Step {
        let cause = match &self.state {
            State::Stopping { kill_at } => {
                let by_itself = kill_at.is_some();
                self.state = State::Stopped;
                return Step::event(Event::Stopped { by_itself });
            }
            State::Killing { cause } => cause.clone(),
            State::Ready { since } => {
                if now.duration_since(*since) >= self.policy.forget_after {
                    self.failures = 0;
                }
                cause
            }
            _ => cause,
        };
        self.failures = self.failures.saturating_add(1);
        let again = self.policy.restarts.is_none_or(|limit| self.failures <= limit);
        let restart_in = again.then(|| self.pause());
        let restart_at = restart_in.map(|pause| now + pause);
        self.state = State::Failed { cause: cause.clone(), restart_at };
        Step::event(Event::Failed { cause, restart_in })
    }

    fn stop(&mut self, now: Instant, grace: Duration) -> Step {
        let kill_at = now + grace;
        match &mut self.state {
            State::New | State::Failed { .. } => {
                self.state = State::Stopped;
                Step::event(Event::Stopped { by_itself: true })
            }
            State::Starting { .. } | State::Ready { .. } | State::Unhealthy { .. } => {
                self.state = State::Stopping { kill_at: Some(kill_at) };
                Step::action(Action::Terminate)
            }
            State::Killing { .. } => {
                self.state = State::Stopping { kill_at: None };
                Step::default()
            }
            // Asked again: it may only become shorter.
            State::Stopping { kill_at: Some(earlier) } => {
                *earlier = kill_at.min(*earlier);
                Step::default()
            }
            State::Stopping { kill_at: None } | State::Stopped => Step::default(),
        }
    }

    /// Ends the process for a cause; nobody should send it requests any more.
    fn kill(&mut self, cause: Cause) -> Step {
        let reason = cause.to_string();
        self.state = State::Killing { cause };
        Step { action: Some(Action::Kill), event: Some(Event::Unhealthy { reason }) }
    }

    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(u32::BITS - 1);
        self.policy.pause_min.saturating_mul(1 << doublings).min(self.policy.pause_max)
    }
}

impl Step {
    fn action(action: Action) -> Self {
        Self { action: Some(action), event: None }
    }

    fn event(event: Event) -> Self {
        Self { action: None, event: Some(event) }
    }
}
