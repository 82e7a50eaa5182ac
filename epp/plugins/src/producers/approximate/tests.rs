use super::index::Index;
use super::*;
use crate::testing::{Fleet, check_errors, matched, routed};
use crate::{BuildContext, PrefixSource, build};
use proptest::prelude::*;
use serde_json::{Value, json};
use stator_epp_scheduler::plugin::PluginParts;
use stator_epp_scheduler::{CacheConfig, Prompt};

fn built(context: &mut BuildContext, name: &str, parameters: Value) -> PluginParts {
    build("approx-prefix-cache-producer", name, &parameters, context)
        .expect("the parameters are right")
}

fn text<'a>(model: &'a str, pieces: &'a [&'a [u8]]) -> Request<'a> {
    Request { model, prompt: Prompt { text: pieces, ..Prompt::default() }, ..Request::default() }
}

/// What each endpoint is believed to hold of a request.
fn found(plugin: &PluginParts, request: &Request<'_>, fleet: &Fleet) -> Vec<u32> {
    let mut candidates = fleet.candidates();
    let producer = plugin.producer.as_ref().expect("it is a producer");
    producer.produce(request, &mut candidates, Time::default());
    let matched = |c: &Candidate<'_>| c.approximate.expect("it is written").matched_blocks;
    candidates.iter().map(matched).collect()
}

fn place(plugin: &PluginParts, request: &Request<'_>, fleet: &Fleet, target: usize) {
    let routing = routed(&fleet.candidates()[target]);
    let observer = plugin.observer.as_ref().expect("it is an observer");
    observer.placed(request, &PlacedRequest { ticket: 1, routing: &routing }, Time::default());
}

#[test]
fn endpoints_hold_what_they_were_sent() {
    let plugin = built(&mut BuildContext::default(), "approx", Value::Null);
    let fleet = Fleet::of(2);
    let (head, tail) = ([b'a'; 512], [b'b'; 300]);
    let first = text("m", &[]);
    assert_eq!(found(&plugin, &first, &fleet), [0, 0]);
    let pieces: [&[u8]; 2] = [&head, &tail];
    place(&plugin, &text("m", &pieces), &fleet, 1);
    // 812 bytes are four blocks of 256, the last a short one.
    assert_eq!(found(&plugin, &text("m", &pieces), &fleet), [0, 4]);
    let other: [&[u8]; 2] = [&head, b"other"];
    assert_eq!(found(&plugin, &text("m", &other), &fleet), [0, 2]);
    assert_eq!(found(&plugin, &text("another", &pieces), &fleet), [0, 0]);
    let mut salted = text("m", &pieces);
    salted.prompt.cache_salt = Some("tenant");
    assert_eq!(found(&plugin, &salted, &fleet), [0, 0]);
    plugin.observer.as_ref().expect("it is one").left(fleet.endpoints[1].worker);
    assert_eq!(found(&plugin, &text("m", &pieces), &fleet), [0, 0]);
}

#[test]
fn hashes_may_come_with_the_request() {
    let given = json!({"prefixHashSource": "metadata", "maxPrefixTokensToMatch": 0,
        "maxPrefixBlocksToMatch": 3});
    let plugin = built(&mut BuildContext::default(), "approx", given);
    let (fleet, pieces) = (Fleet::of(2), [&b"another text every time"[..]]);
    let of = |model, given_hashes| {
        let mut request = text(model, &pieces);
        request.prompt.given_hashes = given_hashes;
        request
    };
    place(&plugin, &of("m", &[1, 2, 3, 4]), &fleet, 1);
    assert_eq!(found(&plugin, &of("m", &[1, 2, 9]), &fleet), [0, 2]);
    assert_eq!(
        found(&plugin, &of("m", &[1, 2, 3, 4]), &fleet),
        [0, 3],
        "as many as may be matched"
    );
    assert_eq!(found(&plugin, &of("other", &[1, 2, 3]), &fleet), [0, 0]);
    assert_eq!(found(&plugin, &of("m", &[]), &fleet), [0, 0]);
    // The body's own blocks are nobody's business here.
    let body = built(&mut BuildContext::default(), "approx", Value::Null);
    place(&body, &of("m", &[1, 2, 3]), &fleet, 1);
    assert_eq!(found(&body, &of("m", &[7]), &fleet), [0, 1]);
}

