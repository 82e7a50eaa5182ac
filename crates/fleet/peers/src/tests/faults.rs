//! Peers that die, fall silent or stall.

use super::*;
use crate::feeds::FRAME_HASHES_MAX;
use futures::StreamExt;
use futures::stream::{self, BoxStream, pending};
use stator_protos::peers as proto;
use stator_protos::peers::peers_client::PeersClient;
use stator_protos::peers::peers_server::{Peers as PeersService, PeersServer};
use tonic::{Request, Response, Status};

#[tokio::test]
async fn a_dead_peer_counts_no_more_and_its_successor_does() {
    // A second handle keeps the port when the first replica is gone.
    let tcp = bind().await.into_std().expect("it is bound");
    let kept = tcp.try_clone().expect("a handle");
    let listener = |tcp| Listener::plain(TcpListener::from_std(tcp).expect("it is bound"));
    let mortal = Member::start(listener(tcp), settings(Vec::new()));
    let peers = vec![mortal.address.to_string()];
    let hearing = Member::start(Listener::plain(bind().await), settings(peers));
    mortal.fake.has(7, 1);
    until("it is heard", || hearing.fake.hears() == [(7, 1)]).await;
    drop(mortal);
    until("it is gone", || hearing.fake.hears().is_empty()).await;
    assert_eq!(hearing.metrics.connected.get(), 0);

    let successor = Member::start(listener(kept), settings(vec![hearing.address.to_string()]));
    successor.fake.has(7, 5);
    hearing.fake.has(8, 2);
    until("its successor is heard", || hearing.fake.hears() == [(7, 5)]).await;
    until("and hears", || successor.fake.hears() == [(8, 2)]).await;
}

#[tokio::test]
async fn one_of_many_that_dies_takes_only_its_own_along() {
    let mut members = group(3).await;
    for (member, count) in members.iter().zip([1, 2, 4]) {
        member.fake.has(7, count);
    }
    until("both are heard", || members[0].fake.hears() == [(7, 6)]).await;
    drop(members.pop());
    until("one is gone", || members[0].fake.hears() == [(7, 2)]).await;
    until("for all", || members[1].fake.hears() == [(7, 1)]).await;
}

#[tokio::test]
async fn shutdown_ends_a_replica_that_others_listen_to() {
    let mut members = group(2).await;
    members[1].fake.has(7, 1);
    until("it is heard", || members[0].fake.hears() == [(7, 1)]).await;
    members[1].shutdown.set();
    let ended = tokio::time::timeout(DEADLINE, members[1].running.join_next()).await;
    assert!(matches!(ended, Ok(Some(Ok(Ok(()))))), "{ended:?}");
    until("it counts no more", || members[0].fake.hears().is_empty()).await;
}

/// A peer that introduces itself, has one request at worker 7, and says nothing more.
struct Silent;

#[tonic::async_trait]
impl PeersService for Silent {
    type SyncStream = BoxStream<'static, Result<proto::SyncFrame, Status>>;
    type SnapshotStream = BoxStream<'static, Result<proto::SnapshotChunk, Status>>;

    async fn sync(
        &self,
        _: Request<proto::SyncRequest>,
    ) -> Result<Response<Self::SyncStream>, Status> {
        let hello = proto::Hello { replica_id: 1, pools: vec!["default/llama".into()] };
        let gauge = proto::Gauge { worker_id: 7, requests: 1, ..proto::Gauge::default() };
        let first = proto::SyncFrame {
            hello: Some(hello),
            gauges: vec![gauge],
            ..proto::SyncFrame::default()
        };
        let second = proto::SyncFrame { hello: None, ..first.clone() };
        Ok(Response::new(stream::iter([Ok(first), Ok(second)]).chain(pending()).boxed()))
    }

    async fn snapshot(
        &self,
        _: Request<proto::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        Ok(Response::new(pending().boxed()))
    }
}

/// A member whose one peer is [`Silent`], and the task that keeps that alive.
async fn beside_a_silent_peer(change: impl FnOnce(&mut PeersSettings)) -> (Member, JoinSet<()>) {
    let listener = bind().await;
    let mut settings = settings(addresses(std::slice::from_ref(&listener)));
    change(&mut settings);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let server = tonic::transport::Server::builder().add_service(PeersServer::new(Silent));
        let served = server.serve_with_incoming(Listener::plain(listener).incoming()).await;
        served.expect("it serves for ever");
    });
    (Member::start(Listener::plain(bind().await), settings), serving)
}

#[tokio::test]
async fn a_silent_peer_counts_no_more() {
    let silence = |settings: &mut PeersSettings| settings.silence = Duration::from_millis(100);
    let (member, _serving) = beside_a_silent_peer(silence).await;
    until("it is heard", || member.fake.others.lock().contains_key(&(POOL, worker(7)))).await;
    until("it fell silent", || member.metrics.silent.get() > 0).await;
    until("it counts no more", || member.fake.hears().is_empty()).await;
}

#[tokio::test]
async fn a_peer_that_never_answers_does_not_hold_up_a_start() {
    let short = |settings: &mut PeersSettings| settings.warm_start = Duration::from_millis(50);
    let (member, _serving) = beside_a_silent_peer(short).await;
    let started = tokio::time::timeout(DEADLINE, member.peers.warm_start()).await;
    let started = started.expect("the bound holds");
    assert_eq!((started.source, started.complete), (None, false));
}

#[tokio::test]
async fn a_stalled_peer_loses_prompts_and_holds_up_nobody() {
    let listener = bind().await;
    let stalled_settings =
        PeersSettings { queue_hashes_max: 2 * FRAME_HASHES_MAX, ..settings(Vec::new()) };
    let speaking = Member::start(Listener::plain(listener), stalled_settings);
    let mut client =
        PeersClient::connect(format!("http://{}", speaking.address)).await.expect("it listens");
    let asked = client.sync(proto::SyncRequest::default()).await;
    let stalled = asked.expect("anybody may listen").into_inner();
    until("it listens", || speaking.metrics.listeners.get() == 1).await;

    let outbox = speaking.peers.outbox();
    let mut from = 0;
    until("its queue is full", || {
        from += SEQUENCE_MAX as u64;
        outbox.sent(POOL, worker(7), &sequence(from, SEQUENCE_MAX as u64));
        outbox.stir();
        speaking.metrics.queue_dropped.get() > 0
    })
    .await;

    let peers = vec![speaking.address.to_string()];
    let other = Member::start(Listener::plain(bind().await), settings(peers));
    speaking.fake.has(7, 3);
    until("another hears as ever", || other.fake.hears() == [(7, 3)]).await;
    assert_eq!(speaking.metrics.listeners.get(), 2, "the stalled one is still there");
    drop(stalled);
    until("it is gone", || speaking.metrics.listeners.get() == 1).await;
}
