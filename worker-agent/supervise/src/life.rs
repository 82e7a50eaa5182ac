//! The life of an engine, as a function of what was seen: values in, values out, time passed in.
//!
//! ```text
//! New ─▶ Starting ─▶ Ready ⇄ Unhealthy        any ─▶ Stopping ─▶ Stopped
//!           │          │         │
//!           └──────────┴────┬────┘ ends, or is ended for a cause (Killing)
//!                           ▼
//!                        Failed ─▶ Starting, after a pause; or for good
//! ```
//!
//! What was killed and is not gone in time is given up: it may hold its memory and its ports, so
//! that nothing can be started in its place.

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
        /// When it is given up.
        until: Instant,
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
        /// When it is killed, or given up once it has been.
        until: Instant,
        /// Whether it was killed.
        killed: bool,
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
    stalls: Stalls,
    illness: Illness,
    generation: u64,
    /// Failures in a row.
    failures: u32,
}

impl Life {
    /// An engine that is to be started at once.
    pub fn new(policy: Policy) -> Self {
        let (stalls, illness) = (Stalls::default(), Illness::default());
        Self { policy, state: State::New, stalls, illness, generation: 0, failures: 0 }
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

    /// Waits for the next start, a while from some time on, or gives up.
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

    /// Ends the process for a cause; nobody should send it requests any more.
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