#[test]
fn block_and_cache_sizes_follow_each_engine() {
    let plugin = built(&mut BuildContext::default(), "approx", Value::Null);
    let mut fleet = Fleet::of(2);
    fleet.loads[0].cache = Some(CacheConfig { block_size: 128, blocks: 2 });
    let ids: Vec<u32> = (0..1000).collect();
    let prompt = Prompt { token_ids: Some(&ids), tokens: 1000, ..Prompt::default() };
    let request = Request { prompt, ..Request::default() };
    place(&plugin, &request, &fleet, 0);
    place(&plugin, &request, &fleet, 1);
    let mut candidates = fleet.candidates();
    plugin.producer.as_ref().expect("one").produce(&request, &mut candidates, Time::default());
    let sizes = |c: &Candidate<'_>| {
        let found = c.approximate.expect("it is written");
        (found.matched_blocks, found.total_blocks, found.block_size)
    };
    // The first has room for two blocks; the second for all sixteen.
    assert_eq!(sizes(&candidates[0]), (2, 8, 128));
    assert_eq!(sizes(&candidates[1]), (16, 16, 64));
}

#[test]
fn several_producers_keep_apart_and_are_found_by_name() {
    let mut context = BuildContext::new(vec!["default".to_owned()]);
    let wrong = build("approx-prefix-cache-producer", "gpu", &json!({"x": 1}), &mut context);
    assert!(wrong.is_err());
    let small = built(&mut context, "gpu", json!({"blockSizeTokens": 64}));
    let large = built(&mut context, "cpu", json!({"blockSizeTokens": 128}));
    let fleet = Fleet::of(1);
    let pieces: [&[u8]; 1] = [&[7; 1024]];
    let request = text("m", &pieces);
    let mut candidates = fleet.candidates();
    for plugin in [small, large] {
        place(&plugin, &request, &fleet, 0);
        let producer = plugin.producer.expect("it is a producer");
        producer.produce(&request, &mut candidates, Time::default());
    }
    let blocks = |source: PrefixSource| source.read(&candidates[0]).map(|m| m.matched_blocks);
    assert_eq!(blocks(PrefixSource::Approximate), Some(4));
    assert_eq!(blocks(PrefixSource::Named(1)), Some(2));
    let by_name = json!({"prefixMatchInfoProducerName": "cpu", "matchLengthWeight": 1,
        "matchLengthScaleTokens": 512});
    let scorer = build("prefix-cache-scorer", "scorer", &by_name, &mut context);
    let scorer = scorer.expect("the producer is there").scorer.expect("it is a scorer");
    candidates[0].approximate = Some(matched(0, 4));
    crate::testing::check_scores(&*scorer, &request, &candidates, &[0.25]);
}

