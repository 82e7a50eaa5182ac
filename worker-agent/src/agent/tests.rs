//! A whole agent, spoken to over its own sockets by clients that need not be nice.

use super::*;
use crate::config::AgentArgs;
use crate::served_model::{LoadedEngine, RuleMaker};
use bytes::Bytes;
use clap::{Args, Command, FromArgMatches};
use stator_engine::sim::{self, SimOptions};
use stator_engine::{EngineOptions, ModelInfo};
use stator_guide::{Guide, GuideError, GuideFactory, ThoughtGuard};
use stator_protos::discovery::ModelRecord;
use stator_protos::kv_event;
use stator_protos::topic::{Topic, TopicKind};
use stator_protos::worker::events_client::EventsClient;
use stator_protos::worker::generate_input::Input;
use stator_protos::worker::guide::Form;
use stator_protos::worker::worker_client::WorkerClient;
use stator_protos::worker::{
    Cancel, DescribeRequest, ErrorKind, FinishReason, GenerateInput, ModelFilesRequest, Output,
    ReplayRequest, Sampling, SnapshotRequest, Submit, SubscribeRequest, ThoughtLimit,
};
use stator_runtime::shutdown::Trigger;
use stator_timing::Timing;
use stator_zmtp::Dealer;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tonic::transport::Channel;

/// Longest wait for anything that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

struct Bed {
    agent: Running,
    shutdown: Trigger,
    client: WorkerClient<Channel>,
    metrics: Metrics,
    _dir: tempfile::TempDir,
}

impl Bed {
    async fn start() -> Self {
        Self::start_with(loaded()).await
    }

    async fn start_with(loaded: LoadedModel) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let discovery_dir = format!("--discovery-dir={}", dir.path().display());
        let args = [
            "--listen=127.0.0.1:0",
            "--events-listen=tcp://127.0.0.1:0",
            "--replay-listen=tcp://127.0.0.1:0",
            "--metrics-port=0",
            &discovery_dir,
        ];
        let command = AgentArgs::augment_args(Command::new("agent").no_binary_name(true));
        let args = AgentArgs::from_arg_matches(&command.get_matches_from(args)).unwrap();
        let (shutdown, stop) = Shutdown::new();
        let metrics = Metrics::default();
        let settings = args.try_into().unwrap();
        let agent = start(settings, loaded, metrics.clone(), stop).await.unwrap();
        let client = WorkerClient::connect(agent.record.endpoint.clone()).await.unwrap();
        Self { agent, shutdown, client, metrics, _dir: dir }
    }

    fn submit(&self, request_id: u64, max_tokens: u32) -> Submit {
        Submit {
            request_id,
            worker_id: self.agent.record.workers[0].worker.worker.0,
            token_ids: (0..64).collect(),
            sampling: Some(Sampling { max_tokens, ..Sampling::default() }),
            ..Submit::default()
        }
    }

    /// Sends all at once on a stream of their own; returns the outputs that end requests.
    async fn ends(&mut self, inputs: Vec<Submit>, count: usize) -> Vec<Output> {
        let input = |submit| GenerateInput { input: Some(Input::Submit(submit)) };
        let inputs: Vec<_> = inputs.into_iter().map(input).collect();
        let stream = tokio_stream::StreamExt::chain(
            tokio_stream::iter(inputs),
            tokio_stream::pending::<GenerateInput>(),
        );
        let mut frames = self.client.generate(stream).await.unwrap().into_inner();
        let mut ends = Vec::new();
        while ends.len() < count {
            let frame = tokio::time::timeout(DEADLINE, frames.message()).await.unwrap();
            let outputs = frame.unwrap().unwrap().outputs;
            ends.extend(outputs.into_iter().filter(|output| output.finish.is_some()));
        }
        ends
    }

    /// Numbers and topics of a replay's answers.
    async fn replay(&self, frames: &[&[u8]]) -> Vec<(Bytes, u64)> {
        let mut dealer = Dealer::connect(&self.agent.record.replay_endpoint).await.unwrap();
        let frames: Vec<_> = frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
        dealer.send(&frames).await.unwrap();
        let mut answers = Vec::new();
        loop {
            let answer = tokio::time::timeout(DEADLINE, dealer.recv()).await.unwrap().unwrap();
            let [empty, topic, number, payload] =
                <[Bytes; 4]>::try_from(answer).expect("four frames");
            assert!(empty.is_empty());
            let number = u64::from_be_bytes(number.as_ref().try_into().unwrap());
            if number == u64::MAX {
                assert!(topic.is_empty() && payload.is_empty());
                return answers;
            }
            assert_eq!(kv_event::decode(&payload).unwrap().skipped, 0);
            answers.push((topic, number));
        }
    }

    /// Follows events over the request plane.
    async fn replay_in_frames(&self, topic: &str, start: u64) -> Vec<(Bytes, u64)> {
        let mut client = EventsClient::connect(self.agent.record.endpoint.clone()).await.unwrap();
        let request = ReplayRequest { topic: topic.into(), start };
        let mut frames = client.replay(request).await.unwrap().into_inner();
        let mut answers = Vec::new();
        while let Some(frame) = frames.message().await.unwrap() {
            answers.extend(frame.messages.into_iter().map(|message| {
                assert_eq!(kv_event::decode(&message.payload).unwrap().skipped, 0);
                (message.topic, message.number)
            }));
        }
        answers
    }

    async fn stop(self) {
        drop(self.client);
        self.shutdown.set();
        tokio::time::timeout(DEADLINE, self.agent.ended()).await.unwrap();
    }
}

