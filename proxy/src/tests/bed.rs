//! A proxy over agents whose answers a test writes, on loopback sockets.

use crate::standalone::serve;
use crate::{HttpArgs, PassageArgs, ProxySettings, RouterArgs};
use clap::{Args, Command, FromArgMatches};
use serde_json::Value;
use stator_protos::discovery::{AgentRecord, ApiRecord, ModelRecord, ProfileRecord, WorkerRecord};
use stator_protos::worker::generate_input::Input;
use stator_protos::worker::worker_server::{Worker, WorkerServer};
use stator_protos::worker::{
    AgentDescription, DescribeRequest, ErrorKind, Finish, FinishReason, GenerateFrame,
    GenerateInput, ModelFile, ModelFilesRequest, ModelFilesResponse, Output, PrefillRequest,
    PrefillResponse, SnapshotChunk, SnapshotRequest, Submit,
};
use stator_protos::{Generation, WorkerId, WorkerRank};
use stator_runtime::Shutdown;
use stator_runtime::shutdown::Trigger;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

/// Longest wait for anything that should happen; only a failing test waits that long.
const DEADLINE: Duration = Duration::from_secs(20);
/// More answers than any test wants.
const ANSWERS: usize = 1 << 20;

/// What a scripted agent was asked, and what it does.
#[derive(Default)]
struct Script {
    submits: Vec<Submit>,
    /// Requests that its worker fails after one token, before it answers any.
    failures: u32,
    /// Whether the prefill workers that requests name fail it.
    prefills_fail: bool,
    /// How long the KV of prompts that others computed is on its way.
    transfer_us: u32,
    /// The prefill worker whose prompts it does not get, and computes none itself.
    unheard: Option<u64>,
}

#[derive(Clone)]
struct Scripted {
    script: Arc<Mutex<Script>>,
    /// One for each answer that may be given.
    answers: Arc<Semaphore>,
}

impl Scripted {
    /// The answer to a request: one token, and its end or the worker's failure.
    fn answer(&self, submit: &Submit) -> GenerateFrame {
        let mut script = self.script.lock().unwrap();
        if submit.prefill.as_ref().is_some_and(|peer| Some(peer.worker_id) == script.unheard) {
            return GenerateFrame { outputs: vec![unprefilled(submit)] };
        }
        let fails = script.failures > 0;
        script.failures = script.failures.saturating_sub(1);
        let finish = match fails {
            true => Finish {
                reason: FinishReason::Error.into(),
                error_kind: ErrorKind::Internal.into(),
                ..Finish::default()
            },
            false => Finish { reason: FinishReason::Length.into(), ..Finish::default() },
        };
        let prefill_failed = script.prefills_fail && submit.prefill.is_some();
        let transfer_us = if submit.prefill.is_some() { script.transfer_us } else { 0 };
        let token = |choice| Output {
            request_id: submit.request_id,
            choice,
            token_ids: vec![1],
            prefill_failed,
            transfer_us,
            ..Output::default()
        };
        let end = |choice| Output {
            request_id: submit.request_id,
            choice,
            finish: Some(finish.clone()),
            ..Output::default()
        };
        let choices = submit.first_choice..submit.first_choice + submit.choices;
        GenerateFrame { outputs: choices.flat_map(|choice| [token(choice), end(choice)]).collect() }
    }

    /// Answers a request as soon as it may.
    async fn run(self, submit: Submit, frames: mpsc::Sender<Result<GenerateFrame, Status>>) {
        self.script.lock().unwrap().submits.push(submit.clone());
        if let Ok(answer) = self.answers.acquire().await {
            answer.forget();
            // Who hung up wants no answer.
            drop(frames.send(Ok(self.answer(&submit))).await);
        }
    }
}

/// The end of a request whose prompt nobody computed.
fn unprefilled(submit: &Submit) -> Output {
    let finish = Finish {
        reason: FinishReason::Error.into(),
        error_kind: ErrorKind::Unprefilled.into(),
        error_message: "nobody computed the prompt".into(),
        ..Finish::default()
    };
    Output {
        request_id: submit.request_id,
        choice: submit.first_choice,
        prefill_failed: true,
        finish: Some(finish),
        ..Output::default()
    }
}

#[tonic::async_trait]
impl Worker for Scripted {
    type DescribeStream = ReceiverStream<Result<AgentDescription, Status>>;
    type GenerateStream = ReceiverStream<Result<GenerateFrame, Status>>;
    type PrefillStream = ReceiverStream<Result<PrefillResponse, Status>>;
    type SnapshotStream = ReceiverStream<Result<SnapshotChunk, Status>>;

