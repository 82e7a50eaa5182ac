//! Watches over an engine and its process, and tells when it serves and when it does not.

use super::launch::Launch;
use super::probe::{Idle, Memory, Probe};
use stator_dialect::Description;
use stator_runtime::Shutdown;
use stator_runtime::shutdown::Trigger;
use stator_supervise::{Cause, Event, Health, Observation, Stall, Stalls, State};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};

/// Pause between two looks at the engine.
const INTERVAL: Duration = Duration::from_millis(500);
/// Pause between two log lines about waiting for an engine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Why a life ended where that is all that is known: the engine did not answer as it should.
pub(super) const UNHEALTHY: &str = "unhealthy";

/// Change in an engine's service.
#[derive(Debug)]
pub(super) enum News {
    /// The engine serves.
    Up(Box<Description>),
    /// The engine no longer serves.
    Down(End),
    /// A life is over for this cause, or a process that never served. Told once of each, when it is
    /// known whether the process ended too.
    Ended(&'static str),
    /// The engine is given up.
    Over(anyhow::Error),
}

/// Why a life ended.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// A word for metrics.
    pub(super) cause: &'static str,
    /// For people.
    pub(super) why: String,
}

/// An engine that is watched over.
#[derive(Debug)]
pub(super) struct Host {
    news: mpsc::Receiver<News>,
    stop: Trigger,
    task: JoinHandle<()>,
}

/// Limits of an engine that somebody else runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Longest wait until it serves for the first time.
    pub(super) start: Duration,
    /// Longest time without progress.
    pub(super) hang: Duration,
    /// Longest wait for it to end by itself.
    pub(super) stop: Duration,
}

impl Host {
    /// Starts the engine, if it is to be started, and watches over it.
    pub(super) fn start(launch: Option<Launch>, probe: Arc<Probe>, limits: Limits) -> Self {
        let (sender, news) = mpsc::channel(4);
        let (stop, stopped) = Shutdown::new();
        let watch =
            Watch { probe, limits, news: sender, up: false, served: false, unexplained: false };
        let task = match launch {
            Some(launch) => tokio::spawn(watch.supervised(launch, stopped)),
            None => tokio::spawn(watch.attached(stopped)),
        };
        Self { news, stop, task }
    }

    /// A host whose news a test tells.
    #[cfg(test)]
    pub(super) fn scripted() -> (mpsc::Sender<News>, Self) {
        let (sender, news) = mpsc::channel(4);
        (sender, Self { news, stop: Shutdown::new().0, task: tokio::spawn(async {}) })
    }

    /// Waits for the next change; `None` once there will be no more.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Option<News> {
        self.news.recv().await
    }

    /// Ends the engine, if it was started here, and waits until it is gone.
    pub(super) async fn stop(mut self) {
        self.stop.set();
        // Whoever has news is not to wait for somebody who reads them no more.
        self.news.close();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "watching over the engine failed");
        }
    }
}

struct Watch {
    probe: Arc<Probe>,
    limits: Limits,
    news: mpsc::Sender<News>,
    up: bool,
    /// Whether it ever was.
    served: bool,
    /// Whether a life ended without a reported reason.
    unexplained: bool,
}

/// Result of a look at an engine.
type Look = Result<Option<Box<Description>>, String>;

impl Watch {
    /// Watches over a process of our own.
    async fn supervised(mut self, launch: Launch, stopped: Shutdown) {
        let Launch { supervisor: mut engine, home: _home, .. } = launch;
        let mut looks = Looks::new(self.probe.clone());
        let mut description = None;
        loop {
            tokio::select! {
                event = engine.next_event() => {
                    let Some(event) = event else { break };
                    if !matches!(event, Event::Progressed(_)) {
                        // What it finds may be true of how the engine was before.
                        looks.forget();
                    }
                    if event == Event::Ready {
                        if let Some(description) = description.take() {
                            self.up(description).await;
                        }
                    } else {
                        self.supervisor_says(event, engine.state()).await;
                    }
                }
                look = looks.next(self.up) => {
                    let health = self.health(look, &mut description);
                    let progress = self.probe.progress();
                    engine.observe(Observation { health, progress });
                }
                () = stopped.wait() => {
                    engine.stop(self.limits.stop).await;
                    break;
                }
            }
        }
    }

    async fn supervisor_says(&mut self, event: Event, state: &State) {
        match event {
            Event::Started { pid, generation } => {
                tracing::info!(pid, generation, "engine started");
            }
            Event::Progressed(phase) => tracing::info!(%phase, "engine"),
            Event::Unhealthy { reason } => {
                // One that is killed for a cause has that cause already.
                let cause = match state {
                    State::Killing { cause, .. } => cause.label(),
                    _ => UNHEALTHY,
                };
                self.down(cause, reason).await;
            }
            Event::Failed { cause, restart_in } => {
                self.failed(&cause).await;
                // A program that is not there will not be there in a second either.
                let hopeless = !self.served && matches!(cause, Cause::NotStarted { .. });
                match restart_in.filter(|_| !hopeless) {
                    Some(pause) => tracing::error!(%cause, ?pause, "engine ended; starting again"),
                    None => {
                        let error = anyhow::anyhow!("the engine is given up: {cause}");
                        self.tell(News::Over(error)).await;
                    }
                }
            }
            Event::Ready | Event::Stopped { .. } => {}
        }
    }

