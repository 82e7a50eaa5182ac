//! Lists of agents that answer, and lists that cannot be read.

use super::*;
use crate::record::sample;
use stator_protos::worker::worker_server::{Worker, WorkerServer};
use stator_protos::worker::{
    AgentDescription, GenerateFrame, GenerateInput, ModelFilesRequest, ModelFilesResponse,
    PrefillRequest, PrefillResponse, SnapshotChunk, SnapshotRequest,
};
use std::path::Path;
use std::pin::Pin;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::{TcpListenerStream, WatchStream};
use tokio_stream::{Empty, Pending, Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// An agent that only tells what it is.
#[derive(Clone)]
struct Agent(watch::Sender<AgentRecord>);

#[tonic::async_trait]
impl Worker for Agent {
    type DescribeStream = Pin<Box<dyn Stream<Item = Result<AgentDescription, Status>> + Send>>;
    type GenerateStream = Pending<Result<GenerateFrame, Status>>;
    type PrefillStream = Empty<Result<PrefillResponse, Status>>;
    type SnapshotStream = Empty<Result<SnapshotChunk, Status>>;

    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<Self::DescribeStream>, Status> {
        let descriptions = WatchStream::new(self.0.subscribe()).map(|record| {
            let record_json = serde_json::to_string(&record).expect("a record is JSON");
            let agent_id = record.agent_id;
            Ok(AgentDescription { agent_id, version: String::new(), record_json })
        });
        Ok(Response::new(Box::pin(descriptions)))
    }

    async fn model_files(
        &self,
        _: Request<ModelFilesRequest>,
    ) -> Result<Response<ModelFilesResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn prefill(
        &self,
        _: Request<PrefillRequest>,
    ) -> Result<Response<Self::PrefillStream>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn generate(
        &self,
        _: Request<Streaming<GenerateInput>>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn snapshot(
        &self,
        _: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

impl Agent {
    /// One that runs from now on, and its endpoint.
    async fn start(name: &str) -> (Self, String) {
        let agent = Self(watch::Sender::new(sample(name, 0)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = tonic::transport::Server::builder()
            .add_service(WorkerServer::new(agent.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        (agent, endpoint)
    }
}

async fn until(watcher: &mut ListWatcher, done: impl Fn(&Sighting) -> bool) -> Sighting {
    let looking = async {
        loop {
            let seen = watcher.next().await;
            if done(&seen) {
                return seen;
            }
        }
    };
    timeout(Duration::from_secs(30), looking).await.expect("it happens in time")
}

fn write(path: &Path, endpoints: &[&str]) {
    let file = serde_json::json!({ "agents": endpoints });
    let temporary = path.with_extension("tmp");
    std::fs::write(&temporary, file.to_string()).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

fn names(seen: &Sighting) -> Vec<&str> {
    seen.records.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn agents_of_the_list_are_asked_and_leave_with_their_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agents.yaml");
    let (a, at_a) = Agent::start("a").await;
    let (_b, at_b) = Agent::start("b").await;
    let mut watcher = ListWatcher::new(path.clone(), Duration::from_millis(5), Dial::default());
    assert!(watcher.next().await.stale);
    write(&path, &[&at_a, &at_b]);
    let seen = until(&mut watcher, |seen| names(seen) == ["a", "b"]).await;
    assert!(seen.complete && !seen.stale);
    assert_eq!(seen.records["a"].endpoint, at_a);
    assert_eq!(seen.records["a"].lease_ms, u64::MAX);

    a.0.send_modify(|record| record.accepting = false);
    until(&mut watcher, |seen| !seen.records["a"].accepting).await;
    // A file that cannot be read changes nothing, and is known to be old.
    std::fs::remove_file(&path).unwrap();
    let seen = until(&mut watcher, |seen| seen.stale).await;
    assert_eq!(names(&seen), ["a", "b"]);
    std::fs::write(&path, "agents: 3").unwrap();
    assert_eq!(names(&until(&mut watcher, |seen| seen.stale).await), ["a", "b"]);
    write(&path, &[&at_b]);
    let seen = until(&mut watcher, |seen| names(seen) == ["b"]).await;
    assert!(!seen.stale);
}

#[tokio::test]
async fn an_agent_that_tells_nonsense_is_malformed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agents.yaml");
    let (agent, endpoint) = Agent::start("a").await;
    agent.0.send_modify(|record| record.model.block_size = 0);
    write(&path, &[&endpoint]);
    let mut watcher = ListWatcher::new(path, Duration::from_millis(5), Dial::default());
    let seen = until(&mut watcher, |seen| !seen.malformed.is_empty()).await;
    let fault = "model.block_size: 0 is not in 1..=65536".to_owned();
    assert_eq!(seen.newly_malformed, [("a".to_owned(), fault)]);
}

#[test]
fn faults_of_the_file_name_the_entry() {
    let refused = |text: &str| decode(text).unwrap_err();
    let both = "is neither http(s)://host:port nor unix:///path";
    assert_eq!(refused("agents: ['ftp://a:1']"), format!("agents: \"ftp://a:1\" {both}"));
    assert_eq!(refused("agents: ['http://']"), format!("agents: \"http://\" {both}"));
    assert!(refused("agent: []").contains("unknown field `agent`"));
    let many = format!("agents: [{}]", vec!["'http://a:1'"; 5000].join(","));
    assert_eq!(refused(&many), "agents: 5000 entries, limit 4096");
    let example = decode(include_str!("../../../../../manifests/agents/list.yaml"));
    assert_eq!(example.map(|agents| agents.len()), Ok(2));
    let two = ["http://a:1".to_owned(), "unix:///b".to_owned()];
    assert_eq!(decode("agents: ['unix:///b', 'http://a:1']"), Ok(two.into()));
}
