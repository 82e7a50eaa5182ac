//! The request plane's client: requests of one agent over a few shared connections.

use super::error::StreamError;
use super::link::{self, Link};
use super::mailbox::Mailbox;
use super::settings::ClientSettings;
use parking_lot::Mutex;
use stator_protos::discovery::{AgentRecord, ProfileRecord};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::worker::events_client::EventsClient;
use stator_protos::worker::worker_client::WorkerClient;
use stator_protos::worker::{
    self, AgentDescription, DescribeRequest, EventsFrame, ModelFilesRequest, Output, ReplayRequest,
    SnapshotRequest, Submit, SubscribeRequest,
};
use stator_protos::{Generation, WorkerRank};
use stator_runtime::dial::{DialError, DialTarget};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Streaming;
use tonic::transport::Channel;

/// HTTP/2 window of a stream and of its connection: all tokens of an agent share them, so they
/// hold a burst of many frames, and a slow client's tokens never stop the others', because the
/// link reads on and keeps them in mailboxes.
const WINDOW_BYTES: u32 = 8 << 20;
/// Longest wait for the link of an agent that has just answered a question.
pub(super) const LINK_WAIT: Duration = Duration::from_secs(2);
/// Factor by which the connection for questions is probed less often than the links.
const QUESTIONS_REST: u32 = 4;

/// The blocks of a worker as of event `next_sequence - 1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The worker's life.
    pub generation: Generation,
    /// Number of the first event that is not in it.
    pub next_sequence: u64,
    /// Each block once, and where it is at the nearest.
    pub blocks: Vec<(SequenceHash, Medium)>,
}

/// Sends requests to one agent. Its connections close when it and all its streams are dropped.
#[derive(Debug)]
pub struct AgentClient {
    endpoint: String,
    /// The agent's record of its workers, as far as it is known.
    profile: Mutex<Arc<ProfileRecord>>,
    /// Whether discovery vouches for the agent no more.
    suspect: AtomicBool,
    links: Vec<Arc<Link>>,
    turn: AtomicUsize,
    up: watch::Receiver<usize>,
    /// Questions have a connection of their own, so that a large answer delays no token. It is
    /// made when first needed.
    questions: WorkerClient<Channel>,
    /// Replays are questions too.
    replays: EventsClient<Channel>,
    /// Each subscription has a connection of its own, so that a reader that is behind holds up
    /// neither tokens nor questions.
    events: DialTarget,
    frame_bytes_max: usize,
    /// Held by every stream too, so that streams outlive the client.
    tasks: Arc<JoinSet<()>>,
}

impl AgentClient {
    /// Starts to connect to `http://host:port`, `https://host:port` or `unix:///path`, and stays
    /// connected.
    ///
    /// Must be called within a Tokio runtime, which the connections then live on.
    ///
    /// # Errors
    ///
    /// When `endpoint` is not a valid address, or is not to be reached like that.
    pub fn connect(endpoint: &str, settings: &ClientSettings) -> Result<Self, DialError> {
        let address = endpoint.to_owned();
        let target = settings.dial.target(endpoint)?.with(|endpoint| {
            endpoint
                .connect_timeout(settings.connect_timeout)
                // Requests and tokens are small and somebody waits for each.
                .tcp_nodelay(true)
                .initial_stream_window_size(WINDOW_BYTES)
                .initial_connection_window_size(WINDOW_BYTES)
                // A host that vanished sends no FIN: without probes its requests would hang.
                .http2_keep_alive_interval(settings.keepalive)
                .keep_alive_timeout(settings.keepalive)
                .keep_alive_while_idle(true)
        });
        let (up_sender, up) = watch::channel(0);
        let up_sender = Arc::new(up_sender);
        let mut tasks = JoinSet::new();
        let links: Vec<_> =
            (0..settings.links.max(1)).map(|_| Arc::new(Link::new(settings))).collect();
        for link in &links {
            let (target, settings) = (target.clone(), settings.clone());
            tasks.spawn(link::run(link.clone(), target, settings, up_sender.clone()));
        }
        // The links tell sooner of a host that vanished; this one only has to be made anew then.
        let events = target.clone();
        let asked = target.with(|endpoint| {
            endpoint.http2_keep_alive_interval(QUESTIONS_REST * settings.keepalive)
        });
        let channel = asked.connect_lazy();
        let questions =
            WorkerClient::new(channel.clone()).max_decoding_message_size(settings.answer_bytes_max);
        let replays =
            EventsClient::new(channel).max_decoding_message_size(settings.frame_bytes_max);
        Ok(Self {
            endpoint: address,
            profile: Mutex::default(),
            suspect: AtomicBool::new(false),
            links,
            turn: AtomicUsize::new(0),
            up,
            questions,
            replays,
            events,
            frame_bytes_max: settings.frame_bytes_max,
            tasks: Arc::new(tasks),
        })
    }

