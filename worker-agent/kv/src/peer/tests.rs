//! The tier against real servers, over loopback sockets.

mod direct;
mod disk;
pub(crate) mod testkit;

use super::PeerSettings;
use crate::cache::{CacheLender, CacheSettings, TieredCache};
use crate::tier::{Tier, TierError, TierReport, TierWrite, Urgency};
use crate::transfer::wire::{FrameHeader, FrameKind, encode_names};
use crate::transfer::{
    FleetKey, LendingStore, LinkError, ReaderIdentity, ReaderPurpose, TransferServer, introduce,
};
use crate::{Block, BlockForm, Checksum, SlotId};
use proptest::prelude::*;
use stator_protos::load::LoadCost;
use stator_protos::name::BlockName;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use testkit::{Fate, Reading, Relay, SECRET, Shelf, form, settings};
use tokio::net::{TcpListener, TcpStream};

/// Bytes that a holder sends before the first frame of KV: challenge, welcome and lease.
pub(crate) const fn greeting_bytes(blocks: usize) -> usize {
    (72 + 32) + 72 + (72 + 8 * blocks)
}

fn secret() -> FleetKey {
    FleetKey::of_secret(SECRET)
}

async fn all_bytes_are_equal(block_bytes: usize, key: FleetKey, streams: usize) {
    let shelf = Shelf::new(20, block_bytes);
    let served = shelf.serve(key.clone()).await;
    let settings = PeerSettings { streams, ..settings() };
    let mut reading = Reading::new(form(block_bytes), key, settings);
    reading.hint(served.address, 0..20);
    assert!(reading.read(0..20).await.iter().all(Result::is_ok));
    // Again, because the peer has them still.
    assert!(reading.read(3..9).await.iter().all(Result::is_ok));
    let counts = reading.tier.counts();
    assert_eq!((counts.blocks, counts.bytes), (26, 26 * block_bytes as u64));
    shelf.unpinned().await;
}

