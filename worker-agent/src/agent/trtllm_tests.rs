//! A whole agent around a TensorRT-LLM server that was written by hand from its documented schemas:
//! no such engine runs without a GPU.

use super::*;
use crate::config::AgentArgs;
use clap::{Args, Command, FromArgMatches};
use parking_lot::Mutex;
use stator_protos::worker::generate_input::Input;
use stator_protos::worker::worker_client::WorkerClient;
use stator_protos::worker::{
    FinishReason, GenerateInput, PrefillPeer, Sampling, SnapshotRequest, Submit,
};
use stator_runtime::shutdown::Trigger;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Longest wait for anything that must happen.
const DEADLINE: Duration = Duration::from_secs(30);

const PAGE: &str = include_str!(
    "../../../crates/engines/dialect/fixtures/trtllm-1.2-by-hand/prometheus-metrics.txt"
);
const VERSION: &str = include_str!(
    "../../../crates/engines/dialect/fixtures/trtllm-1.2-by-hand/version.response.json"
);
const MODELS: &str = include_str!(
    "../../../crates/engines/dialect/fixtures/trtllm-1.2-by-hand/models.response.json"
);
const ANSWER: &str = include_str!(
    "../../../crates/engines/dialect/fixtures/trtllm-1.2-by-hand/completion-stream.response.sse"
);
const CONTEXT: &str = include_str!(
    "../../../crates/engines/dialect/fixtures/trtllm-1.2-by-hand/context.response.json"
);
/// A server that can be asked together with another, and where its transceiver is.
const API: &str = r#"{"components":{"schemas":{"DisaggregatedParams":{"properties":
    {"schedule_style":{},"ctx_info_endpoint":{}}}}}}"#;
const INFO: &str = r#"{"disaggregated_params":{"ctx_dp_rank":null,
    "ctx_info_endpoint":["tcp://10.0.0.1:5000"]}}"#;

/// What the server has: its metrics page, which may be missing, and the events that nobody has
/// read yet.
#[derive(Default)]
struct Server {
    page: Option<&'static str>,
    events: Mutex<Vec<String>>,
    /// Heads and bodies of requests for tokens.
    asked: Mutex<Vec<(String, String)>>,
}

impl Server {
    fn answer(&self, head: &str, body: &str) -> Option<String> {
        Some(match head.split(" HTTP/").next().unwrap_or_default() {
            "GET /openapi.json" => API.into(),
            "GET /server_info" => INFO.into(),
            "GET /health" => String::new(),
            "GET /version" => VERSION.into(),
            "GET /v1/models" => MODELS.into(),
            "GET /prometheus/metrics" => self.page?.into(),
            "POST /kv_cache_events" => {
                format!("[{}]", std::mem::take(&mut *self.events.lock()).join(","))
            }
            "POST /v1/completions" => {
                self.asked.lock().push((head.into(), body.into()));
                if body.contains("context_only") { CONTEXT.into() } else { ANSWER.into() }
            }
            _ => return None,
        })
    }

    /// Answers one request after the other, each on a connection of its own.
    async fn connection(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut request = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&request);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length")
                        .then(|| value.trim().parse().ok())?
                });
                if body.len() >= length.unwrap_or(0) {
                    let (status, body) = match self.answer(head, body) {
                        Some(body) => ("200 OK", body),
                        None => ("404 Not Found", r#"{"detail":"Not Found"}"#.into()),
                    };
                    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
                    let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                    return stream.write_all(answer.as_bytes()).await;
                }
            }
            if stream.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
    }

    async fn start(self) -> (Arc<Self>, String, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (server, mut tasks) = (Arc::new(self), JoinSet::new());
        let accepting = server.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let server = accepting.clone();
                // A client that hangs up is not what this is about.
                connections.spawn(async move { server.connection(stream).await.unwrap_or(()) });
            }
        });
        (server, url, tasks)
    }
}

