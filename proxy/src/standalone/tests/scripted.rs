//! An agent whose answers a test writes.

use bytes::Bytes;
use stator_protos::Generation;
use stator_protos::hash::SequenceHash;
use stator_protos::worker::events_server::{Events, EventsServer};
use stator_protos::worker::generate_input::Input;
use stator_protos::worker::worker_server::{Worker, WorkerServer};
use stator_protos::worker::{
    AgentDescription, DescribeRequest, EventMessage, EventsFrame, GenerateFrame, GenerateInput,
    Medium, ModelFile, ModelFilesRequest, ModelFilesResponse, PrefillRequest, PrefillResponse,
    ReplayRequest, SnapshotChunk, SnapshotRequest, Submit, SubscribeRequest,
};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_stream::{Iter, Pending};
use tonic::{Response, Status, Streaming};

/// The first life of its workers.
pub(super) const LIFE: Generation = Generation(1);

/// What the scripted agent answers, and what it was asked.
#[derive(Default)]
pub(super) struct Script {
    /// The worker's life, after the first.
    pub(super) later_life: u64,
    /// Blocks in a snapshot, and its next number.
    pub(super) snapshot: (Vec<SequenceHash>, u64),
    /// Of these, how many at the end are in host memory.
    pub(super) in_host_memory: usize,
    pub(super) snapshots: usize,
    /// Batches in the log, by number.
    pub(super) log: Vec<(u64, Bytes)>,
    pub(super) replays: Vec<u64>,
    /// Whether replays break off before their end.
    pub(super) replays_break: bool,
    /// Subscribers of the request plane. Forgetting them ends their streams.
    pub(super) subscribers: Vec<mpsc::UnboundedSender<Result<EventsFrame, Status>>>,
    /// Requests, none of which is answered.
    pub(super) submits: Vec<Submit>,
}

#[derive(Clone, Default)]
pub(super) struct Scripted(pub(super) Arc<Mutex<Script>>);

#[tonic::async_trait]
impl Worker for Scripted {
    type DescribeStream = Pending<Result<AgentDescription, Status>>;
    type GenerateStream = Pending<Result<GenerateFrame, Status>>;
    type PrefillStream = Pending<Result<PrefillResponse, Status>>;
    type SnapshotStream = Iter<std::vec::IntoIter<Result<SnapshotChunk, Status>>>;

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
        let file = ModelFile { name: "tokenizer.json".into(), content: b"{}".to_vec() };
        Ok(Response::new(ModelFilesResponse { files: vec![file] }))
    }

    async fn prefill(
        &self,
        _: tonic::Request<PrefillRequest>,
    ) -> Result<Response<Self::PrefillStream>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn generate(
        &self,
        request: tonic::Request<Streaming<GenerateInput>>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let (script, mut inputs) = (self.0.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(GenerateInput { input })) = inputs.message().await {
                if let Some(Input::Submit(submit)) = input {
                    script.lock().unwrap().submits.push(submit);
                }
            }
        });
        Ok(Response::new(tokio_stream::pending()))
    }

    async fn snapshot(
        &self,
        _: tonic::Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let mut script = self.0.lock().unwrap();
        script.snapshots += 1;
        let (blocks, next_sequence) = &script.snapshot;
        let (device, host) = blocks.split_at(blocks.len() - script.in_host_memory);
        let chunk = |(blocks, medium): (&[SequenceHash], Medium)| {
            Ok(SnapshotChunk {
                generation: LIFE.0 + script.later_life,
                next_sequence: *next_sequence,
                sequence_hashes: blocks.iter().map(|hash| hash.0).collect(),
                medium: medium.into(),
            })
        };
        let chunks = [(device, Medium::Device), (host, Medium::Host)].map(chunk);
        Ok(Response::new(tokio_stream::iter(Vec::from(chunks))))
    }
}

impl Script {
    /// Tells the subscribers of the request plane.
    pub(super) fn publish(&mut self, message: &EventMessage) {
        let frame = EventsFrame { messages: vec![message.clone()] };
        self.subscribers.retain(|subscriber| subscriber.send(Ok(frame.clone())).is_ok());
    }
}

#[tonic::async_trait]
impl Events for Scripted {
    type SubscribeStream = UnboundedReceiverStream<Result<EventsFrame, Status>>;
    type ReplayStream = Iter<std::vec::IntoIter<Result<EventsFrame, Status>>>;

    async fn subscribe(
        &self,
        _: tonic::Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (sender, frames) = mpsc::unbounded_channel();
        sender.send(Ok(EventsFrame::default())).expect("the receiver is here");
        self.0.lock().unwrap().subscribers.push(sender);
        Ok(Response::new(UnboundedReceiverStream::new(frames)))
    }

    async fn replay(
        &self,
        request: tonic::Request<ReplayRequest>,
    ) -> Result<Response<Self::ReplayStream>, Status> {
        let ReplayRequest { topic, start } = request.into_inner();
        let mut script = self.0.lock().unwrap();
        script.replays.push(start);
        let batches = script.log.iter().filter(|(number, _)| *number >= start);
        let mut frames: Vec<_> = batches
            .map(|(number, payload)| {
                let (topic, number) = (topic.clone().into(), *number);
                let message = EventMessage { topic, number, payload: payload.clone() };
                Ok(EventsFrame { messages: vec![message] })
            })
            .collect();
        if script.replays_break {
            frames.push(Err(Status::data_loss("the log forgot the rest")));
        }
        Ok(Response::new(tokio_stream::iter(frames)))
    }
}

/// Serves it on a free port; returns its endpoint.
pub(super) fn serve(script: &Scripted) -> String {
    let incoming =
        tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = format!("http://{}", incoming.local_addr().unwrap());
    let server = tonic::transport::Server::builder()
        .add_service(WorkerServer::new(script.clone()))
        .add_service(EventsServer::new(script.clone()))
        .serve_with_incoming(incoming);
    tokio::spawn(server);
    endpoint
}