#[tokio::test]
async fn blocks_come_with_all_bytes() {
    for block_bytes in [1, 4095, 4096, 4097, 50_000] {
        all_bytes_are_equal(block_bytes, secret(), 1).await;
        all_bytes_are_equal(block_bytes, FleetKey::default(), 3).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn blocks_come_with_all_bytes_over_several_threads() {
    all_bytes_are_equal(300_000, secret(), 4).await;
    all_bytes_are_equal(300_000, FleetKey::default(), 4).await;
}

#[tokio::test]
async fn each_peer_has_a_measured_cost_and_a_failed_one_has_none_to_offer() {
    let shelves = [Shelf::new(4, 5000), Shelf::new(4, 5000)];
    let served = [shelves[0].serve(secret()).await, shelves[1].serve(secret()).await];
    let mut reading = Reading::new(form(5000), secret(), settings());
    assert_eq!(reading.tier.costs(), []);
    for of in [0, 1] {
        reading.hint(served[of].address, 0..4);
        assert!(reading.read(0..4).await.iter().all(Result::is_ok));
        // The last block is reported before its batch is measured.
        while reading.tier.costs().len() < of + 1 {
            tokio::task::yield_now().await;
        }
    }
    let costs = reading.tier.costs();
    assert_eq!(
        costs.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
        [served[1].address, served[0].address]
    );
    assert!(costs.iter().all(|(_, cost)| (1..LoadCost::NEVER_US).contains(&cost.block_ns)));
    // The store hears the cost of the pair with each hint.
    for (at, (address, cost)) in costs.iter().enumerate() {
        reading.hint(*address, 0..4);
        let block = Duration::from_nanos(cost.block_ns);
        assert_eq!(reading.located().await, (2 - at as u8, Some(block)));
    }
    let stranger = shelves[0].serve(FleetKey::of_secret(b"another")).await;
    reading.hint(stranger.address, 0..4);
    assert!(reading.read(0..4).await.iter().all(Result::is_err));
    let never = LoadCost { latency_us: LoadCost::NEVER_US, block_ns: 0 };
    assert_eq!(reading.tier.costs()[0], (stranger.address, never));
}

#[tokio::test]
async fn blocks_behind_the_first_that_is_not_there_are_misses() {
    let shelf = Shelf::new(3, 5000);
    let served = shelf.serve(secret()).await;
    let mut reading = Reading::new(form(5000), secret(), settings());
    reading.hint(served.address, 0..6);
    let results = reading.read(0..6).await;
    assert!(results[..3].iter().all(Result::is_ok));
    assert!(results[3..].iter().all(|result| *result == Err(TierError::Missing)));
    assert_eq!(reading.tier.counts().missing, 3);
    shelf.unpinned().await;
    // A block that nobody is said to have.
    assert_eq!(reading.read(7..8).await, [Err(TierError::Missing)]);
}

#[tokio::test]
async fn peer_killed_in_mid_transfer_leaves_no_partial_block_and_no_pin() {
    let (blocks, block_bytes) = (8, 20_000);
    let shelf = Shelf::new(blocks, block_bytes);
    let served = shelf.serve(secret()).await;
    let stall = greeting_bytes(8) + 3 * block_bytes;
    let relay = Relay::new(served.address, &[Fate::StallAfter(stall)]).await;
    let one_stream = PeerSettings { streams: 1, ..settings() };
    let mut reading = Reading::new(form(block_bytes), secret(), one_stream);
    reading.hint(relay.address, 0..8);
    (0..8).for_each(|name| reading.ask(name, Urgency::Demand));
    shelf.pinned().await;
    let first = reading.report().await;
    assert!(matches!(first, TierReport::Read { result: Ok(_), .. }), "{first:?}");
    served.kill().await;
    drop(relay);
    shelf.unpinned().await;
    let mut errors = Vec::new();
    let mut whole = 1;
    for _ in 1..8 {
        match reading.report().await {
            TierReport::Read { result: Ok(_), .. } => whole += 1,
            TierReport::Read { result: Err(error), .. } => errors.push(error),
            other => panic!("{other:?}"),
        }
    }
    // The third block may have been cut in its tags.
    assert!((1..=3).contains(&whole), "{whole}");
    assert_eq!(errors[0], TierError::Failed);
    assert!(errors[1..].iter().all(|error| *error == TierError::Missing), "{errors:?}");
    assert_eq!(reading.read(0..1).await, [Err(TierError::Missing)], "the peer is left alone");
}

#[tokio::test]
async fn a_cut_connection_resumes_with_what_is_missing_under_the_same_lease() {
    let (blocks, block_bytes) = (10, 40_000);
    let shelf = Shelf::new(blocks, block_bytes);
    let served = shelf.serve(secret()).await;
    let cut = greeting_bytes(10) + 6 * block_bytes;
    let relay = Relay::new(served.address, &[Fate::CutAfter(cut), Fate::Pass]).await;
    let one_stream = PeerSettings { streams: 1, ..settings() };
    let mut reading = Reading::new(form(block_bytes), secret(), one_stream);
    reading.hint(relay.address, 0..10);
    assert!(reading.read(0..10).await.iter().all(Result::is_ok));
    assert_eq!(shelf.lent.load(SeqCst), 1);
    let bytes = relay.bytes.lock().clone();
    assert_eq!(bytes.len(), 2);
    assert!(bytes[1] < 5 * block_bytes, "{bytes:?}");
    assert_eq!(reading.tier.counts().connections, 2);
}

#[tokio::test]
async fn a_holder_that_restarts_is_asked_for_a_new_lease() {
    let (blocks, block_bytes) = (10, 40_000);
    let (first, second) = (Shelf::new(blocks, block_bytes), Shelf::new(blocks, block_bytes));
    let (old, new) = (first.serve(secret()).await, second.serve(secret()).await);
    let cut = greeting_bytes(10) + 6 * block_bytes;
    let before = Relay::new(old.address, &[Fate::CutAfter(cut)]).await;
    // The first connection leads to the holder before its restart, all others to the one after.
    let crossing = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = crossing.local_addr().unwrap();
    let mut bridge = tokio::task::JoinSet::new();
    bridge.spawn(async move {
        let mut to = before.address;
        while let Ok((mut reader, _)) = crossing.accept().await {
            let mut holder = TcpStream::connect(to).await.unwrap();
            // An error is a cut, which both sides see.
            let _ = tokio::io::copy_bidirectional(&mut reader, &mut holder).await;
            to = new.address;
        }
    });
    let one_stream = PeerSettings { streams: 1, ..settings() };
    let mut reading = Reading::new(form(block_bytes), secret(), one_stream);
    reading.hint(address, 0..10);
    assert!(reading.read(0..10).await.iter().all(Result::is_ok));
    assert_eq!(second.lent.load(SeqCst), 1);
}

#[tokio::test]
async fn a_forged_block_is_a_counted_miss_and_its_sender_is_shunned() {
    let shelf = Shelf::new(4, 20_000);
    let served = shelf.serve(secret()).await;
    let relay = Relay::new(served.address, &[Fate::FlipAt(greeting_bytes(4) + 2000)]).await;
    let mut reading =
        Reading::new(form(20_000), secret(), PeerSettings { streams: 1, ..settings() });
    reading.hint(relay.address, 0..4);
    let results = reading.read(0..4).await;
    assert!(results.iter().all(|result| *result == Err(TierError::Corrupt)), "{results:?}");
    let counts = reading.tier.counts();
    assert_eq!((counts.forged, counts.corrupt, counts.blocks), (1, 4, 0));
    reading.hint(relay.address, 0..4);
    assert_eq!(reading.read(0..1).await, [Err(TierError::Missing)]);
    // Another way to the same holder is as good as ever.
    reading.hint(served.address, 0..4);
    assert!(reading.read(0..4).await.iter().all(Result::is_ok));
    shelf.unpinned().await;
}

#[tokio::test]
async fn without_a_secret_a_damaged_block_is_a_miss_by_its_checksum() {
    let shelf = Shelf::new(4, 20_000);
    let served = shelf.serve(FleetKey::default()).await;
    let relay = Relay::new(served.address, &[Fate::FlipAt(greeting_bytes(4) + 2000)]).await;
    let one_stream = PeerSettings { streams: 1, ..settings() };
    let mut reading = Reading::new(form(20_000), FleetKey::default(), one_stream);
    reading.hint(relay.address, 0..4);
    let results = reading.read(0..4).await;
    assert_eq!(results[0], Err(TierError::Corrupt));
    assert!(results[1..].iter().all(Result::is_ok));
}

async fn handshake(form: BlockForm, key: FleetKey) -> LinkError {
    let shelf = Shelf::new(1, 5000);
    let served = shelf.serve(secret()).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    introduce(stream, &key.into(), form).await.err().expect("no handshake")
}

#[tokio::test]
async fn kv_of_another_form_is_refused_in_words() {
    let other = BlockForm { fingerprint: [9; 32], block_bytes: 5000 };
    let expected = "refused: the holder has KV of form 07070707 with 5000 bytes a block, not of form \
                    09090909 with 5000 bytes a block";
    assert_eq!(handshake(other, secret()).await.to_string(), expected);
    let error = handshake(form(4000), secret()).await;
    assert!(matches!(error, LinkError::Refused(_)), "{error}");
}

#[tokio::test]
async fn agents_of_another_secret_get_nothing() {
    let expected = "a frame of kind Challenge is forged, damaged or of another secret";
    for key in [FleetKey::of_secret(b"other"), FleetKey::default()] {
        assert_eq!(handshake(form(5000), key).await.to_string(), expected);
    }
}

#[tokio::test]
async fn stopped_peer_ends_at_the_deadline() {
    let brief = Duration::from_millis(50);
    let soon = PeerSettings { read_deadline: brief, silence: brief, ..settings() };
    // It is connected to, by the system, and answers nothing.
    let stopped = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut reading = Reading::new(form(5000), secret(), soon.clone());
    reading.hint(stopped.local_addr().unwrap(), 0..3);
    let results = reading.read(0..3).await;
    assert_eq!(results, [TierError::Failed, TierError::Missing, TierError::Missing].map(Err));
    assert_eq!(reading.read(0..1).await, [Err(TierError::Missing)], "the peer is left alone");

    // It stops in the middle of a block.
    let shelf = Shelf::new(3, 20_000);
    let served = shelf.serve(secret()).await;
    let relay = Relay::new(served.address, &[Fate::StallAfter(greeting_bytes(3) + 10_000)]).await;
    let mut reading = Reading::new(form(20_000), secret(), soon);
    reading.hint(relay.address, 0..3);
    assert!(reading.read(0..3).await.iter().all(Result::is_err));
    drop(reading);
    shelf.unpinned().await;
}

#[tokio::test]
async fn a_reader_of_a_hand_over_is_not_answered_from_tiers() {
    let shelf = Shelf::new(1, 5000);
    let served = shelf.serve(secret()).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    let reader = ReaderIdentity { purpose: ReaderPurpose::Handover, ..secret().into() };
    let error = introduce(stream, &reader, form(5000)).await.err().expect("no answer");
    assert!(matches!(error, LinkError::Io(_)), "{error}");
}

#[tokio::test]
async fn a_reader_that_has_finished_leaves_nothing_lent() {
    let shelf = Shelf::new(4, 20_000);
    let served = shelf.serve(secret()).await;
    let mut reading = Reading::new(form(20_000), secret(), settings());
    reading.hint(served.address, 0..4);
    assert!(reading.read(0..4).await.iter().all(Result::is_ok));
    reading.tier.finish(Duration::from_secs(30)).await;
    shelf.unpinned().await;
}

#[tokio::test]
async fn a_lease_ends_at_its_deadline_though_its_reader_is_connected() {
    let shelf = Shelf::new(2, 5000);
    let served = shelf.serve(secret()).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    let mut link = introduce(stream, &secret().into(), form(5000)).await.unwrap();
    let lease = FrameHeader { count: 300, ..FrameHeader::new(FrameKind::Lease) };
    link.queue(lease, &encode_names(&[BlockName(0), BlockName(1)]));
    link.flush().await.unwrap();
    let leased = link.next().await.unwrap();
    assert_eq!(link.payload(&leased).await.unwrap().len(), 16);
    shelf.unpinned().await;
    let transfer = leased.header.transfer;
    let read = FrameHeader { transfer, count: 100, ..FrameHeader::new(FrameKind::Read) };
    link.queue(read, &[]);
    link.flush().await.unwrap();
    assert_eq!(link.next().await.unwrap().header.kind, FrameKind::Gone);
}

#[tokio::test]
async fn a_slow_lender_goes_on_until_its_reader_asks_again() {
    let shelf = Shelf::new(2, 5000);
    shelf.is_quick.send_replace(false);
    let served = shelf.serve(secret()).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    let mut link = introduce(stream, &secret().into(), form(5000)).await.unwrap();
    for (kind, is_quick) in [(FrameKind::Busy, true), (FrameKind::Leased, false)] {
        let lease = FrameHeader { count: 5000, ..FrameHeader::new(FrameKind::Lease) };
        link.queue(lease, &encode_names(&[BlockName(0), BlockName(1)]));
        link.flush().await.unwrap();
        let answer = link.next().await.unwrap();
        link.payload(&answer).await.unwrap();
        assert_eq!(answer.header.kind, kind);
        shelf.is_quick.send_replace(is_quick);
    }
    assert_eq!(shelf.lent.load(SeqCst), 1);
    // Blocks lent to a reader that has gone are given back, also those that were not there yet.
    link.queue(
        FrameHeader { count: 5000, ..FrameHeader::new(FrameKind::Lease) },
        &encode_names(&[BlockName(1)]),
    );
    link.flush().await.unwrap();
    assert_eq!(link.next().await.unwrap().header.kind, FrameKind::Busy);
    assert_eq!(shelf.lent.load(SeqCst), 2);
    drop(link);
    shelf.unpinned().await;
}

#[tokio::test]
async fn reads_beyond_a_block_or_a_lease_end_the_connection() {
    let shelf = Shelf::new(2, 5000);
    let served = shelf.serve(secret()).await;
    for (place, offset) in [(0, 4901), (2, 0)] {
        let stream = TcpStream::connect(served.address).await.unwrap();
        let mut link = introduce(stream, &secret().into(), form(5000)).await.unwrap();
        let lease = FrameHeader { count: 5000, ..FrameHeader::new(FrameKind::Lease) };
        link.queue(lease, &encode_names(&[BlockName(0), BlockName(1)]));
        link.flush().await.unwrap();
        let leased = link.next().await.unwrap();
        link.payload(&leased).await.unwrap();
        let transfer = leased.header.transfer;
        let read = FrameHeader::new(FrameKind::Read);
        link.queue(FrameHeader { place, offset, transfer, count: 100, ..read }, &[]);
        link.flush().await.unwrap();
        assert!(matches!(link.next().await, Err(LinkError::Io(_))));
    }
    shelf.unpinned().await;
}

#[tokio::test]
async fn nothing_is_written_to_a_peer() {
    let mut reading = Reading::new(form(5000), secret(), settings());
    let block = Block {
        name: BlockName(1),
        hash: None,
        parent: None,
        depth: 0,
        tenant: crate::TenantKey::default(),
    };
    reading.tier.write(TierWrite { block, slot: SlotId(2), checksum: Checksum(3) });
    let result = Err(TierError::Full);
    let expected = TierReport::Written { name: block.name, slot: SlotId(2), result };
    assert_eq!(reading.report().await, expected);
}

#[tokio::test]
async fn without_a_secret_peers_on_other_machines_are_ignored() {
    let mut reading = Reading::new(form(5000), FleetKey::default(), settings());
    reading.hint("10.1.2.3:7".parse().unwrap(), 0..2);
    assert_eq!(reading.read(0..1).await, [Err(TierError::Missing)]);
}

#[tokio::test]
async fn every_read_is_reported_when_the_tier_goes() {
    let stopped = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let reading = Reading::new(form(5000), secret(), settings());
    reading.hint(stopped.local_addr().unwrap(), 0..3);
    (0..3).for_each(|name| reading.ask(name, Urgency::Demand));
    // The connection is made, so two of the reads wait for the first one's batch.
    let _connection = stopped.accept().await.unwrap();
    reading.ask(0, Urgency::Prefetch);
    let mut reports = reading.drop_tier();
    for _ in 0..4 {
        assert!(matches!(reports.recv().await, Some(TierReport::Read { result: Err(_), .. })));
    }
}

#[tokio::test]
async fn a_queued_read_that_nobody_wants_is_dropped_and_one_that_has_begun_is_not() {
    let stopped = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let one = PeerSettings { batches_max: 1, ..settings() };
    let mut reading = Reading::new(form(5000), secret(), one);
    reading.hint(stopped.local_addr().unwrap(), 0..3);
    reading.ask(0, Urgency::Demand);
    // The connection is made: the first read has begun.
    let _connection = stopped.accept().await.unwrap();
    reading.ask(1, Urgency::Demand);
    reading.ask(2, Urgency::Prefetch);
    for name in [0, 2, 1] {
        reading.tier.cancel(BlockName(name), SlotId(name as u32));
    }
    for name in [2, 1] {
        let (name, slot, result) =
            (BlockName(name), SlotId(name as u32), Err(TierError::Cancelled));
        assert_eq!(reading.report().await, TierReport::Read { name, slot, result });
    }
    assert_eq!(reading.tier.counts().failed, 0);
    let mut reports = reading.drop_tier();
    let last = reports.recv().await;
    assert!(matches!(last, Some(TierReport::Read { slot: SlotId(0), result: Err(_), .. })));
}

#[tokio::test]
async fn a_cache_lends_what_it_has() {
    let cache = TieredCache::open(form(5000), CacheSettings::new(32)).unwrap();
    let engine = cache.connect(Arc::new(|_| {}));
    for (name, slot) in (0..).zip(engine.grant(4)) {
        let block = Block {
            name: BlockName(name),
            hash: None,
            parent: None,
            depth: name as u32,
            tenant: crate::TenantKey::default(),
        };
        assert_eq!(engine.store(slot, block, &testkit::kv(name, 5000)), None);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = listener.local_addr().unwrap();
    let arena = cache.shared_arena();
    let lender = Arc::new(CacheLender::new(&cache));
    let store = LendingStore { arena, lender, form: form(5000), key: secret(), direct: None };
    let server = TransferServer::new(Arc::new(store));
    let mut task = tokio::task::JoinSet::new();
    task.spawn(server.run(listener));
    let mut reading = Reading::new(form(5000), secret(), settings());
    reading.hint(peer, 0..6);
    let results = reading.read(0..6).await;
    assert!(results[..4].iter().all(Result::is_ok), "{results:?}");
    assert_eq!(results[4..], [Err(TierError::Missing); 2]);
}

#[tokio::test]
async fn too_many_reads_are_refused() {
    let stopped = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let few = PeerSettings { queue_max: 2, read_deadline: Duration::from_millis(50), ..settings() };
    let mut reading = Reading::new(form(5000), secret(), few);
    reading.hint(stopped.local_addr().unwrap(), 0..9);
    let results = reading.read(0..9).await;
    assert_eq!(results.iter().filter(|result| **result == Err(TierError::Busy)).count(), 7);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Every read ends and every byte is right, wherever connections are cut and damaged.
    #[test]
    fn every_read_ends_and_no_byte_is_wrong(
        fates in prop::collection::vec((0..3_u8, 0..200_000_usize), 1..6),
        has_secret: bool,
        streams in 1..4_usize,
        block_bytes in 1..30_000_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let key = if has_secret { secret() } else { FleetKey::default() };
            let shelf = Shelf::new(6, block_bytes);
            let served = shelf.serve(key.clone()).await;
            let mut fates: Vec<_> = fates
                .into_iter()
                .map(|(kind, at)| match kind {
                    0 => Fate::Pass,
                    1 => Fate::CutAfter(at + 1),
                    _ => Fate::FlipAt(at),
                })
                .collect();
            fates.push(Fate::Pass);
            let relay = Relay::new(served.address, &fates).await;
            let mut reading = Reading::new(form(block_bytes), key, PeerSettings { streams, ..settings() });
            for _ in 0..3 {
                reading.hint(relay.address, 0..6);
                reading.read(0..6).await;
            }
            drop(reading);
            shelf.unpinned().await;
        });
    }
}
