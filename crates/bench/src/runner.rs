//! Sends the sessions of a workload, in a closed or an open loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stator_runtime::Shutdown;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::args::LoadArgs;
use crate::client::LoadClient;
use crate::client::body::{BodyWriter, RequestInput, Speaker};
use crate::process::Meter;
use crate::progress::SendProgress;
use crate::record::{Record, RequestOutcome};
use crate::workload::{PromptInput, Session, SessionSource, Workload};

/// Interval of updates of the progress bar.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Sends requests and records what comes of them.
pub(crate) struct Runner {
    client: LoadClient,
    bodies: BodyWriter,
    args: LoadArgs,
    record: Mutex<Record>,
    /// Requests sent since the measurement began.
    started: AtomicU64,
    /// The next session of a closed loop.
    next: AtomicU64,
}

/// Start of a measurement, and the time from which on it sends nothing new.
#[derive(Clone, Copy)]
struct Window {
    start: Instant,
    deadline: Option<Instant>,
    /// Time before the start over which the first requests of a closed loop begin.
    ramp: Duration,
}

impl Window {
    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

impl Runner {
    pub(crate) fn new(client: LoadClient, bodies: BodyWriter, args: &LoadArgs) -> Self {
        let args = args.clone();
        Self {
            client,
            bodies,
            args,
            record: Mutex::default(),
            started: AtomicU64::new(0),
            next: AtomicU64::new(0),
        }
    }

    /// Sends unmeasured requests in a closed loop, and forgets what came of them.
    pub(crate) async fn warm_up(
        self: &Arc<Self>,
        source: Arc<dyn SessionSource>,
        requests: u64,
        in_flight: u32,
        shutdown: &Shutdown,
    ) {
        let window = Window { start: Instant::now(), deadline: None, ramp: Duration::ZERO };
        let in_flight = in_flight.min(u32::try_from(requests).unwrap_or(u32::MAX));
        tokio::select! {
            () = Arc::clone(self).closed_loop(source, in_flight, Some(requests), window) => {}
            () = shutdown.wait() => {}
        }
        self.next.store(0, Ordering::Relaxed);
        self.forget();
    }

    /// Forgets the requests that have ended; those in flight will count.
    fn forget(&self) {
        let record = std::mem::take(&mut *self.record.lock());
        self.started.fetch_sub(record.succeeded + record.failed, Ordering::Relaxed);
    }

    /// Runs the workload and shows its progress; returns how long it was measured, and what was
    /// measured meanwhile.
    pub(crate) async fn measured(
        self: Arc<Self>,
        workload: Workload,
        duration: Option<Duration>,
        shutdown: &Shutdown,
    ) -> (Duration, Meter) {
        let ramp = self.args.pace.ramp.unwrap_or_default();
        let start = Instant::now() + ramp;
        let deadline = duration.map(|duration| start + duration);
        let window = Window { start, deadline, ramp };
        let mut meter = self.meter();
        let mut ramping = !ramp.is_zero();
        let cut_off = deadline.filter(|_| ramping);
        let progress = SendProgress::new(workload.requests);
        let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
        let work = Arc::clone(&self).drive(workload, window);
        tokio::pin!(work);
        loop {
            // Leaving the loop drops the work, and with it every request in flight.
            tokio::select! {
                () = &mut work => break,
                () = shutdown.wait() => break,
                () = sleep_until(start), if ramping => {
                    self.forget();
                    (meter, ramping) = (self.meter(), false);
                }
                () = sleep_until(cut_off.unwrap_or(start)), if cut_off.is_some() => break,
                _ = ticks.tick() => progress.show(&self.record.lock(), start.elapsed()),
            }
        }
        progress.clear();
        (start.elapsed(), meter)
    }

    fn meter(&self) -> Meter {
        Meter::start(&self.args.output.pid, self.args.output.pid_children)
    }

    /// The record of the requests, and the number of requests that were cut off.
    pub(crate) fn take(&self) -> (Record, u64) {
        let record = std::mem::take(&mut *self.record.lock());
        let sent = self.started.load(Ordering::Relaxed);
        let unfinished = sent.saturating_sub(record.succeeded + record.failed);
        (record, unfinished)
    }