fn loaded() -> LoadedModel {
    let model = ModelInfo { context_length: 4096, vocab_size: 100, eos_token_ids: vec![] };
    let engine = || {
        let options = SimOptions {
            model: model.clone(),
            answer_tokens: [].into(),
            timing: Timing::fixed(Duration::from_millis(1)),
            speedup: 1.0,
        };
        let engine = sim::engine(options, EngineOptions::default()).unwrap();
        LoadedEngine { engine: Box::new(engine), total_blocks: 1024, computes: false }
    };
    LoadedModel {
        model: ModelRecord {
            name: "m".into(),
            context_length: 4096,
            block_size: 16,
            vocab_size: 100,
        },
        files: vec![("tokenizer.json".into(), b"{}".to_vec())],
        engines: vec![engine(), engine()],
        rules: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_are_answered_and_wrong_ones_refused() {
    let mut bed = Bed::start().await;
    let description = bed
        .client
        .describe(DescribeRequest {})
        .await
        .unwrap()
        .into_inner()
        .message()
        .await
        .unwrap()
        .unwrap();
    let record: AgentRecord = serde_json::from_str(&description.record_json).unwrap();
    assert_eq!(record, bed.agent.record);

    let files = bed.client.model_files(ModelFilesRequest { model: "m".into() }).await.unwrap();
    assert_eq!(files.into_inner().files[0].name, "tokenizer.json");
    let other = bed.client.model_files(ModelFilesRequest { model: "x".into() }).await.unwrap_err();
    assert_eq!(other.code(), tonic::Code::NotFound);

    let worker = record.workers[0];
    let asked = SnapshotRequest { worker_id: worker.worker.worker.0, rank: 0 };
    let mut chunks = bed.client.snapshot(asked).await.unwrap().into_inner();
    let chunk = chunks.message().await.unwrap().unwrap();
    assert_eq!((chunk.generation, chunk.next_sequence), (worker.generation.0, 0));
    let nobody = bed.client.snapshot(SnapshotRequest { rank: 1, ..asked }).await.unwrap_err();
    assert_eq!(nobody.code(), tonic::Code::NotFound);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_is_live_is_refused_and_may_be_used_again_afterwards() {
    let mut bed = Bed::start().await;
    let inputs = vec![bed.submit(1, 4000), bed.submit(1, 5)];
    let end = bed.ends(inputs, 1).await.remove(0).finish.unwrap();
    assert_eq!(end.error_kind(), ErrorKind::Invalid);
    assert_eq!(end.error_message, "request_id: 1 is live already");
    let inputs = vec![bed.submit(1, 5)];
    assert_eq!(bed.ends(inputs, 1).await.len(), 1);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_gives_what_was_published_of_one_worker_or_of_all() {
    let mut bed = Bed::start().await;
    let inputs = vec![bed.submit(1, 40)];
    bed.ends(inputs, 1).await;
    let record = bed.agent.record.workers[0];
    let topic =
        Topic { kind: TopicKind::KvEvents, worker: record.worker, generation: record.generation };
    let topic = topic.to_string();
    let from = |start: u64| start.to_be_bytes();

    let all = bed.replay(&[b"", &from(0)]).await;
    assert!(all.len() >= 2 && all.iter().all(|(found, _)| *found == topic), "{all:?}");
    assert!(all.iter().map(|(_, number)| *number).eq(0..all.len() as u64));
    assert_eq!(bed.replay(&[b"", &from(0), topic.as_bytes()]).await, all);
    assert_eq!(bed.replay(&[b"", &from(1), topic.as_bytes()]).await, all[1..]);
    assert_eq!(bed.replay(&[b"", &from(1000)]).await, []);
    assert_eq!(bed.replay(&[b"", &from(0), b"kv-events/nobody"]).await, []);
    // And the same over the request plane.
    for (start, topic) in [(0, ""), (0, &*topic), (1, &*topic), (1000, ""), (0, "kv-events/nobody")]
    {
        let zmq = match topic {
            "" => bed.replay(&[b"", &from(start)]).await,
            topic => bed.replay(&[b"", &from(start), topic.as_bytes()]).await,
        };
        assert_eq!(bed.replay_in_frames(topic, start).await, zmq, "{topic:?} from {start}");
    }
    bed.stop().await;
}

/// Everybody is told of a batch, whether they read or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_that_do_not_read_hold_nobody_up() {
    let mut bed = Bed::start().await;
    let subscribe = async || {
        let mut client = EventsClient::connect(bed.agent.record.endpoint.clone()).await.unwrap();
        let prefixes = vec!["kv-events".into(), "load".into()];
        client.subscribe(SubscribeRequest { prefixes }).await.unwrap().into_inner()
    };
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(subscribe().await);
    }
    let mut heard = subscribe().await;
    let first = tokio::time::timeout(DEADLINE, heard.message()).await.unwrap();
    assert_eq!(first.unwrap().unwrap().messages, []);
    let inputs = (0..4).map(|request_id| bed.submit(request_id, 400)).collect();
    bed.ends(inputs, 4).await;
    let replayed = bed.replay_in_frames("", 0).await;
    let mut live = Vec::new();
    while live.len() < replayed.len() {
        let frame = tokio::time::timeout(DEADLINE, heard.message()).await.expect("all of it");
        let messages = frame.unwrap().unwrap().messages.into_iter();
        let events = messages.filter(|message| message.topic.starts_with(b"kv-events"));
        live.extend(events.map(|message| (message.topic, message.number)));
    }
    assert_eq!(live, replayed);
    assert!(bed.metrics.render().contains("stator_agent_subscribers 9"));
    drop((silent, heard));
    bed.stop().await;
}

/// Sends bytes to a `scheme://host:port` and waits until the agent hangs up or stays silent.
async fn send_garbage(endpoint: &str, bytes: &[u8]) {
    let (_, address) = endpoint.split_once("://").unwrap();
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    // The agent may hang up in the middle.
    let _ = socket.write_all(bytes).await;
    let _ = socket.shutdown().await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, socket.read_to_end(&mut answer)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_any_socket_harms_nobody_else() {
    let mut bed = Bed::start().await;
    let record = bed.agent.record.clone();
    let mut state = 1u64;
    for length in [0, 1, 10, 64, 65, 1000, 100_000] {
        let noise = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let bytes: Vec<u8> = (0..length).map(noise).collect();
        for endpoint in [&record.endpoint, &record.events_endpoint, &record.replay_endpoint] {
            send_garbage(endpoint, &bytes).await;
        }
    }
    // A replay request that is none, on a well-behaved connection.
    let mut dealer = Dealer::connect(&record.replay_endpoint).await.unwrap();
    dealer.send(&[Bytes::from_static(b"what?")]).await.unwrap();
    let counted = "stator_agent_replay_requests_malformed_total 1";
    let waiting = async {
        while !bed.metrics.render().contains(counted) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.expect("the request is counted");

    let inputs = vec![bed.submit(1, 5)];
    assert_eq!(bed.ends(inputs, 1).await[0].request_id, 1);
    assert!(!bed.replay(&[b"", &0u64.to_be_bytes()]).await.is_empty());
    bed.stop().await;
}

/// Makes rules once the test lets it.
struct HeldRules {
    guides: GuideFactory,
    begun: mpsc::UnboundedSender<()>,
    release: parking_lot::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl RuleMaker for HeldRules {
    fn compile(&self, form: &Form) -> Result<Guide, GuideError> {
        self.begun.send(()).unwrap();
        self.release.lock().recv().unwrap();
        self.guides.compile(form)
    }

    fn guard(&self, limit: &ThoughtLimit) -> ThoughtGuard {
        self.guides.guard(limit)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_is_compiled_while_others_have_their_steps() {
    let mut tokens: Vec<_> = (0..100_u8).map(|byte| vec![byte + b' ']).collect();
    tokens[0].clear();
    let guides = GuideFactory::new(tokens, Vec::new(), &[0]).unwrap();
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (release, held) = std::sync::mpsc::channel();
    let rules = HeldRules { guides, begun, release: parking_lot::Mutex::new(held) };
    let mut bed = Bed::start_with(LoadedModel { rules: Some(Arc::new(rules)), ..loaded() }).await;
    let (inputs, stream) = mpsc::channel(8);
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let mut frames = bed.client.generate(stream).await.unwrap().into_inner();
    let send = async |input| inputs.send(GenerateInput { input: Some(input) }).await.unwrap();
    let formed = |request_id, regex: &str| {
        let mut submit = bed.submit(request_id, 2);
        let sampling = submit.sampling.as_mut().unwrap();
        sampling.guide = Some(Form::Regex(regex.into()).into());
        Input::Submit(submit)
    };
    let mut end = async || loop {
        let frame = tokio::time::timeout(DEADLINE, frames.message()).await.unwrap();
        let outputs = frame.unwrap().unwrap().outputs;
        let ended =
            outputs.into_iter().find_map(|output| Some((output.request_id, output.finish?)));
        if let Some((request_id, finish)) = ended {
            return (request_id, finish.reason());
        }
    };
    send(formed(1, "[ab]")).await;
    begins.recv().await.unwrap();
    send(Input::Submit(bed.submit(2, 2))).await;
    assert_eq!(end().await, (2, FinishReason::Length), "the form is being compiled still");
    send(formed(3, "[cd]")).await;
    begins.recv().await.unwrap();
    send(Input::Cancel(Cancel { request_id: 3 })).await;
    assert_eq!(end().await, (3, FinishReason::Cancelled));
    release.send(()).unwrap();
    release.send(()).unwrap();
    assert_eq!(end().await, (1, FinishReason::Length));
    send(formed(4, "[ab]")).await;
    assert_eq!(end().await, (4, FinishReason::Length));
    assert!(begins.try_recv().is_err(), "a form that was compiled is kept");
    drop(inputs);
    bed.stop().await;
}
