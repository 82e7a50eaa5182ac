//! The life of an engine as a pure function of observations and of time, which is passed in.
//!
//! ```text
//! New ─▶ Starting ─▶ Ready ⇄ Unhealthy        any ─▶ Stopping ─▶ Stopped
//!           │          │         │
//!           └──────────┴────┬────┘ ends, or is ended for a cause (Killing)
//!                           ▼
//!                        Failed ─▶ Starting, after a pause; or for good
//! ```
//!
//! A killed engine that does not end in time is given up: it may hold its memory and its ports, so
//! that nothing can start in its place.

mod observation;
mod policy;
#[cfg(test)]
mod tests;
mod watch;

pub use observation::{Health, Observation, Progress};
pub use policy::Policy;
pub use watch::{Stall, Stalls};

use crate::cause::Cause;
use crate::phase::Phase;
use std::time::{Duration, Instant};
use watch::Illness;

/// State of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The engine was not started yet.
    New,
    /// The process runs and was not ready yet.
    Starting {
        /// Start of the process.
        since: Instant,
        /// Phase of the start, from the engine's output.
        phase: Phase,
        /// Latest answer to a health check, if there was one.
        why: Option<String>,
    },
    /// The engine serves.
    Ready {
        /// Start of the time without a break.
        since: Instant,
    },
    /// The engine served and its process lives, but it does not answer as it should.
    Unhealthy {
        /// The wrong answer, or the lack of one.
        reason: String,
    },
    /// The engine was killed and has not ended yet.
    Killing {
        /// Cause of the kill.
        cause: Cause,
        /// Deadline, after which the engine is given up.
        until: Instant,
    },
    /// The engine ended, or could not be started.
    Failed {
        /// Cause of the end.
        cause: Cause,
        /// Time of the next start; `None` if the engine is given up.
        restart_at: Option<Instant>,
    },
    /// The engine was asked to end.
    Stopping {
        /// Deadline: for the kill, and then for giving the engine up.
        until: Instant,
        /// Whether the engine was killed.
        killed: bool,
    },
    /// The engine ended on request.
    Stopped,
}

/// A change in an engine's life, for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process runs: a new generation, without cached blocks or requests.
    Started {
        /// Id of the process and of its process group.
        pid: u32,
        /// Starts so far, this one included.
        generation: u64,
    },
    /// The start reached another phase.
    Progressed(Phase),
    /// The engine serves, for the first time or again.
    Ready,
    /// The engine does not serve, though its process lives; `Ready` or `Failed` follows.
    Unhealthy {
        /// The wrong answer, or the lack of one.
        reason: String,
    },
    /// The engine ended without a request, or could not be started.
    Failed {
        /// Cause of the end.
        cause: Cause,
        /// Pause before the next start; `None` if the engine is given up.
        restart_in: Option<Duration>,
    },
    /// The engine ended on request.
    Stopped {
        /// Whether it ended in time, without a kill.
        by_itself: bool,
    },
}

/// Action for the edge to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the process.
    Start,
    /// Send SIGTERM to all processes of the engine.
    Terminate,
    /// Send SIGKILL to all processes of the engine.
    Kill,
}

/// News from the edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The time of [`Life::due`] has come.
    Due,
    /// A process was started, as [`Action::Start`] asked.
    Started {
        /// Id of the process.
        pid: u32,
    },
    /// The engine printed that it is in this phase.
    Progressed(Phase),
    /// An observation of the engine.
    Observed(Observation),
    /// The process ended, or could not be started. The cause applies unless the end was requested.
    Ended(Cause),
    /// A request to end the engine.
    Stop {
        /// Grace before the kill.
        grace: Duration,
    },
}

/// Consequences of an input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Action to carry out.
    pub action: Option<Action>,
    /// Event to report.
    pub event: Option<Event>,
}

/// The life of one engine through all its restarts.
#[derive(Clone, Debug)]
pub struct Life {
    policy: Policy,
    state: State,
    stalls: Stalls,
    illness: Illness,
    generation: u64,
    /// Failures in a row.
    failures: u32,
}

impl Life {
    /// Makes the life of an engine that starts at once.
    pub fn new(policy: Policy) -> Self {
        let (stalls, illness) = (Stalls::default(), Illness::default());
        Self { policy, state: State::New, stalls, illness, generation: 0, failures: 0 }
    }

