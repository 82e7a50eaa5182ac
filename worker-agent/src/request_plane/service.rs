//! The request plane's server: demultiplexes a client's stream to the workers, and sends what they
//! answer in as few frames as the client's pace allows.

use crate::metrics::{AgentMetrics, Outcome};
use crate::request_plane::in_flight::InFlight;
use crate::request_plane::metadata::{self, RequestMetadata};
use crate::request_plane::outbox::{AdmissionError, Outbox, Route};
use crate::request_plane::rules::{PendingRules, ReadySubmission, RuleDesk};
use crate::request_plane::snapshot::chunks;
use crate::request_plane::translate;
use crate::worker::{Command, PrefillOrder, PrefillResult, Status as WorkerStatus, Submission};
use futures::stream::{self, Stream, StreamExt};
use rustc_hash::FxHashMap;
use stator_engine::RequestKey;
use stator_protos::discovery::AgentRecord;
use stator_protos::worker::generate_input::Input;
use stator_protos::worker::worker_server::Worker;
use stator_protos::worker::{
    self, AgentDescription, DescribeRequest, ErrorKind, GenerateFrame, GenerateInput, ModelFile,
    ModelFilesRequest, ModelFilesResponse, PrefillRequest, PrefillResponse, SnapshotChunk,
    SnapshotRequest,
};
use stator_protos::{WorkerId, WorkerRank};
use stator_runtime::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, Streaming};

/// Pause between two frames to a client that waits for answers, where there are none: they tell a
/// long prefill from a stopped process and a dead network. Clients wait two seconds.
const BEAT: Duration = Duration::from_millis(500);

/// One worker as the service reaches it.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    /// The worker and its rank.
    pub(crate) worker: WorkerRank,
    /// Commands to its driver.
    pub(crate) commands: mpsc::Sender<Command>,
    /// Whether it lives.
    pub(crate) status: Arc<WorkerStatus>,
}

impl WorkerHandle {
    fn command(&self, command: Command) -> Result<(), (ErrorKind, String)> {
        self.commands.try_send(command).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                let limit = self.commands.max_capacity();
                (ErrorKind::Overloaded, format!("{limit} commands wait, the limit"))
            }
            mpsc::error::TrySendError::Closed(_) => {
                (ErrorKind::Internal, "the worker has ended".into())
            }
        })
    }
}

/// The agent as its clients see it.
#[derive(Debug)]
pub(crate) struct Agent {
    workers: Vec<WorkerHandle>,
    places: FxHashMap<WorkerRank, usize>,
    setup: AgentSetup,
    next_key: AtomicU64,
    draining: AtomicBool,
    in_flight: InFlight,
}

/// Setup of an agent's service.
#[derive(Debug)]
pub(crate) struct AgentSetup {
    /// Files that proxies ask for.
    pub(crate) model_files: Vec<ModelFile>,
    pub(crate) record: watch::Receiver<AgentRecord>,
    pub(crate) max_requests_per_stream: usize,
    pub(crate) metrics: AgentMetrics,
    /// Rules of answers.
    pub(crate) rules: Arc<RuleDesk>,
    /// Ends all streams; until then they live as long as their clients want.
    pub(crate) ended: Shutdown,
}

impl Agent {
    /// An agent with these workers, which takes requests at once.
    pub(crate) fn new(workers: Vec<WorkerHandle>, setup: AgentSetup) -> Self {
        let places = workers.iter().enumerate().map(|(n, handle)| (handle.worker, n)).collect();
        Self {
            workers,
            places,
            setup,
            next_key: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            in_flight: InFlight::new(),
        }
    }

    /// From now on new requests are refused; what runs goes on.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Running requests.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Sends a request to its worker, or its refusal back. One whose rules take time is `pending`
    /// until they are made.
    fn submit(&self, submit: worker::Submit, outbox: &Arc<Outbox>, pending: &mut PendingRules) {
        let (request_id, choice) = (submit.request_id, submit.first_choice);
        if let Err((kind, message)) = self.try_submit(submit, outbox, pending) {
            self.setup.metrics.ended(kind.into());
            let refusal = translate::failure(request_id, choice, kind, message);
            outbox.push(&mut vec![refusal], &mut vec![]);
        }
    }

    /// Sends a request that has its rules to its worker, or its refusal back.
    fn submit_ready(&self, ReadySubmission { worker, submission, ruled }: ReadySubmission) {
        let Submission { request_id, .. } = submission;
        let (choice, outbox) = (submission.request.first_choice, submission.outbox.clone());
        let ruled = ruled.map_err(|message| (ErrorKind::Invalid, message));
        let sent = ruled.and_then(|()| self.workers[worker].command(Command::Submit(submission)));
        if let Err((kind, message)) = sent {
            self.setup.metrics.ended(kind.into());
            outbox.push_last(translate::failure(request_id, choice, kind, message));
        }
    }

