//! The edge of [`Life`]: it spawns, reads, waits and signals, and decides nothing.

#[cfg(test)]
mod tests;

use crate::cause::Cause;
use crate::command::Recipe;
use crate::ending::Ending;
use crate::life::{Action, Event, Input, Life, Observation, Policy, State, Step};
use crate::phase::Phase;
use crate::process::Engine;
use rustix::process::Signal;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Runs one engine through all its restarts. Dropping it kills all processes of the engine.
///
/// The engine is supervised while [`Supervisor::next_event`] is awaited; its output is read and
/// logged at any time.
#[derive(Debug)]
pub struct Supervisor {
    name: Arc<str>,
    recipe: Box<dyn Recipe>,
    life: Life,
    engine: Option<Engine>,
    /// Events not reported yet; one step yields one at most.
    events: VecDeque<Event>,
}

/// Outcome of a wait.
enum WaitOutcome {
    Due,
    Phase(Phase),
    Ended(Ending),
}

impl Supervisor {
    /// Makes a supervisor whose engine starts at the first [`Supervisor::next_event`], each time
    /// with the command that `recipe` gives then. The engine's output is logged under `name`.
    pub fn new(name: &str, recipe: impl Recipe + 'static, policy: Policy) -> Self {
        let (life, recipe) = (Life::new(policy), Box::new(recipe));
        Self { name: name.into(), recipe, life, engine: None, events: VecDeque::new() }
    }

    /// The engine's state.
    pub fn state(&self) -> &State {
        self.life.state()
    }

    /// Id of the engine's process and process group, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.engine.as_ref().map(Engine::pid)
    }

    /// Waits for the next event; `None` once the engine has stopped or was given up.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped: the next call goes on.
    pub async fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if self.life.is_over() {
                return None;
            }
            if *self.life.state() == State::New {
                self.step(Input::Due);
                continue;
            }
            match self.happened().await {
                WaitOutcome::Due => self.step(Input::Due),
                WaitOutcome::Phase(phase) => self.step(Input::Progressed(phase)),
                WaitOutcome::Ended(ending) => {
                    self.engine = None;
                    self.step(Input::Ended(Cause::of(ending)));
                }
            }
        }
    }

    /// Takes an observation of the engine; consequences come from [`Supervisor::next_event`]. Once
    /// a second is a good pace. Observations count only while a process runs.
    pub fn observe(&mut self, observation: Observation) {
        self.step(Input::Observed(observation));
    }

    /// Ends the engine: asks all of its processes to end, and kills them after `grace`. Returns
    /// whether they ended without a kill. No events follow.
    ///
    /// # Cancel safety
    ///
    /// Another call goes on, with the shorter of both times.
    pub async fn stop(&mut self, grace: Duration) -> bool {
        self.step(Input::Stop { grace });
        let mut in_time = true;
        while let Some(event) = self.next_event().await {
            in_time = !matches!(event, Event::Stopped { by_itself: false });
        }
        in_time
    }

    async fn happened(&mut self) -> WaitOutcome {
        let due = self.life.due();
        let due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        let engine = async {
            match &mut self.engine {
                Some(engine) => engine.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => WaitOutcome::Due,
            seen = engine => match seen {
                Ok(phase) => WaitOutcome::Phase(phase),
                Err(ending) => WaitOutcome::Ended(ending),
            },
        }
    }

    fn step(&mut self, input: Input) {
        let Step { action, event } = self.life.step(Instant::now().into_std(), input);
        self.events.extend(event);
        match action {
            Some(Action::Start) => self.start(),
            Some(Action::Terminate) => self.signal(Signal::TERM),
            Some(Action::Kill) => self.signal(Signal::KILL),
            None => {}
        }
    }

    fn start(&mut self) {
        let started = self.recipe.command().and_then(|command| {
            let program = command.program.display().to_string();
            let engine = Engine::start(self.name.clone(), command);
            engine.map_err(|error| format!("{program:?}: {error}"))
        });
        let input = match started {
            Ok(engine) => {
                let pid = engine.pid();
                self.engine = Some(engine);
                Input::Started { pid }
            }
            Err(error) => Input::Ended(Cause::NotStarted { error }),
        };
        self.step(input);
    }

    fn signal(&self, signal: Signal) {
        if let Some(engine) = &self.engine {
            engine.signal(signal);
        }
    }
}