    /// The engine's state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Whether the life is over for good.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Stopped | State::Failed { restart_at: None, .. })
    }

    /// Time for the next [`Input::Due`], if nothing else happens.
    pub fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Starting { since, .. } => Some(*since + self.policy.start_timeout),
            State::Failed { restart_at, .. } => *restart_at,
            State::Killing { until, .. } | State::Stopping { until, .. } => Some(*until),
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
            State::Stopping { until, killed: killed @ false } => {
                (*until, *killed) = (now + self.policy.kill_timeout, true);
                Step::action(Action::Kill)
            }
            State::Stopping { killed: true, .. } => {
                self.state = State::Stopped;
                Step::event(Event::Stopped { by_itself: false })
            }
            State::Starting { phase, why, .. } => {
                let (waited, phase, why) = (self.policy.start_timeout, *phase, why.take());
                self.kill(now, Cause::StartTimeout { waited, phase, why })
            }
            State::Killing { cause, .. } => {
                let (waited, cause) = (self.policy.kill_timeout, Box::new(cause.clone()));
                self.fail(Cause::NotGone { waited, cause }, None)
            }
            _ => Step::default(),
        }
    }

    fn started(&mut self, now: Instant, pid: u32) -> Step {
        self.generation += 1;
        (self.stalls, self.illness) = (Stalls::default(), Illness::default());
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
                self.stalls = Stalls::default();
                self.stalls.longest(now, &observation.progress);
                self.state = State::Ready { since: now };
                Step::event(Event::Ready)
            }
            (State::Ready { .. }, Health::Ready) => {
                match self.stalls.longest(now, &observation.progress) {
                    Some(Stall { running, lasted }) if lasted >= self.policy.hang_timeout => {
                        self.kill(now, Cause::Hung { running, stalled: lasted })
                    }
                    _ => Step::default(),
                }
            }
            (State::Ready { since }, Health::Unavailable(reason)) => {
                // Health that lasted counts, whatever comes after it.
                if now.duration_since(*since) >= self.policy.forget_after {
                    self.failures = 0;
                }
                self.illness = Illness::default();
                self.illness.lasted(now);
                self.state = State::Unhealthy { reason: reason.clone() };
                Step::event(Event::Unhealthy { reason })
            }
            (State::Unhealthy { .. }, Health::Unavailable(reason)) => {
                let lasted = self.illness.lasted(now);
                if lasted >= self.policy.unhealthy_timeout {
                    return self.kill(now, Cause::HalfDead { reason, lasted });
                }
                self.state = State::Unhealthy { reason };
                Step::default()
            }
            _ => Step::default(),
        }
    }

    fn ended(&mut self, now: Instant, cause: Cause) -> Step {
        let cause = match &self.state {
            State::Stopping { killed, .. } => {
                let by_itself = !killed;
                self.state = State::Stopped;
                return Step::event(Event::Stopped { by_itself });
            }
            // What was given up may end after all.
            State::Stopped | State::Failed { restart_at: None, .. } => return Step::default(),
            State::Killing { cause, .. } => cause.clone(),
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
        let restart = again.then(|| (now, self.pause()));
        self.fail(cause, restart)
    }

    /// Schedules the next start, or gives up without one.
    fn fail(&mut self, cause: Cause, restart: Option<(Instant, Duration)>) -> Step {
        let restart_at = restart.map(|(now, pause)| now + pause);
        self.state = State::Failed { cause: cause.clone(), restart_at };
        Step::event(Event::Failed { cause, restart_in: restart.map(|(_, pause)| pause) })
    }

    fn stop(&mut self, now: Instant, grace: Duration) -> Step {
        let kill_at = now + grace;
        match &mut self.state {
            State::New | State::Failed { .. } => {
                self.state = State::Stopped;
                Step::event(Event::Stopped { by_itself: true })
            }
            State::Starting { .. } | State::Ready { .. } | State::Unhealthy { .. } => {
                self.state = State::Stopping { until: kill_at, killed: false };
                Step::action(Action::Terminate)
            }
            State::Killing { until, .. } => {
                self.state = State::Stopping { until: *until, killed: true };
                Step::default()
            }
            // Asked again: it may only become shorter.
            State::Stopping { until, killed: false } => {
                *until = kill_at.min(*until);
                Step::default()
            }
            State::Stopping { killed: true, .. } | State::Stopped => Step::default(),
        }
    }

    /// Kills the process for a cause and reports the engine as unhealthy, so that it gets no more
    /// requests.
    fn kill(&mut self, now: Instant, cause: Cause) -> Step {
        let reason = cause.to_string();
        self.state = State::Killing { cause, until: now + self.policy.kill_timeout };
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