#[test]
fn limits_bound_what_is_looked_at() {
    let parameters = json!({"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 3});
    let plugin = built(&mut BuildContext::default(), "approx", parameters);
    let fleet = Fleet::of(1);
    let pieces: [&[u8]; 1] = [&[7; 10_000]];
    place(&plugin, &text("m", &pieces), &fleet, 0);
    assert_eq!(found(&plugin, &text("m", &pieces), &fleet), [3]);
    check_errors(
        "approx-prefix-cache-producer",
        json!({"blockSize": 64, "blockSizeTokens": 0, "lruCapacityPerServer": 0}),
        &[
            "blockSize: is in characters and not supported; use blockSizeTokens",
            "blockSizeTokens: 0 is not in 1..=65536",
            "lruCapacityPerServer: 0 is not in 1..=100000000",
        ],
    );
}

/// Keeps what it is told.
#[derive(Default)]
struct Ear(Mutex<Vec<(WorkerRank, Vec<SequenceHash>)>>);

impl IndexListener for Ear {
    fn sent(&self, worker: WorkerRank, chain: &[SequenceHash]) {
        self.0.lock().push((worker, chain.to_vec()));
    }
}

#[test]
fn what_another_replica_sent_is_found_here() {
    let built = || {
        let plugin = built(&mut BuildContext::default(), "approx", Value::Null);
        let shared = plugin.shared.clone().expect("it is shared");
        (plugin, shared)
    };
    let ((here, known), (there, other)) = (built(), built());
    let (fleet, ear) = (Fleet::of(2), Arc::new(Ear::default()));
    let pieces: [&[u8]; 1] = [&[7; 1024]];
    other.tell(ear.clone());
    place(&there, &text("m", &pieces), &fleet, 1);
    for (worker, chain) in std::mem::take(&mut *ear.0.lock()) {
        assert_eq!((worker, chain.len()), (fleet.endpoints[1].worker, 4));
        known.sent(&fleet.endpoints[1], &fleet.loads[1], &chain, Time::default());
    }
    assert_eq!(found(&here, &text("m", &pieces), &fleet), [0, 4]);
    assert_eq!(known.predictions(0, 100), other.predictions(0, 100));
    assert_eq!(known.predictions(0, 3).map(|part| part.len()), Some(3));
    assert_eq!(known.predictions(4, 3), None);
}

#[derive(Clone, Debug)]
enum Step {
    Record { endpoint: usize, chain: Vec<SequenceHash>, capacity: usize },
    Forget(usize),
    Restart(usize),
}

/// Chains of few branches: each hash tells its depth and all choices so far.
fn any_chain() -> impl Strategy<Value = Vec<SequenceHash>> {
    prop::collection::vec(0..2u64, 0..6).prop_map(|choices| {
        let next = |hash: &mut u64, choice| {
            *hash = *hash * 10 + choice + 1;
            Some(SequenceHash(*hash))
        };
        choices.into_iter().scan(0, next).collect()
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..70usize, any_chain(), 1..12usize)
            .prop_map(|(endpoint, chain, capacity)| Step::Record { endpoint, chain, capacity }),
        1 => (0..70usize).prop_map(Step::Forget),
        1 => (0..70usize).prop_map(Step::Restart),
    ]
}

/// Blocks of an endpoint in the order of their use, the oldest first.
fn model_record(blocks: &mut Vec<SequenceHash>, chain: &[SequenceHash], capacity: usize) {
    let excess = blocks.len().saturating_sub(capacity);
    blocks.drain(..excess);
    for hash in chain.iter().take(capacity).rev() {
        blocks.retain(|other| other != hash);
        blocks.push(*hash);
        let excess = blocks.len().saturating_sub(capacity);
        blocks.drain(..excess);
    }
}

proptest! {
    /// The index answers as plain lists of blocks do, and keeps no block that nobody holds.
    #[test]
    fn agrees_with_plain_lists(
        steps in prop::collection::vec(any_step(), 0..60),
        asked in any_chain(),
        most in 1..20usize,
    ) {
        let mut fleet = Fleet::of(70);
        let (mut index, mut model) = (Index::default(), vec![Vec::new(); 70]);
        for step in steps {
            match step {
                Step::Record { endpoint, chain, capacity } => {
                    index.record(&fleet.endpoints[endpoint], capacity, &chain);
                    model_record(&mut model[endpoint], &chain, capacity);
                }
                Step::Forget(endpoint) => {
                    index.forget(fleet.endpoints[endpoint].worker);
                    model[endpoint].clear();
                }
                Step::Restart(endpoint) => {
                    let life = format!("{}'", fleet.endpoints[endpoint].uid);
                    fleet.endpoints[endpoint].uid = life.into();
                    index.record(&fleet.endpoints[endpoint], 1, &[]);
                    model[endpoint].clear();
                }
            }
        }
        let held = |blocks: &Vec<SequenceHash>| asked.iter().take_while(|h| blocks.contains(h)).count() as u32;
        let wanted: Vec<_> = model.iter().map(held).collect();
        prop_assert_eq!(index.matches(&asked, fleet.endpoints.iter()), wanted);
        let mut all = model.concat();
        all.sort_unstable();
        all.dedup();
        prop_assert_eq!(index.len(), all.len());

        // Another index that is given all of it in parts becomes the same.
        let mut taken = Index::default();
        let mut from = 0;
        while let Some(part) = index.part(from, most) {
            from += most;
            for (endpoint, blocks) in fleet.endpoints.iter().zip(&mut model) {
                let of = part.iter().filter(|(worker, _)| *worker == endpoint.worker);
                let chain: Vec<_> = of.map(|(_, hash)| *hash).collect();
                let newest = blocks.split_off(chain.len().min(blocks.len()));
                prop_assert!(blocks.iter().rev().eq(&chain), "the oldest first");
                *blocks = newest;
                taken.record(endpoint, 12, &chain);
            }
        }
        prop_assert!(model.iter().all(Vec::is_empty), "{model:?} is left");
        let again = |index: &Index| index.matches(&asked, fleet.endpoints.iter());
        prop_assert_eq!(again(&taken), again(&index));
    }
}