    async fn describe(
        &self,
        _: tonic::Request<DescribeRequest>,
    ) -> Result<Response<Self::DescribeStream>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn model_files(
        &self,
        _: tonic::Request<ModelFilesRequest>,
    ) -> Result<Response<ModelFilesResponse>, Status> {
        let tokenizer = r#"{"model":{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}}"#;
        let file = ModelFile { name: "tokenizer.json".into(), content: tokenizer.into() };
        Ok(Response::new(ModelFilesResponse { files: vec![file] }))
    }

    async fn generate(
        &self,
        request: tonic::Request<Streaming<GenerateInput>>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let (sender, receiver) = mpsc::channel(64);
        let (script, mut inputs) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(GenerateInput { input: Some(input) })) = inputs.message().await {
                if let Input::Submit(submit) = input {
                    tokio::spawn(script.clone().run(submit, sender.clone()));
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn prefill(
        &self,
        _: tonic::Request<PrefillRequest>,
    ) -> Result<Response<Self::PrefillStream>, Status> {
        Err(Status::unimplemented("agents ask each other, and these do not"))
    }

    async fn snapshot(
        &self,
        _: tonic::Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

/// A scripted agent with one worker.
pub(crate) struct Agent {
    script: Scripted,
    /// What it shows of itself; [`Bed::show`] makes a change known.
    pub(crate) record: AgentRecord,
}

impl Agent {
    /// What it was asked since the last look.
    pub(crate) fn asked(&self) -> Vec<Submit> {
        std::mem::take(&mut self.script.script.lock().unwrap().submits)
    }

    /// Waits until it was asked something.
    pub(crate) async fn until_asked(&self) {
        let begin = Instant::now();
        while self.script.script.lock().unwrap().submits.is_empty() {
            assert!(begin.elapsed() < DEADLINE, "nobody asks");
            tokio::task::yield_now().await;
        }
    }

    /// Its worker fails so many requests.
    pub(crate) fn fail(&self, requests: u32) {
        self.script.script.lock().unwrap().failures = requests;
    }

    /// From now on the KV of prompts that others computed is so long on its way.
    pub(crate) fn set_transfer(&self, transfer_us: u32) {
        self.script.script.lock().unwrap().transfer_us = transfer_us;
    }

    /// From now on the prefill workers that its requests name fail it.
    pub(crate) fn fail_prefills(&self) {
        self.script.script.lock().unwrap().prefills_fail = true;
    }

    /// From now on it gets no prompts of this prefill worker, and computes none itself.
    pub(crate) fn hear_nothing_of(&self, prefill: u64) {
        self.script.script.lock().unwrap().unheard = Some(prefill);
    }

    /// It answers nobody until [`Agent::resume`].
    pub(crate) fn hold(&self) {
        self.script.answers.forget_permits(Semaphore::MAX_PERMITS);
    }

    /// It answers again.
    pub(crate) fn resume(&self) {
        self.script.answers.add_permits(ANSWERS);
    }
}

/// A proxy and where its agents register.
pub(crate) struct Bed {
    pub(crate) address: SocketAddr,
    dir: tempfile::TempDir,
    agents: u64,
    _shutdown: Trigger,
}

/// A status, and a body that is JSON.
pub(crate) type Answer = (u16, Value);

impl Bed {
    /// A proxy with these flags.
    pub(crate) async fn start(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let command = HttpArgs::augment_args(Command::new("proxy").no_binary_name(true));
        let command = PassageArgs::augment_args(RouterArgs::augment_args(command));
        let matches = command.try_get_matches_from(flags).unwrap();
        let http = HttpArgs::from_arg_matches(&matches).unwrap();
        let router = RouterArgs::from_arg_matches(&matches).unwrap();
        let passage = PassageArgs::from_arg_matches(&matches).unwrap();
        let passage = passage.passage(false, &mut Vec::new());
        let settings = ProxySettings::new(http, router, Ok(dir.path().into()), None).unwrap();
        let settings = ProxySettings { passage, ..settings };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, stop) = Shutdown::new();
        tokio::spawn(serve(listener, settings, stop));
        Self { address, dir, agents: 0, _shutdown: shutdown }
    }

    /// Starts an agent that serves `m`, and shows it.
    pub(crate) async fn agent(&mut self, profile: ProfileRecord) -> Agent {
        let model =
            ModelRecord { name: "m".into(), context_length: 4096, block_size: 16, vocab_size: 100 };
        self.agent_of(model, profile).await
    }

    /// Starts an agent that keeps watch over a server of `m`, and shows it. The server is at
    /// `address`, and calls the model `model`.
    pub(crate) async fn watched(&mut self, address: SocketAddr, model: &str) -> Agent {
        let (url, model) = (format!("http://{address}"), model.to_owned());
        let api = ApiRecord { url, model, takes_cache_salt: true };
        let record =
            ModelRecord { name: "m".into(), context_length: 0, block_size: 4, vocab_size: 0 };
        self.agent_of(record, ProfileRecord { api: Some(api), ..ProfileRecord::default() }).await
    }

    async fn agent_of(&mut self, model: ModelRecord, profile: ProfileRecord) -> Agent {
        self.agents += 1;
        let answers = Arc::new(Semaphore::new(ANSWERS));
        let script = Scripted { script: Arc::default(), answers };
        let incoming =
            tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = format!("http://{}", incoming.local_addr().unwrap());
        let server = tonic::transport::Server::builder()
            .add_service(WorkerServer::new(script.clone()))
            .serve_with_incoming(incoming);
        tokio::spawn(server);
        let worker = WorkerRank { worker: WorkerId(self.agents), rank: 0 };
        let record = AgentRecord {
            agent_id: format!("agent-{}", self.agents),
            endpoint,
            // Nobody publishes there: what such workers hold stays unknown.
            serves_events: false,
            events_endpoint: format!("ipc://{}", self.dir.path().join("events").display()),
            replay_endpoint: format!("ipc://{}", self.dir.path().join("replay").display()),
            model,
            workers: vec![WorkerRecord { worker, generation: Generation(1), total_blocks: 1000 }],
            profile,
            accepting: true,
            lease_ms: u64::MAX,
            lease_expires_unix_ms: u64::MAX,
        };
        self.show(&record);
        Agent { script, record }
    }

    /// Makes a record known, in one move as agents do.
    pub(crate) fn show(&self, record: &AgentRecord) {
        let temporary = self.dir.path().join("record.tmp");
        std::fs::write(&temporary, serde_json::to_vec(record).unwrap()).unwrap();
        let name = self.dir.path().join(format!("{}.json", record.agent_id));
        std::fs::rename(temporary, name).unwrap();
    }

    /// Takes a record away.
    pub(crate) fn withdraw(&self, record: &AgentRecord) {
        std::fs::remove_file(self.dir.path().join(format!("{}.json", record.agent_id))).unwrap();
    }

    /// Waits until so many workers take requests.
    pub(crate) async fn until_workers(&self, count: usize) {
        self.until_metric(&format!("stator_proxy_workers {count}")).await;
    }

    /// Waits for a line of the metrics.
    pub(crate) async fn until_metric(&self, line: &str) {
        let begin = Instant::now();
        while !self.metrics().await.lines().any(|found| found == line) {
            assert!(begin.elapsed() < DEADLINE, "waited in vain for {line}");
        }
    }

    /// Waits until a model is listed.
    pub(crate) async fn until_listed(&self, model: &str) {
        let begin = Instant::now();
        while self.get(&format!("/v1/models/{model}")).await.0 != 200 {
            assert!(begin.elapsed() < DEADLINE, "waited in vain for {model}");
        }
    }

    pub(crate) async fn metrics(&self) -> String {
        self.exchange("GET /metrics HTTP/1.1\r\n", "").await.1
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let (status, body) = self.exchange(&format!("GET {path} HTTP/1.1\r\n"), "").await;
        (status, serde_json::from_str(&body).expect("the answer is JSON"))
    }

    /// Asks for the completion of a body, with further headers, each with its line's end.
    pub(crate) async fn complete(&self, body: &Value, headers: &str) -> Answer {
        let head =
            format!("POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\n{headers}");
        let (status, body) = self.exchange(&head, &body.to_string()).await;
        (status, serde_json::from_str(&body).expect("the answer is JSON"))
    }

    async fn exchange(&self, head: &str, body: &str) -> (u16, String) {
        let asked = tokio::time::timeout(DEADLINE, self.ask(head, body));
        asked.await.expect("an answer in time")
    }

    async fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let rest = format!("host: p\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{rest}{body}").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), body.to_owned())
    }
}