    fn try_submit(
        &self,
        submit: worker::Submit,
        outbox: &Arc<Outbox>,
        pending: &mut PendingRules,
    ) -> Result<(), (ErrorKind, String)> {
        let request_id = submit.request_id;
        // Before the look at the drain: one that begins now waits for it.
        let ticket = self.in_flight.enter();
        let (place, mut request, metadata) = self.receive(submit)?;
        let (handle, key) = (&self.workers[place], request.key);
        let ready = self.setup.rules.ready(&request.sampling);
        let is_ready = ready.is_some();
        request.rules = ready.unwrap_or_default();
        let limit = self.setup.max_requests_per_stream;
        outbox.admit(request_id, Route { worker: place, key }, limit).map_err(|refused| {
            match refused {
                AdmissionError::Duplicate => {
                    (ErrorKind::Invalid, format!("request_id: {request_id} is live already"))
                }
                AdmissionError::Full => {
                    (ErrorKind::Overloaded, format!("stream has {limit} live requests, the limit"))
                }
                AdmissionError::Closed => (ErrorKind::Draining, "the stream is ending".into()),
            }
        })?;
        let submission =
            Submission { request, request_id, metadata, outbox: outbox.clone(), ticket };
        if !is_ready {
            pending.begin(self.setup.rules.clone(), place, submission);
            return Ok(());
        }
        handle.command(Command::Submit(submission)).inspect_err(|_| {
            outbox.push(&mut vec![], &mut vec![request_id]);
        })
    }

    /// Checks a submission, and gives its request a name.
    fn receive(
        &self,
        mut submit: worker::Submit,
    ) -> Result<(usize, stator_engine::Request, RequestMetadata), (ErrorKind, String)> {
        if self.draining.load(Ordering::Acquire) {
            return Err((ErrorKind::Draining, "the agent is draining".into()));
        }
        let place = self.place(submit.worker_id, submit.rank)?;
        let key = RequestKey(self.next_key.fetch_add(1, Ordering::Relaxed));
        let invalid = |message: String| (ErrorKind::Invalid, message);
        let metadata = RequestMetadata::take(&mut submit).map_err(invalid)?;
        let request = translate::request(submit, key).map_err(invalid)?;
        Ok((place, request, metadata))
    }

    /// Has a worker compute a prompt for another agent's.
    async fn prefill(&self, asked: PrefillRequest) -> Result<PendingPrefill, (ErrorKind, String)> {
        let invalid = |message: String| (ErrorKind::Invalid, message);
        let submit = asked.submit.ok_or_else(|| invalid("submit: it is missing".into()))?;
        let ticket = self.in_flight.enter();
        let (place, mut request, metadata) = self.receive(submit)?;
        if metadata.prefill.is_some() {
            return Err(invalid("submit.prefill: a prefill has no prefill of its own".into()));
        }
        let told = Some(asked.handover_json).filter(|json| !json.is_empty());
        let handover = told.map(|json| metadata::handover("handover_json", json)).transpose();
        let handover = handover.map_err(invalid)?;
        let rules = self.setup.rules.clone().make(request.sampling.clone());
        request.rules = rules.await.map_err(invalid)?;
        let ((ready, ready_blocks), (answer, answered)) = (watch::channel(0), oneshot::channel());
        let (commands, key) = (self.workers[place].commands.clone(), Some(request.key));
        let order = PrefillOrder { request, metadata, handover, ready, answer, ticket };
        self.workers[place].command(Command::Prefill(order))?;
        Ok(PendingPrefill { commands, key, ready_blocks, answered })
    }

    fn place(&self, worker_id: u64, rank: u32) -> Result<usize, (ErrorKind, String)> {
        let unknown = || {
            let id = WorkerId(worker_id);
            (ErrorKind::UnknownWorker, format!("no worker {id}/{rank} here"))
        };
        let rank = u16::try_from(rank).map_err(|_| unknown())?;
        let worker = WorkerRank { worker: WorkerId(worker_id), rank };
        self.places.get(&worker).copied().ok_or_else(unknown)
    }

    /// Stops requests. Waits where a driver has many commands before it.
    async fn cancel(&self, routes: Vec<Route>) {
        let mut keys: FxHashMap<usize, Vec<RequestKey>> = FxHashMap::default();
        for route in routes {
            keys.entry(route.worker).or_default().push(route.key);
        }
        for (place, keys) in keys {
            // A driver that is gone has no request any more.
            let _ = self.workers[place].commands.send(Command::Cancel(keys)).await;
        }
    }