/// Starts an agent of the server at `url`; `dir` has its model and its record.
async fn agent(
    url: &str,
    dir: &std::path::Path,
    flags: &[&str],
) -> anyhow::Result<(Running, Trigger)> {
    std::fs::write(dir.join("config.json"), r#"{"vocab_size":10000}"#)?;
    let path = dir.display();
    let args = [
        "--engine=trtllm".to_owned(),
        format!("--attach={url}"),
        format!("--model={path}"),
        format!("--discovery-dir={path}"),
        "--listen=127.0.0.1:0".to_owned(),
        "--events-listen=tcp://127.0.0.1:0".to_owned(),
        "--replay-listen=tcp://127.0.0.1:0".to_owned(),
        "--metrics-port=0".to_owned(),
    ];
    let command = AgentArgs::augment_args(Command::new("agent").no_binary_name(true));
    let words = args.iter().map(String::as_str).chain(flags.iter().copied());
    let args = AgentArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
    let settings = AgentSettings::try_from(args).unwrap();
    let (shutdown, stop) = Shutdown::new();
    let admin = AdminServer::serve(&settings, Metrics::default()).await?;
    let Runs::Stock(stock) = &settings.engine else { panic!("{:?}", settings.engine) };
    let place = stock::EngineSurroundings { name: None, metrics: &admin.metrics, peers: None };
    let starting = stock::start(*stock.clone(), place, &stop);
    let served = tokio::time::timeout(DEADLINE, starting).await.expect("it comes up")?;
    let running = launch(settings, served.expect("nobody stops it"), None, admin, stop).await?;
    Ok((running, shutdown))
}

/// Sends an agent's only worker a prompt, and waits for the tokens of the answer and its end.
async fn answered(running: &Running, prefill: Option<PrefillPeer>) -> (Vec<u32>, FinishReason) {
    let mut client = WorkerClient::connect(running.record.endpoint.clone()).await.unwrap();
    let submit = Submit {
        request_id: 1,
        worker_id: running.record.workers[0].worker.worker.0,
        token_ids: vec![1, 2, 3],
        sampling: Some(Sampling { max_tokens: 5, ..Sampling::default() }),
        prefill,
        ..Submit::default()
    };
    let input = GenerateInput { input: Some(Input::Submit(submit)) };
    let inputs = tokio_stream::StreamExt::chain(
        tokio_stream::iter([input]),
        tokio_stream::pending::<GenerateInput>(),
    );
    let mut frames = client.generate(inputs).await.unwrap().into_inner();
    let mut tokens = Vec::new();
    loop {
        let frame = tokio::time::timeout(DEADLINE, frames.message()).await.unwrap();
        for output in frame.unwrap().unwrap().outputs {
            tokens.extend(output.token_ids);
            if let Some(finish) = output.finish {
                return (tokens, finish.reason());
            }
        }
    }
}

async fn ended(running: Running, shutdown: &Trigger) {
    shutdown.set();
    tokio::time::timeout(DEADLINE, running.ended()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_comes_up_with_what_the_engine_tells_answers_and_follows_its_events() {
    let server = Server { page: Some(PAGE), ..Server::default() };
    let (server, url, _serving) = server.start().await;
    let dir = tempfile::tempdir().unwrap();
    let (running, shutdown) = agent(&url, dir.path(), &[]).await.unwrap();
    let worker = running.record.workers[0];
    assert_eq!((running.record.model.block_size, worker.total_blocks), (32, 4096));

    let (tokens, reason) = answered(&running, None).await;
    assert_eq!((tokens, reason), (vec![1072, 542, 3209, 7], FinishReason::Stop));
    let (_, asked) = server.asked.lock().last().cloned().unwrap();
    assert!(asked.starts_with(r#"{"model":"tiny","prompt":[1,2,3],"#), "{asked}");

    let mut client = WorkerClient::connect(running.record.endpoint.clone()).await.unwrap();
    let ids: Vec<String> =
        (0..32).map(|id| format!(r#"{{"token_id":{id},"token_extra_id":0}}"#)).collect();
    let block = format!(
        r#"{{"type":"stored_block","block_hash":7,"tokens":[{}],"cache_level":0}}"#,
        ids.join(",")
    );
    let created =
        r#"{"event_id":0,"data":{"type":"created","num_blocks_per_cache_level":[4096,0]}}"#;
    let stored = format!(
        r#"{{"event_id":1,"data":{{"type":"stored","parent_hash":null,"blocks":[{block}]}}}}"#
    );
    server.events.lock().extend([created.into(), stored]);
    let cached = async {
        let asked = SnapshotRequest { worker_id: worker.worker.worker.0, rank: 0 };
        loop {
            let mut chunks = client.snapshot(asked).await.unwrap().into_inner();
            let mut blocks = Vec::new();
            while let Some(chunk) = chunks.message().await.unwrap() {
                blocks.extend(chunk.sequence_hashes);
            }
            if !blocks.is_empty() {
                return blocks.len();
            }
        }
    };
    assert_eq!(tokio::time::timeout(DEADLINE, cached).await.expect("it is followed"), 1);
    drop(client);
    ended(running, &shutdown).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flags_say_what_an_engine_without_a_metrics_page_does_not() {
    let (_server, url, _serving) = Server::default().start().await;
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--block-size=64", "--total-blocks=100"];
    let (running, shutdown) = agent(&url, dir.path(), &flags).await.unwrap();
    let worker = running.record.workers[0];
    assert_eq!((running.record.model.block_size, worker.total_blocks), (64, 100));
    ended(running, &shutdown).await;
    for (flags, missing) in [(&flags[1..], "block-size: "), (&flags[..1], "total-blocks: ")] {
        let error = agent(&url, dir.path(), flags).await.err().unwrap().to_string();
        assert!(error.starts_with(missing), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_is_asked_as_its_decode_side_was_told_and_what_decode_is_told_is_signed() {
    const SIGNED: &str = "x-trtllm-disagg-auth: sha256=";
    for (flags, at_once) in [(&["--trtllm-schedule=together"][..], true), (&[], false)] {
        let start = || Server { page: Some(PAGE), ..Server::default() }.start();
        let ((there, there_url, _there), (here, here_url, _here)) = (start().await, start().await);
        // The two find each other there.
        let dir = tempfile::tempdir().unwrap();
        let (prefill, stop_prefill) =
            agent(&there_url, dir.path(), &["--role=prefill"]).await.unwrap();
        let flags = [&["--role=decode", "--engine-handover-key=hush"], flags].concat();
        let (decode, stop_decode) = agent(&here_url, dir.path(), &flags).await.unwrap();
        let peer = PrefillPeer {
            endpoint: prefill.record.endpoint.clone(),
            worker_id: prefill.record.workers[0].worker.worker.0,
            rank: 0,
            handover_json: prefill.record.profile.handover.clone().expect("it prefills"),
        };
        let (tokens, reason) = answered(&decode, Some(peer)).await;
        assert_eq!((tokens, reason), (vec![1072, 542, 3209, 7], FinishReason::Stop));

        let (head, body) = there.asked.lock().last().cloned().unwrap();
        assert!(body.contains(r#""request_type":"context_only""#), "{body}");
        assert_eq!(body.contains(r#""schedule_style":1"#), at_once, "{body}");
        assert!(!head.contains(SIGNED), "{head}");
        let (head, body) = here.asked.lock().last().cloned().unwrap();
        assert!(body.contains(r#""request_type":"generation_only""#), "{body}");
        let place = r#""schedule_style":1,"ctx_info_endpoint":"tcp://10.0.0.1:5000"}"#;
        assert_eq!(body.contains(place), at_once, "{body}");
        assert!(head.contains(SIGNED), "{head}");
        ended(decode, &stop_decode).await;
        ended(prefill, &stop_prefill).await;
    }
}