    async fn drive(self: Arc<Self>, workload: Workload, window: Window) {
        let Workload { source, schedule, sessions, in_flight_max, .. } = workload;
        let source: Arc<dyn SessionSource> = source.into();
        match schedule.times() {
            None => self.closed_loop(source, in_flight_max, sessions, window).await,
            Some(times) => {
                let sessions = usize::try_from(sessions.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
                self.open_loop(source, times.take(sessions), in_flight_max, window).await;
            }
        }
    }

    /// Keeps `in_flight` sessions going until there are no more.
    async fn closed_loop(
        self: Arc<Self>,
        source: Arc<dyn SessionSource>,
        in_flight: u32,
        sessions: Option<u64>,
        window: Window,
    ) {
        let sessions = sessions.unwrap_or(u64::MAX);
        let mut workers = JoinSet::new();
        let in_flight = u64::from(in_flight).min(sessions);
        for number in 0..in_flight {
            // Starts are spread over the ramp, so that the first prompts do not all queue at once.
            let begin = window.start - window.ramp.mul_f64(1.0 - number as f64 / in_flight as f64);
            let (runner, source) = (Arc::clone(&self), Arc::clone(&source));
            workers.spawn(async move {
                sleep_until(begin).await;
                loop {
                    let index = runner.next.fetch_add(1, Ordering::Relaxed);
                    if index >= sessions || window.is_over() {
                        return;
                    }
                    runner.session(source.session(index), Duration::ZERO, window).await;
                }
            });
        }
        join(workers).await;
    }

    /// Starts sessions at their times, whether or not earlier ones have ended, up to
    /// `in_flight_max` at once. Times are absolute, so that lateness never adds up.
    async fn open_loop(
        self: Arc<Self>,
        source: Arc<dyn SessionSource>,
        times: impl Iterator<Item = Duration>,
        in_flight_max: u32,
        window: Window,
    ) {
        let permits = Arc::new(Semaphore::new(in_flight_max as usize));
        let mut sessions = JoinSet::new();
        for (index, at) in (0..).zip(times) {
            let planned = window.start + at;
            if window.deadline.is_some_and(|deadline| planned >= deadline) {
                break;
            }
            sleep_until(planned).await;
            // Waiting here makes this session and later ones late; the report has that lag.
            let permit =
                Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
            if window.is_over() {
                break;
            }
            let (runner, source) = (Arc::clone(&self), Arc::clone(&source));
            sessions.spawn(async move {
                runner.session(source.session(index), planned.elapsed(), window).await;
                drop(permit);
            });
            while let Some(ended) = sessions.try_join_next() {
                resume(ended);
            }
        }
        join(sessions).await;
    }

    /// Runs the turns of a session one after the other. A turn that fails ends it: there is no
    /// answer that the next one could follow.
    async fn session(&self, session: Session, lag: Duration, window: Window) {
        let Session { system, mut turns } = session;
        if turns.len() == 1 && system.is_none() {
            let turn = turns.remove(0);
            self.request(RequestInput::Prompt(&turn.prompt), turn.output_tokens, lag, window).await;
            return;
        }
        let mut said: Vec<(Speaker, String)> =
            system.map(|text| (Speaker::System, text)).into_iter().collect();
        for (number, turn) in turns.into_iter().enumerate() {
            if number > 0 && window.is_over() {
                return;
            }
            let PromptInput::Text(text) = turn.prompt else {
                return; // The arguments are checked: conversations are text.
            };
            said.push((Speaker::User, text));
            // Only a session's first request has a time of its own to be late for.
            let lag = if number == 0 { lag } else { Duration::ZERO };
            match self
                .request(RequestInput::Conversation(&said), turn.output_tokens, lag, window)
                .await
            {
                Some(answer) => said.push((Speaker::Assistant, answer)),
                None => return,
            }
        }
    }

    /// Sends one request and records what came of it; returns the text of a conversation's answer.
    async fn request(
        &self,
        input: RequestInput<'_>,
        output_tokens: u32,
        lag: Duration,
        window: Window,
    ) -> Option<String> {
        let keep_text = matches!(input, RequestInput::Conversation(_));
        let body = self.bodies.write(input, output_tokens);
        self.started.fetch_add(1, Ordering::Relaxed);
        let sent = window.start.elapsed();
        let result = self.client.send(body, keep_text).await;
        let outcome = RequestOutcome { sent, lag, ended: window.start.elapsed(), result: &result };
        self.record.lock().add(outcome, &self.args.objectives);
        result.ok().map(|reply| reply.text)
    }
}

/// Waits until all tasks have ended.
async fn join(mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        resume(ended);
    }
}

/// A task that panicked is a mistake of ours, and must not look like a quiet measurement.
fn resume(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