    /// Serves one client stream until it ends, then cancels what it has running.
    async fn serve(
        &self,
        mut inputs: Streaming<GenerateInput>,
        outbox: Arc<Outbox>,
        mut gone: oneshot::Receiver<()>,
    ) {
        let mut pending = PendingRules::default();
        loop {
            let input = tokio::select! {
                input = inputs.message() => input,
                ruled = pending.next() => {
                    self.submit_ready(ruled);
                    continue;
                }
                _ = &mut gone => break,
                () = self.setup.ended.wait() => break,
            };
            match input {
                Ok(Some(GenerateInput { input: Some(Input::Submit(submit)) })) => {
                    self.submit(submit, &outbox, &mut pending);
                }
                Ok(Some(GenerateInput { input: Some(Input::Cancel(cancel)) })) => {
                    match outbox.route(cancel.request_id) {
                        Some(route) if pending.cancel(route.key, &outbox) => {
                            self.setup.metrics.ended(Outcome::cancelled);
                        }
                        Some(route) => self.cancel(vec![route]).await,
                        None => {}
                    }
                }
                // A kind of input that a later version may send.
                Ok(Some(GenerateInput { input: None })) => {}
                Ok(None) => break,
                Err(status) => {
                    tracing::debug!(%status, "a client stream broke");
                    break;
                }
            }
        }
        self.cancel(outbox.close()).await;
    }
}

/// A prompt that was asked for. Dropping it before its answer cancels it.
struct PendingPrefill {
    commands: mpsc::Sender<Command>,
    /// None once it is answered.
    key: Option<RequestKey>,
    ready_blocks: watch::Receiver<usize>,
    answered: oneshot::Receiver<Result<PrefillResult, (ErrorKind, String)>>,
}

impl PendingPrefill {
    /// The next message to the caller; none behind the answer.
    async fn next(&mut self) -> Result<Option<PrefillResponse>, Status> {
        if self.key.is_none() {
            return Ok(None);
        }
        let done = tokio::select! {
            biased;
            done = &mut self.answered => done,
            // A worker that says nothing before its answer has dropped the sender.
            Ok(()) = self.ready_blocks.changed() => {
                let ready_blocks = *self.ready_blocks.borrow_and_update() as u32;
                return Ok(Some(PrefillResponse { ready_blocks, ..PrefillResponse::default() }));
            }
        };
        self.key = None;
        let ended = |_| Err((ErrorKind::Internal, "the worker has ended".into()));
        let PrefillResult { handover, cached_tokens, first } =
            done.unwrap_or_else(ended).map_err(refusal)?;
        let handover_json = handover.map_or_else(String::new, |json| Box::<str>::from(json).into());
        let first = first.map(translate::first_output);
        Ok(Some(PrefillResponse { handover_json, cached_tokens, first, ready_blocks: 0 }))
    }
}

/// The status of a prompt that is not computed.
fn refusal(refused: (ErrorKind, String)) -> Status {
    let (kind, message) = refused;
    match kind {
        ErrorKind::Invalid => Status::invalid_argument(message),
        ErrorKind::Overloaded => Status::resource_exhausted(message),
        ErrorKind::UnknownWorker => Status::not_found(message),
        ErrorKind::Draining | ErrorKind::Unprefilled => Status::unavailable(message),
        ErrorKind::Internal | ErrorKind::Unspecified => Status::internal(message),
    }
}

impl Drop for PendingPrefill {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            // Where there is no room for it, whoever has computed the prompt finds nobody to tell.
            let _ = self.commands.try_send(Command::Cancel(vec![key]));
        }
    }
}

/// The gRPC service; all its clones serve one agent.
#[derive(Clone, Debug)]
pub(crate) struct Service(pub(crate) Arc<Agent>);

/// The answers of one client stream.
type Frames = Pin<Box<dyn Stream<Item = Result<GenerateFrame, Status>> + Send>>;

/// Frames of an outbox's outputs: an empty one at first, and one each [`BEAT`] while requests run.
/// `alive` is dropped with the stream, when the client is gone.
fn frames(outbox: Arc<Outbox>, alive: oneshot::Sender<()>) -> Frames {
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // It tells the client that silence will mean something here.
    let greeting = stream::once(async { Ok(GenerateFrame::default()) });
    let rest = stream::unfold((outbox, beat, alive), |(outbox, mut beat, alive)| async {
        let outputs = loop {
            tokio::select! {
                biased;
                outputs = outbox.next() => break outputs?,
                _ = beat.tick() => if outbox.has_live() { break Vec::new() },
            }
        };
        Some((Ok(GenerateFrame { outputs }), (outbox, beat, alive)))
    });
    Box::pin(greeting.chain(rest))
}