    /// Watches over somebody else's process.
    async fn attached(mut self, stopped: Shutdown) {
        let mut looks = Looks::new(self.probe.clone());
        let begun = Instant::now();
        let mut stalls = Stalls::default();
        loop {
            let look = tokio::select! {
                look = looks.next(self.up) => look,
                () = stopped.wait() => return,
            };
            let mut description = None;
            if let Health::Unavailable(why) = self.health(look, &mut description) {
                self.down(UNHEALTHY, why.clone()).await;
                self.ended(UNHEALTHY).await;
                // An engine that served once may come back: only one that never did is given up.
                if !self.served && begun.elapsed() >= self.limits.start {
                    let waited = begun.elapsed().as_secs();
                    let error =
                        anyhow::anyhow!("the engine does not serve after {waited} s: {why}");
                    return self.tell(News::Over(error)).await;
                }
            }
            if let Some(description) = description {
                self.up(description).await;
            }
            match stalls.longest(Instant::now().into_std(), &self.probe.progress()) {
                Some(Stall { running, lasted }) if lasted >= self.limits.hang => {
                    // A hang counts from the start again: the agent cannot restart an attached engine.
                    stalls = Stalls::default();
                    let waited = self.limits.hang.as_secs();
                    let why = format!("{running} requests and no step for {waited} s");
                    self.down("hung", why).await;
                    self.ended("hung").await;
                }
                _ => {}
            }
        }
    }

    fn health(&self, look: Look, description: &mut Option<Box<Description>>) -> Health {
        match look {
            Ok(found) => {
                *description = found.or(description.take());
                Health::Ready
            }
            Err(why) => Health::Unavailable(why),
        }
    }

    async fn up(&mut self, description: Box<Description>) {
        self.served = true;
        // Its process is still there.
        self.ended(UNHEALTHY).await;
        if !std::mem::replace(&mut self.up, true) {
            self.tell(News::Up(description)).await;
        }
    }

    async fn down(&mut self, cause: &'static str, why: String) {
        if std::mem::replace(&mut self.up, false) {
            self.unexplained = true;
            self.tell(News::Down(End { cause, why })).await;
        }
    }

    /// Its process is gone, which explains the end of its life if it had one.
    async fn failed(&mut self, cause: &Cause) {
        self.down(cause.label(), cause.to_string()).await;
        self.unexplained = true;
        self.ended(cause.label()).await;
    }

    /// Says why the last life ended, once.
    async fn ended(&mut self, cause: &'static str) {
        if std::mem::take(&mut self.unexplained) {
            self.tell(News::Ended(cause)).await;
        }
    }

    async fn tell(&self, news: News) {
        // A keeper that is gone stops the watch.
        let _ = self.news.send(news).await;
    }
}

/// Looks at an engine again and again, each time on a task of its own, so that whoever waits for
/// the next look may do something else in between. The looks go on while a canary is awaited.
struct Looks {
    probe: Arc<Probe>,
    memory: Option<Memory>,
    running: JoinSet<(Look, Memory)>,
    idle: Idle,
    /// The canary that is on its way: one at most.
    canary: JoinSet<Result<(), String>>,
    ticks: tokio::time::Interval,
    /// Time of the last log line about waiting for the engine; `None` before the first.
    told: Option<Instant>,
}

impl Looks {
    fn new(probe: Arc<Probe>) -> Self {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            probe,
            memory: Some(Memory::default()),
            running: JoinSet::new(),
            idle: Idle::default(),
            canary: JoinSet::new(),
            ticks,
            told: None,
        }
    }

    /// Drops what is on its way.
    fn forget(&mut self) {
        (self.running, self.canary) = (JoinSet::new(), JoinSet::new());
    }

    /// Waits for the result of the next look; `up` says whether the engine served at the last one.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped: the next call goes on.
    async fn next(&mut self, up: bool) -> Look {
        if self.running.is_empty() {
            tokio::select! {
                _ = self.ticks.tick() => {}
                Some(came) = self.canary.join_next(), if up => return self.canary_came(came),
            }
            self.begin(up);
        }
        let looked = tokio::select! {
            looked = self.running.join_next() => looked,
            Some(came) = self.canary.join_next(), if up => return self.canary_came(came),
        };
        let (look, memory) = match looked {
            Some(Ok(looked)) => looked,
            Some(Err(error)) => (Err(format!("a look failed: {error}")), Memory::default()),
            None => return pending().await,
        };
        // The next look starts from the memory that this one returns.
        self.memory = Some(memory);
        match &look {
            Err(why) if !up => self.tell(why),
            Err(_) => {}
            Ok(_) => self.told = None,
        }
        look
    }

    /// Begins a look, and a canary where it is time for one.
    fn begin(&mut self, up: bool) {
        let (probe, mut memory) = (self.probe.clone(), self.memory.take().unwrap_or_default());
        self.running.spawn(async move {
            let look = match up {
                true => probe.healthy(&mut memory).await.map(|()| None),
                false => probe.ready().await.map(|found| Some(Box::new(found))),
            };
            (look, memory)
        });
        if !up {
            // Who is to serve again proves it by a token anyway.
            (self.idle, self.canary) = (Idle::default(), JoinSet::new());
        } else if self.canary.is_empty() {
            let ranks = self.probe.wants_canary(&mut self.idle);
            if !ranks.is_empty() {
                let probe = self.probe.clone();
                self.canary.spawn(async move { probe.canary(ranks).await });
            }
        }
    }

    fn canary_came(&mut self, came: Result<Result<(), String>, JoinError>) -> Look {
        let came = came.unwrap_or_else(|error| Err(format!("a canary failed: {error}")));
        if came.is_err() {
            // The look that is on its way was to find out whether the engine still serves.
            self.running = JoinSet::new();
        }
        came.map(|()| None)
    }

    /// Says at once that the engine is waited for, and again now and then.
    fn tell(&mut self, why: &str) {
        if self.told.is_none_or(|told| told.elapsed() >= PATIENCE) {
            self.told = Some(Instant::now());
            tracing::info!(why, "waiting for the engine");
        }
    }
}

#[cfg(test)]
mod tests;
