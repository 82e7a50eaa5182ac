//! Input that contradicts itself, or that somebody made to do harm. Weights, thresholds and shares
//! that are no numbers are tested where they are checked.

use super::*;
use stator_protos::kv_event::Removed;
use stator_protos::load::{LoadCost, PEER_COSTS_MAX, PeerCost, TierCosts};

#[test]
fn an_empty_fleet_refuses_everything_and_books_nothing() {
    let prompt = sequence(0, 9);
    for mode in Mode::ALL {
        let mut placement = in_mode(mode, 0);
        let asked = [
            request(&prompt),
            request(&[]),
            PlacementRequest { pinned: Some(rank(1)), ..request(&prompt) },
            PlacementRequest { session: Some(1), encode: true, explain: true, ..request(&prompt) },
        ];
        for asked in &asked {
            let refused = placement.pick(asked, Time::default(), 1);
            assert!(refused.is_err(), "{mode:?}: {refused:?}");
            assert_eq!(placement.survey(asked, Time::default()).costs().len(), 0);
            assert_eq!(placement.book(asked, rank(1)), None);
        }
        assert!(!placement.report_load(rank(1), LIFE, Load::default()));
        assert!(!placement.set_peers(rank(1), PeerLoad::default()));
        assert!(!placement.worker_down(rank(1)));
        let PlacementStats { workers, bookings, index_blocks, .. } = placement.stats();
        assert_eq!((workers, bookings, index_blocks), (0, 0, 0));
    }
}

#[test]
fn blocks_of_no_tokens_are_refused() {
    let mut placement = in_mode(Mode::Kv, 1);
    let prompt = sequence(1, 4);
    let KvEvent::Stored(event) = stored(&prompt) else { panic!("it stores") };
    for block_size in [0, u32::MAX] {
        let event = KvEvent::Stored(Stored { block_size, ..event.clone() });
        assert_eq!(placement.apply(rank(0), LIFE, &event), EventEffect::BlockSize);
    }
    assert_eq!(placement.stats().ignored_events, 2);
    assert_eq!(pick(&mut placement, &request(&prompt)).overlap_blocks, 0);
}

#[test]
fn reports_that_cannot_be_are_contained() {
    let mut placement = in_mode(Mode::Kv, 2);
    const COST: LoadCost = LoadCost { latency_us: u64::MAX, block_ns: u64::MAX };
    let most = Load {
        running: u32::MAX,
        waiting: u32::MAX,
        used_blocks: u32::MAX,
        cached_blocks: u32::MAX,
        total_blocks: 0,
        pending_prefill_tokens: u64::MAX,
        costs: TierCosts {
            block_bytes: u64::MAX,
            compute_ns: u64::MAX,
            host: COST,
            disk: COST,
            remote: COST,
            peer: COST,
            peers: [PeerCost { holder: u64::MAX, cost: COST }; PEER_COSTS_MAX],
        },
    };
    for _ in 0..3 {
        assert!(placement.report_load(rank(0), LIFE, most));
        let decision = pick(&mut placement, &request(&sequence(0, 10)));
        assert_eq!(decision.worker, rank(1), "it claims to be as busy as can be");
    }
    placement.report_load(rank(0), LIFE, Load::default());
    let again = placement.pick(&request(&[]), Time::from_millis(60_000), 0).unwrap();
    assert_eq!((again.worker, placement.in_flight(rank(0)).requests), (rank(0), 1));
}

/// Any event: parents that nobody has, blocks after themselves, the same block many times.
fn any_event() -> impl Strategy<Value = KvEvent> {
    let hashes = || vec(prop_oneof![0u64..12, Just(u64::MAX)], 0..9);
    let medium = || select(Medium::ALL.to_vec());
    let block_size = prop_oneof![9 => Just(BLOCK_SIZE), 1 => any::<u32>()];
    let parent = prop_oneof![Just(None), (0u64..14).prop_map(Some)];
    let any_stored = (hashes(), parent, block_size, medium()).prop_map(
        |(hashes, parent, block_size, medium)| {
            let (tokens, lora_name) = (vec![7; hashes.len()], None);
            KvEvent::Stored(Stored { hashes, parent, tokens, block_size, medium, lora_name })
        },
    );
    let any_removed = (hashes(), medium())
        .prop_map(|(hashes, medium)| KvEvent::Removed(Removed { hashes, medium }));
    prop_oneof![6 => any_stored, 3 => any_removed, 1 => Just(KvEvent::Cleared)]
}

proptest! {
    /// Whatever a worker says of itself, in whichever life, nobody else is taken to hold more or
    /// less for it, and what it is taken to hold has an end.
    #[test]
    fn a_hostile_stream_of_events_is_contained(
        events in vec((any_event(), 0u64..3), 0..120),
        honest in 1u64..11,
    ) {
        let mut placement = in_mode(Mode::Kv, 2);
        let prompt = sequence(1, 11);
        let held = sequence(1, honest);
        prop_assert_eq!(placement.apply(rank(1), LIFE, &stored(&held)), EventEffect::Yes);
        for (event, life) in &events {
            placement.apply(rank(0), Generation(*life), event);
            placement.apply(rank(7), Generation(*life), event);
        }
        let mut found = Overlaps::default();
        placement.index().overlap(&prompt, &mut found);
        prop_assert_eq!(u64::from(found.of(rank(1)).blocks()), honest);
        prop_assert!(found.of(rank(0)).blocks() as usize <= prompt.len());
        prop_assert_eq!(found.of(rank(7)).blocks(), 0);
        let asked = PlacementRequest { explain: true, ..request(&prompt) };
        let decision = pick(&mut placement, &asked);
        for candidate in &decision.candidates {
            let total = candidate.score.total;
            prop_assert!(total.is_finite() && total >= 0.0, "{} costs {total}", candidate.worker);
        }
        placement.release_all(&decision);
        placement.worker_down(rank(0));
        while placement.blocks().maintain() {}
        let PlacementStats { index_blocks, bookings, .. } = placement.stats();
        prop_assert_eq!((index_blocks as u64, bookings), (honest, 0));
    }
}