/// An agent's records, as they change.
type Descriptions = Pin<Box<dyn Stream<Item = Result<AgentDescription, Status>> + Send>>;

fn description(record: &AgentRecord) -> Result<AgentDescription, Status> {
    let record_json = serde_json::to_string(record)
        .map_err(|error| Status::internal(format!("cannot write the record: {error}")))?;
    let (agent_id, version) = (record.agent_id.clone(), env!("CARGO_PKG_VERSION").into());
    Ok(AgentDescription { agent_id, version, record_json })
}

/// Messages about a prompt, the last of which is its answer.
type PrefillMessages = Pin<Box<dyn Stream<Item = Result<PrefillResponse, Status>> + Send>>;

type Chunks = tokio_stream::Iter<std::vec::IntoIter<Result<SnapshotChunk, Status>>>;

#[tonic::async_trait]
impl Worker for Service {
    type DescribeStream = Descriptions;
    type GenerateStream = Frames;
    type PrefillStream = PrefillMessages;
    type SnapshotStream = Chunks;

    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<Descriptions>, Status> {
        let ended = self.0.setup.ended.clone();
        let records =
            WatchStream::new(self.0.setup.record.clone()).map(|record| description(&record));
        Ok(Response::new(Box::pin(records.take_until(async move { ended.wait().await }))))
    }

    async fn model_files(
        &self,
        request: Request<ModelFilesRequest>,
    ) -> Result<Response<ModelFilesResponse>, Status> {
        let asked = request.into_inner().model;
        let name = self.0.setup.record.borrow().model.name.clone();
        if asked != name {
            return Err(Status::not_found(format!("model {asked:?} is not here, {name:?} is")));
        }
        Ok(Response::new(ModelFilesResponse { files: self.0.setup.model_files.clone() }))
    }

    async fn prefill(
        &self,
        request: Request<PrefillRequest>,
    ) -> Result<Response<PrefillMessages>, Status> {
        let mut pending = self.0.prefill(request.into_inner()).await.map_err(refusal)?;
        // Before the response begins: until then the caller's deadline ends the call.
        let first = pending.next().await?;
        let rest = stream::try_unfold(pending, |mut pending| async move {
            Ok(pending.next().await?.map(|message| (message, pending)))
        });
        Ok(Response::new(Box::pin(stream::iter(first.map(Ok)).chain(rest))))
    }

    async fn generate(
        &self,
        request: Request<Streaming<GenerateInput>>,
    ) -> Result<Response<Frames>, Status> {
        let outbox = Arc::new(Outbox::new());
        let (alive, gone) = oneshot::channel();
        let frames = frames(outbox.clone(), alive);
        let agent = self.0.clone();
        // Ends with the stream: either side's end is the other's.
        tokio::spawn(async move { agent.serve(request.into_inner(), outbox, gone).await });
        Ok(Response::new(frames))
    }

    async fn snapshot(
        &self,
        request: Request<SnapshotRequest>,
    ) -> Result<Response<Chunks>, Status> {
        let SnapshotRequest { worker_id, rank } = request.into_inner();
        let place =
            self.0.place(worker_id, rank).map_err(|(_, message)| Status::not_found(message))?;
        let handle = &self.0.workers[place];
        let (answer, answered) = oneshot::channel();
        let ended = || Status::unavailable("the worker has ended");
        handle.commands.send(Command::Snapshot(answer)).await.map_err(|_| ended())?;
        let snapshot = answered.await.map_err(|_| ended())?;
        if handle.status.is_dead() {
            return Err(ended());
        }
        Ok(Response::new(tokio_stream::iter(chunks(snapshot))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_hears_of_the_agent_while_its_requests_compute() {
        let outbox = Arc::new(Outbox::new());
        let (alive, _gone) = oneshot::channel();
        let mut frames = frames(outbox.clone(), alive);
        let mut next = async || {
            let begun = tokio::time::Instant::now();
            let frame = tokio::time::timeout(10 * BEAT, frames.next()).await;
            frame.map(|frame| (frame.unwrap().unwrap().outputs.len(), begun.elapsed() <= BEAT))
        };
        assert_eq!(next().await, Ok((0, true)), "the greeting");
        assert!(next().await.is_err(), "nothing runs, and nobody waits");
        let route = Route { worker: 0, key: RequestKey(1) };
        outbox.admit(7, route, 1).unwrap();
        assert_eq!(next().await, Ok((0, true)));
        assert_eq!(next().await, Ok((0, true)));
        outbox.push_last(worker::Output { request_id: 7, ..Default::default() });
        assert_eq!(next().await, Ok((1, true)));
        assert!(next().await.is_err());
    }
}
