//! Answers peers.

use crate::auth::{Token, TokenGate};
use crate::hub::{FeedSubscription, Hub};
use crate::{PoolId, wire};
use futures::stream::{self, BoxStream, StreamExt, unfold};
use stator_protos::WorkerRank;
use stator_protos::peers as proto;
use stator_protos::peers::peers_server::{Peers, PeersServer};
use stator_runtime::Shutdown;
use stator_runtime::tls::Listener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Snapshots that are given at once; replicas that ask meanwhile find another, or start cold.
const SNAPSHOTS_MAX: usize = 2;

/// Predictions that are listed under one lock of their pool, well below a millisecond.
const PREDICTED_PART: usize = 4096;

/// Interval of probes of a silent connection, and longest wait for an answer.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// Longest time for peers to read the end of their streams.
const GOODBYE: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct Service {
    hub: Arc<Hub>,
    heartbeat: Duration,
    shutdown: Shutdown,
    snapshots: Arc<Semaphore>,
}

/// Answers until `shutdown`, which ends all streams.
///
/// # Errors
///
/// When accepting fails for good.
pub(crate) async fn serve(
    hub: Arc<Hub>,
    heartbeat: Duration,
    token: Option<Token>,
    listener: Listener,
    shutdown: Shutdown,
) -> Result<(), tonic::transport::Error> {
    let snapshots = Arc::new(Semaphore::new(SNAPSHOTS_MAX));
    let service = Service { hub, heartbeat, shutdown: shutdown.clone(), snapshots };
    let service = PeersServer::with_interceptor(service, TokenGate(token));
    let serving = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(service)
        .serve_with_incoming_shutdown(listener.incoming(), shutdown.wait());
    // A peer that does not read would hold its stream open for ever.
    let overtime = async {
        shutdown.wait().await;
        tokio::time::sleep(GOODBYE).await;
    };
    tokio::select! {
        ended = serving => ended,
        () = overtime => Ok(()),
    }
}

#[tonic::async_trait]
impl Peers for Service {
    type SyncStream = BoxStream<'static, Result<proto::SyncFrame, Status>>;
    type SnapshotStream = BoxStream<'static, Result<proto::SnapshotChunk, Status>>;

    async fn sync(
        &self,
        _: Request<proto::SyncRequest>,
    ) -> Result<Response<Self::SyncStream>, Status> {
        let (subscription, hello) = FeedSubscription::new(&self.hub)
            .ok_or_else(|| Status::resource_exhausted("as many peers listen as may"))?;
        let hello = proto::SyncFrame { hello: Some(hello), ..proto::SyncFrame::default() };
        let (heartbeat, shutdown) = (self.heartbeat, self.shutdown.clone());
        let frames = unfold(subscription, move |mut subscription| async move {
            let frame = subscription.next(heartbeat).await;
            Some((Ok(wire::frame(&frame)), subscription))
        });
        let until = async move { shutdown.wait().await };
        let frames = stream::iter([Ok(hello)]).chain(frames.take_until(until));
        Ok(Response::new(frames.boxed()))
    }

    async fn snapshot(
        &self,
        _: Request<proto::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let Ok(permit) = self.snapshots.clone().try_acquire_owned() else {
            return Err(Status::resource_exhausted("others are given a snapshot just now"));
        };
        let warm = self.hub.is_warm();
        let hello = proto::SnapshotChunk {
            hello: Some(self.hub.hello()),
            warm,
            ..proto::SnapshotChunk::default()
        };
        if !warm {
            return Ok(Response::new(stream::iter([Ok(hello)]).boxed()));
        }
        self.hub.metrics.snapshots_given.inc();
        let (snapshot, shutdown) = (Snapshot::new(&self.hub, permit), self.shutdown.clone());
        let parts = unfold(snapshot, |mut snapshot| async {
            // It looks at all blocks, which is not for threads that serve.
            let next = spawn_blocking(move || snapshot.next().map(|part| (part, snapshot)));
            next.await.ok().flatten()
        });
        let chunks = parts.flat_map(|chunks| stream::iter(chunks).map(Ok));
        let chunks = chunks.take_until(async move { shutdown.wait().await });
        Ok(Response::new(stream::iter([Ok(hello)]).chain(chunks).boxed()))
    }
}

/// Workers whose blocks are listed together: each time all blocks of the pool are looked at.
const WORKERS_PART: usize = 128;

/// Everything that is known of blocks, some workers at a time.
struct Snapshot {
    hub: Arc<Hub>,
    next: Vec<Part>,
    _permit: OwnedSemaphorePermit,
}

enum Part {
    Pool(PoolId),
    Workers(PoolId, Vec<WorkerRank>),
    Predicted(PoolId, usize),
}

impl Snapshot {
    fn new(hub: &Arc<Hub>, permit: OwnedSemaphorePermit) -> Self {
        let next = hub.pool_ids().map(Part::Pool).collect();
        Self { hub: hub.clone(), next, _permit: permit }
    }
}

impl Iterator for Snapshot {
    type Item = Vec<proto::SnapshotChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        let replica = &self.hub.replica;
        Some(match self.next.pop()? {
            Part::Pool(pool) => {
                self.next.push(Part::Predicted(pool, 0));
                let workers = replica.workers(pool);
                let parts = workers.chunks(WORKERS_PART).map(<[WorkerRank]>::to_vec);
                self.next.extend(parts.map(|workers| Part::Workers(pool, workers)));
                Vec::new()
            }
            Part::Workers(pool, workers) => {
                let held = replica.held(pool, &workers).into_iter();
                held.flat_map(|(worker, held)| wire::holdings((pool, worker), held)).collect()
            }
            Part::Predicted(pool, from) => match replica.predicted(pool, from, PREDICTED_PART) {
                Some(part) => {
                    self.next.push(Part::Predicted(pool, from.saturating_add(PREDICTED_PART)));
                    vec![wire::predicted(pool, part)]
                }
                None => Vec::new(),
            },
        })
    }
}