    /// The agent's address, as given to [`AgentClient::connect`].
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Roles and places of the agent's workers; the defaults before they are known.
    pub fn profile(&self) -> Arc<ProfileRecord> {
        self.profile.lock().clone()
    }

    /// The agent's record says this of its workers now. Who is told of them next, sees it.
    pub fn set_profile(&self, profile: &ProfileRecord) {
        let mut known = self.profile.lock();
        // The same profile stays the same allocation, so that a change is seen by its address.
        if **known != *profile {
            *known = Arc::new(profile.clone());
        }
    }

    /// Says whether nobody but the agent itself says that it is there; returns whether that is new.
    pub(super) fn set_suspect(&self, suspect: bool) -> bool {
        self.suspect.swap(suspect, Ordering::Relaxed) != suspect
    }

    /// Whether nobody but the agent itself says that it is there.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// Number of its connections that are up, now and as it changes.
    pub fn links_up(&self) -> watch::Receiver<usize> {
        self.up.clone()
    }

    /// Sends a request, whose `request_id` is chosen here. Never blocks: where it cannot be sent,
    /// the stream says so at its first poll.
    pub fn submit(&self, submit: Submit) -> TokenStream {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.links.len();
        let link = (0..count)
            .map(|n| &self.links[(turn + n) % count])
            .find(|link| count == 1 || link.is_up())
            .unwrap_or(&self.links[0]);
        let state = match link.submit(submit) {
            Ok((id, mailbox)) => {
                let (link, _tasks) = (link.clone(), self.tasks.clone());
                StreamState::Live { link, id, mailbox, _tasks }
            }
            Err(error) => StreamState::Refused(error),
        };
        TokenStream { state }
    }

    /// The agent's discovery record, with its identity and workers, now and as it changes.
    ///
    /// # Errors
    ///
    /// The agent's or the connection's status.
    pub async fn records(&self) -> Result<Records, tonic::Status> {
        let asked = self.questions.clone().describe(DescribeRequest {}).await?;
        Ok(Records(asked.into_inner()))
    }

    /// The agent's discovery record now.
    ///
    /// # Errors
    ///
    /// As [`AgentClient::records`] and [`Records::next`].
    pub async fn describe(&self) -> Result<AgentRecord, tonic::Status> {
        self.records().await?.next().await
    }

    /// The files that the agent has for `model`, by base name.
    ///
    /// # Errors
    ///
    /// The agent's or the connection's status.
    pub async fn model_files(&self, model: &str) -> Result<Vec<(String, Vec<u8>)>, tonic::Status> {
        let request = ModelFilesRequest { model: model.into() };
        let files = self.questions.clone().model_files(request).await?.into_inner().files;
        Ok(files.into_iter().map(|file| (file.name, file.content)).collect())
    }

    /// Connects, and subscribes to events.
    pub(super) async fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> Result<Streaming<EventsFrame>, tonic::Status> {
        let channel = self.events.connect().await;
        let channel = channel
            .map_err(|error| tonic::Status::unavailable(format!("cannot connect: {error:?}")))?;
        let client = EventsClient::new(channel);
        let mut client = client.max_decoding_message_size(self.frame_bytes_max);
        Ok(client.subscribe(request).await?.into_inner())
    }

