use super::*;
use crate::names::PoolNames;
use proptest::{collection::vec, prelude::*, sample::select};

/// A peer's one pool, which is our first.
fn map() -> PoolMap {
    let mut map = PoolMap::default();
    map.extend(&["n/a".to_owned()], &mut PoolNames::default());
    map
}

#[test]
fn nonsense_is_passed_over() {
    let pool = |position, rank| map().key(position, 7, rank).map(|(pool, _)| pool);
    assert_eq!(pool(0, 65_535), Some(PoolId(0)));
    assert_eq!(pool(0, 65_536), None, "no rank is so large");
    assert_eq!(pool(1, 0), None, "the peer did not name it");
}

#[test]
fn what_is_sent_comes_out_as_it_was() {
    let map = map();
    let key = (PoolId(0), WorkerRank { worker: WorkerId(u64::MAX), rank: 3 });
    let (requests, tokens) = (4, 1 << 40);
    let value = PeerLoad { requests, tokens, prefill_tokens: 5, prefill_pairs: 6, blocks: 7 };
    let sent =
        std::sync::Arc::new(SentPrompt { key, hashes: vec![SequenceHash(5), SequenceHash(1)] });
    let pools = vec!["n/b".to_owned()];
    let mut message = frame(&Frame { gauges: vec![(key, value)], sent: vec![sent.clone()], pools });
    assert_eq!(message.pools, ["n/b"]);
    assert_eq!(map.gauge(&message.gauges[0]), Some((key, value)));
    assert_eq!(
        map.sent(message.sent.remove(0)),
        Some(SentPrompt { key, hashes: sent.hashes.clone() })
    );
}

#[test]
fn an_unknown_medium_holds_nothing() {
    let holding =
        proto::Holding { medium: 77, sequence_hashes: vec![1], ..proto::Holding::default() };
    assert_eq!(blocks(&holding).count(), 0);
}

proptest! {
    /// A snapshot has every block of a worker as often as it was there, and one end.
    #[test]
    fn holdings_are_whole(
        found in vec((0..50u64, select(&Medium::ALL[..])), 0..200),
        generation: u64,
    ) {
        let map = map();
        let key = (PoolId(0), WorkerRank { worker: WorkerId(9), rank: 1 });
        let mut expected: Vec<_> = found.iter().map(|&(hash, m)| (SequenceHash(hash), m)).collect();
        let held = WorkerHoldings { generation: Generation(generation), blocks: expected.clone() };
        let (mut all, mut ends) = (Vec::new(), 0);
        for chunk in holdings(key, held) {
            let holding = chunk.holding.expect("it tells of a worker");
            prop_assert_eq!(map.holding(&holding), Some((key, Generation(generation))));
            prop_assert_eq!(ends, 0, "nothing comes after the end");
            all.extend(blocks(&holding));
            ends += usize::from(holding.last);
        }
        prop_assert_eq!(ends, 1);
        expected.sort_unstable();
        all.sort_unstable();
        prop_assert_eq!(all, expected);
    }

    #[test]
    fn predictions_are_whole(
        part in vec((0..3u64, 0..1_000_000u64), 0..100),
    ) {
        let map = map();
        let worker = |number| WorkerRank { worker: WorkerId(number), rank: 0 };
        let mut part: Vec<_> = part.iter().map(|&(w, h)| (worker(w), SequenceHash(h))).collect();
        let mut all = Vec::new();
        for sent in predicted(PoolId(0), part.clone()).predicted {
            let sent = map.sent(sent).expect("the pool is known");
            all.extend(sent.hashes.into_iter().map(|hash| (sent.key.1, hash)));
        }
        part.sort_unstable();
        all.sort_unstable();
        prop_assert_eq!(all, part);
    }
}
