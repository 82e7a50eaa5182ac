use super::*;
use proptest::{collection::vec, prelude::*};
use stator_protos::WorkerId;

fn key(number: u64) -> GaugeKey {
    (PoolId((number % 2) as u32), WorkerRank { worker: WorkerId(number / 2), rank: 0 })
}

fn amount(requests: u64) -> PeerLoad {
    let (tokens, prefill_tokens) = (100 * requests, 3 * requests);
    PeerLoad { requests, tokens, prefill_tokens, prefill_pairs: 7 * requests, blocks: requests }
}

#[derive(Clone, Debug)]
enum Step {
    /// A replica has so many requests at some of the workers and none at the others.
    Look { replica: usize, values: Vec<(u64, u64)> },
    /// So many of its changes arrive.
    Hear { replica: usize, most: usize },
    /// The connection to it breaks, and is there again.
    Break { replica: usize },
}

fn any_step() -> impl Strategy<Value = Step> {
    let replica = 0..3usize;
    prop_oneof![
        3 => (replica.clone(), vec((0..12u64, 0..4u64), 0..8))
            .prop_map(|(replica, values)| Step::Look { replica, values }),
        3 => (replica.clone(), 1..6usize).prop_map(|(replica, most)| Step::Hear { replica, most }),
        1 => replica.prop_map(|replica| Step::Break { replica }),
    ]
}

/// Three replicas that speak and one that hears them.
#[derive(Default)]
struct World {
    own: [OwnGauges; 3],
    /// What each replica has, plainly.
    plain: [BTreeMap<GaugeKey, PeerLoad>; 3],
    seen: [u64; 3],
    others: Others,
    /// The sums that the hearing replica was last told.
    told: BTreeMap<GaugeKey, PeerLoad>,
}

impl World {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Look { replica, values } => self.look(*replica, values),
            Step::Hear { replica, most } => self.hear(*replica, *most),
            Step::Break { replica } => {
                self.told.extend(self.others.leave(*replica as u64));
                self.seen[*replica] = 0;
            }
        }
    }

    fn look(&mut self, replica: usize, values: &[(u64, u64)]) {
        let plain: BTreeMap<_, _> =
            values.iter().map(|&(worker, value)| (key(worker), amount(value))).collect();
        for pool in [PoolId(0), PoolId(1)] {
            let of_pool = plain.iter().filter(|(key, _)| key.0 == pool);
            let now: Vec<_> = of_pool.map(|(key, value)| (key.1, *value)).collect();
            self.own[replica].set_pool(pool, &now, self.seen[replica]);
        }
        self.plain[replica] = plain;
    }

    fn hear(&mut self, replica: usize, most: usize) {
        self.others.join(replica as u64);
        let (changes, seen) = self.own[replica].changes_since(self.seen[replica], most);
        self.seen[replica] = seen;
        for (key, value) in changes {
            let sum = self.others.set(replica as u64, key, value).expect("it is heard");
            self.told.insert(key, sum);
        }
    }

    /// Everything that is not zero, summed plainly over `replicas`.
    fn model(&self) -> BTreeMap<GaugeKey, PeerLoad> {
        let mut sums: BTreeMap<GaugeKey, PeerLoad> = BTreeMap::new();
        for (key, value) in self.plain.iter().flatten() {
            let sum = sums.entry(*key).or_default();
            *sum = sum.plus(*value);
        }
        sums.retain(|_, sum| *sum != PeerLoad::default());
        sums
    }
}

proptest! {
    /// Whatever changed in whatever order, and whatever was lost on the way: once all is heard,
    /// the sums are right, and they are what the replica was told.
    #[test]
    fn sums_converge_to_the_plain_ones(steps in vec(any_step(), 0..120)) {
        let mut world = World::default();
        for step in &steps {
            world.step(step);
        }
        for replica in 0..3 {
            world.hear(replica, usize::MAX);
        }
        let sums: BTreeMap<_, _> = world.others.sums().collect();
        prop_assert_eq!(&sums, &world.model());
        world.told.retain(|_, sum| *sum != PeerLoad::default());
        prop_assert_eq!(world.told, sums);
    }

    /// Whatever happened before, who is gone counts no more.
    #[test]
    fn who_is_gone_counts_no_more(steps in vec(any_step(), 0..60)) {
        let mut world = World::default();
        steps.iter().for_each(|step| world.step(step));
        for replica in 0..3 {
            world.step(&Step::Break { replica });
        }
        prop_assert_eq!(world.others.sums().count(), 0);
        prop_assert!(world.told.values().all(|sum| *sum == PeerLoad::default()));
    }
}

#[test]
fn an_origin_joins_once_at_a_time() {
    let mut others = Others::default();
    assert!(others.join(1));
    assert!(!others.join(1));
    others.leave(1);
    assert!(others.join(1));
    assert_eq!(others.set(2, key(1), amount(1)), None, "nobody hears 2");
}

#[test]
fn workers_that_are_gone_are_forgotten_once_everybody_knows() {
    let mut own = OwnGauges::default();
    for number in 0..100 {
        own.set_pool(PoolId(0), &[(key(2 * number).1, amount(1))], own.version());
    }
    assert!(own.gauges.len() <= 3, "{} gauges are kept", own.gauges.len());
    assert_eq!(own.gauges.len(), own.changes.len());
}

#[test]
fn an_absurd_claim_is_cut_and_too_many_gauges_are_passed_over() {
    let mut others = Others::default();
    let absurd = PeerLoad::default().zip(PeerLoad::default(), |_, _| u64::MAX);
    for origin in 0..64 {
        others.join(origin);
        assert!(others.set(origin, key(0), absurd).is_some());
    }
    for number in 1..GAUGES_MAX as u64 {
        assert!(others.set(7, key(number), amount(1)).is_some());
    }
    assert_eq!(others.set(7, key(GAUGES_MAX as u64), amount(1)), None);
    assert!(others.set(7, key(5), amount(2)).is_some(), "a known one may change");
}