    /// Asks for events that were published before.
    pub(super) async fn replay(
        &self,
        request: ReplayRequest,
    ) -> Result<Streaming<EventsFrame>, tonic::Status> {
        Ok(self.replays.clone().replay(request).await?.into_inner())
    }

    /// The blocks that a worker holds now, `blocks_max` at most.
    ///
    /// # Errors
    ///
    /// The agent's or the connection's status; `data_loss` when the answer contradicts itself or
    /// is too large.
    pub async fn snapshot(
        &self,
        worker: WorkerRank,
        blocks_max: usize,
    ) -> Result<Snapshot, tonic::Status> {
        let request = SnapshotRequest { worker_id: worker.worker.0, rank: worker.rank.into() };
        let mut chunks = self.questions.clone().snapshot(request).await?.into_inner();
        let mut snapshot: Option<Snapshot> = None;
        while let Some(chunk) = chunks.message().await? {
            let generation = Generation(chunk.generation);
            let snapshot = snapshot.get_or_insert_with(|| Snapshot {
                generation,
                next_sequence: chunk.next_sequence,
                blocks: Vec::new(),
            });
            let same =
                snapshot.generation == generation && snapshot.next_sequence == chunk.next_sequence;
            if !same {
                return Err(tonic::Status::data_loss("chunks of different snapshots"));
            }
            if snapshot.blocks.len() + chunk.sequence_hashes.len() > blocks_max {
                return Err(tonic::Status::data_loss(format!(
                    "snapshot of more than {blocks_max} blocks, the limit"
                )));
            }
            // Of what later versions know and this one does not, nothing is known.
            let Ok(medium) = worker::Medium::try_from(chunk.medium) else { continue };
            let hashes = chunk.sequence_hashes.into_iter().map(SequenceHash);
            snapshot.blocks.extend(hashes.map(|hash| (hash, medium.into())));
        }
        snapshot.ok_or_else(|| tonic::Status::data_loss("empty snapshot"))
    }
}

/// The discovery records that an agent sends of itself.
#[derive(Debug)]
pub struct Records(Streaming<AgentDescription>);

impl Records {
    /// The present record at first, then each that is another.
    ///
    /// # Errors
    ///
    /// The agent's or the connection's status, `unavailable` when the agent ends; `data_loss` when
    /// the answer is no record.
    pub async fn next(&mut self) -> Result<AgentRecord, tonic::Status> {
        let Some(description) = self.0.message().await? else {
            return Err(tonic::Status::unavailable("the agent ends"));
        };
        serde_json::from_str(&description.record_json)
            .map_err(|error| tonic::Status::data_loss(format!("not a discovery record: {error}")))
    }
}

/// The answers of one request. Dropping it cancels the request.
#[derive(Debug)]
pub struct TokenStream {
    state: StreamState,
}

#[derive(Debug)]
enum StreamState {
    Live { link: Arc<Link>, id: u64, mailbox: Arc<Mailbox>, _tasks: Arc<JoinSet<()>> },
    Refused(StreamError),
}

impl TokenStream {
    /// Waits for answers and puts all that have arrived into `outputs`, which is emptied first.
    /// Outputs of one choice that arrived together are one. `Ok(false)`: the stream has ended.
    ///
    /// An error of the worker is an output whose finish says so; it ends the request.
    ///
    /// # Errors
    ///
    /// [`StreamError`] when no more will come though the request has not ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self, outputs: &mut Vec<Output>) -> Result<bool, StreamError> {
        poll_fn(|context| self.poll_next(context, outputs)).await
    }

    /// As [`TokenStream::next`], for who polls by hand.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        outputs: &mut Vec<Output>,
    ) -> Poll<Result<bool, StreamError>> {
        match &self.state {
            StreamState::Live { mailbox, .. } => mailbox.poll_take(context, outputs),
            StreamState::Refused(error) => {
                outputs.clear();
                Poll::Ready(Err(*error))
            }
        }
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if let StreamState::Live { link, id, .. } = &self.state {
            link.cancel(*id);
        }
    }
}
