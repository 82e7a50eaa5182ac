//! Warm starts and cold ones.

use super::*;
use crate::wire::CHUNK_HASHES_MAX;
use stator_protos::Generation;
use stator_protos::kv_event::Medium;
use tokio::net::TcpSocket;

/// A member that is warm, and knows blocks of three workers.
async fn knowing() -> Member {
    let member = Member::start(Listener::plain(bind().await), settings(Vec::new()));
    for number in 0..3 {
        let device = (0..CHUNK_HASHES_MAX as u64 + 9).map(|n| (SequenceHash(n), Medium::Device));
        let host = (0..5).map(|n| (SequenceHash(1000 * number + n), Medium::Host));
        let blocks = device.chain(host).collect();
        let held = WorkerHoldings { generation: Generation(number + 40), blocks };
        member.fake.held.lock().insert((PoolId(1), worker(number)), held);
    }
    let predicted = sequence(1, 10_000).into_iter().map(|hash| (worker(hash.0 % 2), hash));
    member.fake.predicted.lock().extend(predicted);
    let started = member.peers.warm_start().await;
    assert_eq!((started.source, started.blocks), (None, 0), "it has no peers");
    member
}

#[tokio::test]
async fn a_late_replica_takes_over_what_a_peer_knows() {
    let old = knowing().await;
    let peers = vec![old.address.to_string()];
    let new = Member::start(Listener::plain(bind().await), settings(peers));
    let roomy = tokio::time::timeout(DEADLINE, new.peers.warm_start()).await;
    let started = roomy.expect("the bound holds");
    assert_eq!((started.source, started.complete), (Some(old.address), true));
    assert_eq!(started.workers, 2, "worker 0 has a feed that knows better");
    assert_eq!(started.blocks, 3 * (CHUNK_HASHES_MAX + 14) + 10_000);

    let restored = new.fake.held.lock();
    assert_eq!(restored.len(), 2);
    for (key, held) in restored.iter() {
        let told = &old.fake.held.lock()[key];
        assert_eq!(held.generation, told.generation);
        assert_eq!(held.blocks, told.blocks);
    }
    for number in 0..2 {
        let mut sent = new.fake.was_sent(number);
        sent.sort_unstable();
        let all = sequence(1, 10_000).into_iter().filter(|hash| hash.0 % 2 == number);
        assert_eq!(sent, all.collect::<Vec<_>>());
    }
    assert_eq!(old.metrics.snapshots_given.get(), 1);
}

#[tokio::test]
async fn replicas_that_start_together_do_not_wait_for_each_other() {
    let members = group(3).await;
    members[0].fake.held.lock().insert(
        (POOL, worker(1)),
        WorkerHoldings {
            generation: Generation(1),
            blocks: vec![(SequenceHash(1), Medium::Device)],
        },
    );
    let started = members[1].peers.warm_start().await;
    assert_eq!(started.source, None, "member 0 has not been through its own start");
    assert!(members[1].fake.held.lock().is_empty());
    members[0].peers.warm_start().await;
    let started = members[2].peers.warm_start().await;
    assert!(started.source.is_some());
}

#[tokio::test]
async fn a_replica_starts_alone_where_nobody_is() {
    // Bound but not listening: whoever connects is refused, and nobody else gets the port.
    let deaf = TcpSocket::new_v4().expect("a socket");
    deaf.bind(([127, 0, 0, 1], 0).into()).expect("there is a free port");
    let refuses = deaf.local_addr().expect("it is bound").to_string();
    let peers = vec![refuses, "no-such-peer.invalid:9004".to_owned()];
    let member = Member::start(Listener::plain(bind().await), settings(peers));
    let started = tokio::time::timeout(DEADLINE, member.peers.warm_start()).await;
    assert_eq!(started.expect("the bound holds").source, None);
}

#[test]
fn metrics_say_where_the_start_came_from() {
    let (registry, metrics) =
        (stator_runtime::metrics::Metrics::default(), PeersMetrics::default());
    registry.register(|registry| metrics.register(registry, "stator_epp"));
    metrics.warm_source.get_or_create(&[("source", "none".to_owned())]).set(1);
    metrics.queue_dropped.inc_by(3);
    let text = registry.render();
    for line in [
        "stator_epp_peers_warm_start_source{source=\"none\"} 1",
        "stator_epp_peers_queue_dropped_total 3",
    ] {
        assert!(text.lines().any(|found| found == line), "{text}");
    }
}
