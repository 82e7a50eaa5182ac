//! Blocks in tiers are priced at the time to load them, and fetched from others where that pays.

use super::timing::{TAUGHT, teach};
use super::*;
use crate::constraint::{Label, Profile, Role};
use crate::cost::CostModel;
use crate::reuse::Holder;
use stator_protos::load::{LoadCost, PeerCost, TierCosts};

fn on(medium: Medium, hashes: &[SequenceHash]) -> KvEvent {
    let KvEvent::Stored(stored) = stored(hashes) else { unreachable!("it is stored") };
    KvEvent::Stored(Stored { medium, ..stored })
}

/// Microseconds, of latency and of each block.
fn cost(latency_us: u64, block_us: u64) -> LoadCost {
    LoadCost { latency_us, block_ns: block_us * 1_000 }
}

/// A worker whose engine computes a block in 1 ms reports these costs.
fn report(placement: &mut Placement, number: u64, costs: TierCosts) {
    let costs = TierCosts { compute_ns: 1_000_000, block_bytes: 1 << 20, ..costs };
    assert!(placement.report_load(rank(number), LIFE, Load { costs, ..Load::default() }));
}

/// Makes the first `workers` workers lend to each other, each with an agent of its own.
fn lend(placement: &mut Placement, workers: u64) {
    for number in 0..workers {
        let profile = Profile { lends: Some(Label(number)), ..Profile::default() };
        assert!(placement.set_profile(rank(number), profile));
    }
}

#[test]
fn a_block_on_disk_is_worth_what_its_load_spares() {
    let prompt = sequence(0, 10);
    for (disk, expected) in [
        // Read in a tenth of the time of computing, or no faster than that.
        (cost(0, 100), rank(0)),
        (cost(0, 1_000), rank(1)),
        // The latency eats it up.
        (cost(9_000, 1), rank(1)),
        (cost(LoadCost::NEVER_US, 0), rank(1)),
    ] {
        let mut placement = in_mode(Mode::Kv, 2);
        report(&mut placement, 0, TierCosts { disk, ..TierCosts::default() });
        placement.apply(rank(0), LIFE, &on(Medium::Disk, &prompt[..10]));
        placement.apply(rank(1), LIFE, &stored(&prompt[..5]));
        let decision = pick(&mut placement, &request(&prompt));
        assert_eq!(decision.worker, expected, "{disk:?}");
    }
}

#[test]
fn a_tier_that_is_slower_than_computing_counts_as_nothing_and_says_so() {
    let prompt = sequence(0, 10);
    let mut placement = in_mode(Mode::Kv, 1);
    let disk = cost(0, 5_000);
    report(&mut placement, 0, TierCosts { host: cost(0, 10), disk, ..TierCosts::default() });
    placement.apply(rank(0), LIFE, &stored(&prompt[..2]));
    placement.apply(rank(0), LIFE, &on(Medium::Host, &prompt[2..5]));
    placement.apply(rank(0), LIFE, &on(Medium::Disk, &prompt[5..9]));
    let decision = pick(&mut placement, &request(&prompt));
    assert_eq!((decision.overlap_blocks, decision.cached_tokens), (9, 5 * 16));
    assert_eq!(decision.sources.to_string(), "2 blocks device, 3 host");
    assert_eq!(placement.in_flight(rank(0)).prefill_tokens, 5 * 16);
}

#[test]
fn a_prompt_is_fetched_where_its_holder_is_busy() {
    let prompt = sequence(0, 40);
    let mut placement = in_mode(Mode::Kv, 3);
    lend(&mut placement, 3);
    placement.apply(rank(0), LIFE, &on(Medium::Host, &prompt));
    let near = TierCosts { host: cost(0, 10), peer: cost(1_000, 100), ..TierCosts::default() };
    (0..3).for_each(|number| report(&mut placement, number, near));
    let first = pick(&mut placement, &request(&prompt));
    assert_eq!((first.worker, first.holders.len()), (rank(0), 0));
    // While it has another prompt to compute, a worker without any of this one is nearer.
    let other = sequence(1_000, 20);
    pick(&mut placement, &PlacementRequest { pinned: Some(rank(0)), ..request(&other) });
    let second = pick(&mut placement, &request(&prompt));
    assert_ne!(second.worker, rank(0));
    assert_eq!(second.sources.to_string(), format!("40 blocks from worker {}", rank(0)));
    assert_eq!((second.overlap_blocks, second.cached_tokens), (0, 640));
    assert_eq!(second.holders[0], Holder { worker: rank(0), blocks: 40 });
    assert_eq!(placement.in_flight(second.worker).prefill_tokens, 0);
}

/// The cost of loads from one agent.
fn pair(holder: u64, cost: LoadCost) -> PeerCost {
    PeerCost { holder, cost }
}

/// Costs of loads from others: a mean, and those of some agents.
fn peers<const N: usize>(mean: LoadCost, pairs: [PeerCost; N]) -> TierCosts {
    let mut costs = TierCosts { peer: mean, ..TierCosts::default() };
    costs.peers[..N].copy_from_slice(&pairs);
    costs
}

#[test]
fn the_way_between_two_workers_has_its_own_time() {
    let prompt = sequence(0, 40);
    let (near, far) = (cost(1_000, 100), cost(1_000, 2_000));
    for (costs, fetched) in [
        // The pair was measured, whatever the mean.
        (peers(far, [pair(1, near)]), 40),
        (peers(near, [pair(1, far)]), 0),
        (peers(near, [pair(1, cost(LoadCost::NEVER_US, 0))]), 0),
        // Another pair was measured: this one has the mean.
        (peers(near, [pair(3, far)]), 40),
        (peers(far, [pair(3, near)]), 0),
    ] {
        let mut placement = in_mode(Mode::Kv, 3);
        lend(&mut placement, 3);
        placement.apply(rank(1), LIFE, &on(Medium::Host, &prompt));
        report(&mut placement, 2, costs);
        let asked = PlacementRequest { pinned: Some(rank(2)), ..request(&prompt) };
        let decision = pick(&mut placement, &asked);
        assert_eq!(decision.sources.fetched, fetched, "{costs:?}");
    }
}

#[test]
fn of_two_holders_each_reader_is_named_its_nearer_one_first() {
    let prompt = sequence(0, 40);
    let (near, far) = (cost(1_000, 100), cost(1_000, 300));
    let mut placement = in_mode(Mode::Kv, 5);
    lend(&mut placement, 5);
    for holder in [1, 2] {
        placement.apply(rank(holder), LIFE, &on(Medium::Host, &prompt));
    }
    report(&mut placement, 3, peers(far, [pair(1, far), pair(2, near)]));
    report(&mut placement, 4, peers(far, [pair(2, far), pair(1, near)]));
    for (reader, first, second) in [(3, 2, 1), (4, 1, 2)] {
        let asked = PlacementRequest { pinned: Some(rank(reader)), ..request(&prompt) };
        let decision = pick(&mut placement, &asked);
        let holders: Vec<_> = decision.holders.iter().map(|holder| holder.worker).collect();
        assert_eq!(holders, [rank(first), rank(second)], "reader {reader}");
        assert_eq!(decision.sources.from, Some(rank(first)), "reader {reader}");
    }
}

#[test]
fn a_prompt_that_is_computed_for_another_worker_is_fetched_too() {
    let prompt = sequence(0, 40);
    let mut placement = in_mode(Mode::Kv, 4);
    lend(&mut placement, 4);
    // Worker 0 holds the prompt, worker 2 can have it at once, and worker 3 answers.
    for (number, role) in [(1, Role::Prefill), (2, Role::Prefill), (3, Role::DecodeOnly)] {
        let profile = Profile { role, lends: Some(Label(number)), ..Profile::default() };
        assert!(placement.set_profile(rank(number), profile));
    }
    placement.apply(rank(0), LIFE, &on(Medium::Host, &prompt));
    report(&mut placement, 1, TierCosts { peer: cost(1_000, 2_000), ..TierCosts::default() });
    report(&mut placement, 2, TierCosts { peer: cost(1_000, 100), ..TierCosts::default() });
    let asked = PlacementRequest { pinned: Some(rank(3)), ..request(&prompt) };
    let decision = pick(&mut placement, &asked);
    assert_eq!(decision.prefill.map(|leg| leg.worker), Some(rank(2)));
    assert_eq!(decision.sources.to_string(), format!("40 blocks from worker {}", rank(0)));
    assert_eq!(decision.holders[..], [Holder { worker: rank(0), blocks: 40 }]);
    assert_eq!(placement.in_flight(rank(2)).prefill_tokens, 0);
}

#[test]
fn holders_are_named_also_where_the_way_is_slow_but_they_are_worth_nothing() {
    let prompt = sequence(0, 40);
    let mut placement = in_mode(Mode::Kv, 2);
    lend(&mut placement, 2);
    placement.apply(rank(0), LIFE, &on(Medium::Host, &prompt));
    let far = TierCosts { peer: cost(1_000, 2_000), ..TierCosts::default() };
    (0..2).for_each(|number| report(&mut placement, number, far));
    let asked = PlacementRequest { pinned: Some(rank(1)), ..request(&prompt) };
    let decision = pick(&mut placement, &asked);
    assert_eq!((decision.holders.len(), decision.cached_tokens), (1, 0));
    assert_eq!(decision.sources.to_string(), "nothing cached");
}

#[test]
fn who_does_not_lend_or_shares_an_agent_is_no_holder() {
    let prompt = sequence(0, 10);
    let mut placement = in_mode(Mode::Kv, 4);
    lend(&mut placement, 1);
    // One agent has two workers.
    let profile = Profile { lends: Some(Label(0)), ..Profile::default() };
    assert!(placement.set_profile(rank(1), profile));
    for number in [0, 2] {
        placement.apply(rank(number), LIFE, &on(Medium::Host, &prompt));
    }
    for number in [1, 3] {
        let asked = PlacementRequest { pinned: Some(rank(number)), ..request(&prompt) };
        assert!(pick(&mut placement, &asked).holders.is_empty(), "{number}");
    }
}

#[test]
fn blocks_on_the_disk_of_another_are_fetched_where_its_disk_and_the_way_are_fast() {
    let prompt = sequence(0, 40);
    let (near, quick) = (cost(1_000, 100), cost(500, 200));
    // 20 blocks take 20 ms to compute.
    for (disk, peer, fetched) in [
        (quick, near, 40),
        (cost(0, 600), near, 40),
        // The disk alone saves a quarter against computing, and with the way it does not.
        (cost(0, 750), near, 20),
        (quick, cost(1_000, 700), 20),
        (cost(19_000, 1), near, 20),
        (cost(LoadCost::NEVER_US, 0), near, 20),
        // Nobody knows how fast it is.
        (LoadCost::default(), near, 20),
        (quick, cost(LoadCost::NEVER_US, 0), 0),
    ] {
        let mut placement = in_mode(Mode::Kv, 2);
        lend(&mut placement, 2);
        placement.apply(rank(0), LIFE, &stored(&prompt[..5]));
        placement.apply(rank(0), LIFE, &on(Medium::Host, &prompt[5..20]));
        placement.apply(rank(0), LIFE, &on(Medium::Disk, &prompt[20..]));
        report(&mut placement, 0, TierCosts { disk, ..TierCosts::default() });
        report(&mut placement, 1, TierCosts { peer, ..TierCosts::default() });
        let asked = PlacementRequest { pinned: Some(rank(1)), ..request(&prompt) };
        let decision = pick(&mut placement, &asked);
        assert_eq!(decision.sources.fetched, fetched, "{disk:?} {peer:?}");
        let blocks = fetched.max(20);
        assert_eq!(decision.holders[..], [Holder { worker: rank(0), blocks }], "{disk:?} {peer:?}");
    }
}

#[test]
fn a_prompt_that_is_on_a_disk_alone_is_fetched_too_and_memory_goes_before_it() {
    let prompt = sequence(0, 40);
    let mut placement = in_mode(Mode::Kv, 3);
    lend(&mut placement, 3);
    placement.apply(rank(0), LIFE, &on(Medium::Disk, &prompt));
    let costs = TierCosts { disk: cost(0, 100), peer: cost(0, 100), ..TierCosts::default() };
    (0..3).for_each(|number| report(&mut placement, number, costs));
    let asked = PlacementRequest { pinned: Some(rank(2)), ..request(&prompt) };
    let decision = pick(&mut placement, &asked);
    assert_eq!(decision.sources.to_string(), format!("40 blocks from worker {}", rank(0)));
    placement.apply(rank(1), LIFE, &on(Medium::Host, &prompt));
    let decision = pick(&mut placement, &asked);
    assert_eq!(decision.sources.to_string(), format!("40 blocks from worker {}", rank(1)));
    // The other has the same on disk, which nobody needs.
    assert_eq!(decision.holders[..], [Holder { worker: rank(1), blocks: 40 }]);
}

#[test]
fn without_a_time_to_compute_a_block_nobody_waits_for_the_disk_of_another() {
    let prompt = sequence(0, 40);
    let mut placement = in_mode(Mode::Kv, 2);
    lend(&mut placement, 2);
    placement.apply(rank(0), LIFE, &on(Medium::Disk, &prompt));
    report(&mut placement, 0, TierCosts { disk: cost(0, 1), ..TierCosts::default() });
    let asked = PlacementRequest { pinned: Some(rank(1)), ..request(&prompt) };
    let decision = pick(&mut placement, &asked);
    assert_eq!((decision.sources.fetched, decision.holders.len()), (0, 0));
}

#[test]
fn predicted_times_have_the_time_to_load() {
    let settings = PlacementSettings { cost: CostModel::Time, ..PlacementSettings::default() };
    let mut placement = placement(settings, 2);
    // Worker 0 takes 1 ms a token, 16 ms a block.
    teach(&mut placement, 2);
    let prompt = sequence(0, 40);
    let ttft = |placement: &mut Placement, disk: LoadCost| {
        let costs = TierCosts { compute_ns: 16_000_000, disk, ..TierCosts::default() };
        assert!(placement.report_load(rank(0), LIFE, Load { costs, ..Load::default() }));
        let asked = PlacementRequest { pinned: Some(rank(0)), ..request(&prompt) };
        let decision = placement.pick(&asked, TAUGHT, 0).unwrap();
        placement.release(decision.booking);
        decision.predicted.expect("enough was seen").ttft_ms
    };
    placement.apply(rank(0), LIFE, &on(Medium::Disk, &prompt));
    let fast = ttft(&mut placement, cost(0, 1_000));
    let slow = ttft(&mut placement, cost(0, 8_000));
    let never = ttft(&mut placement, cost(0, 20_000));
    assert!((slow - fast - 280.0).abs() < 20.0, "{fast} {slow}");
    assert!((never / 640.0 - 1.0).abs() < 0.1, "{never}");
}

#[test]
fn what_an_agent_had_rather_compute_is_not_planned_to_be_loaded() {
    let settings = PlacementSettings { cost: CostModel::Time, ..PlacementSettings::default() };
    let mut placement = placement(settings, 2);
    teach(&mut placement, 2);
    lend(&mut placement, 2);
    let prompt = sequence(0, 40);
    // Both know all of it in an object store, one has it in memory too.
    placement.apply(rank(0), LIFE, &on(Medium::Host, &prompt));
    placement.apply(rank(1), LIFE, &on(Medium::Remote, &prompt));
    let (remote, peer) = (cost(30_000, 1_100), cost(1_000, 100));
    report(&mut placement, 1, TierCosts { remote, peer, ..TierCosts::default() });
    let asked = PlacementRequest { pinned: Some(rank(1)), ..request(&prompt) };
    // By the learnt 16 ms a block the object store would do; the agent goes by 1 ms.
    let decision = placement.pick(&asked, TAUGHT, 0).unwrap();
    assert_eq!(decision.sources.to_string(), format!("40 blocks from worker {}", rank(0)));
    assert_eq!(decision.holders[..], [Holder { worker: rank(0), blocks: 40 }]);
}

#[test]
fn what_was_loaded_says_nothing_of_the_speed() {
    let settings = PlacementSettings { cost: CostModel::Time, ..PlacementSettings::default() };
    let mut placement = placement(settings, 1);
    teach(&mut placement, 1);
    let before = placement.speed(rank(0));
    let prompt = sequence(0, 40);
    placement.apply(rank(0), LIFE, &on(Medium::Host, &prompt[..30]));
    let decision = placement.pick(&request(&prompt), TAUGHT, 0).unwrap();
    assert_eq!(decision.sources.blocks(), 30);
    let late = TAUGHT.after(Duration::from_secs(30));
    assert!(placement.prefill_done(decision.booking, late));
    assert_eq!(placement.speed(rank(0)), before);
}

/// Blocks, costs and load of workers, drawn at random.
fn any_worker() -> impl Strategy<Value = ([usize; 3], [u64; 4], bool)> {
    let held = [0..20_usize, 0..20_usize, 0..20_usize];
    (held, [0..5_000_u64, 0..5_000_u64, 0..5_000_u64, 0..5_000_u64], any::<bool>())
}

proptest! {
    /// No worker costs more because it holds blocks in its tiers or others lend them: a load that does
    /// not pay is left alone. And what a decision says of its sources is true.
    #[test]
    fn tiers_and_lenders_never_make_a_worker_dearer(
        workers in vec(any_worker(), 1..6),
        timed: bool,
        blocks in 1..60_u64,
    ) {
        let prompt = sequence(0, blocks);
        let cost = if timed { CostModel::Time } else { CostModel::Blocks };
        let settings = PlacementSettings { cost, ..PlacementSettings::default() };
        let count = workers.len() as u64;
        let [mut bare, mut tiered] = [(); 2].map(|()| placement(settings.clone(), count));
        for placement in [&mut bare, &mut tiered] {
            if timed {
                teach(placement, count);
            }
        }
        for (number, ([device, host, disk], us, lends)) in (0..).zip(&workers) {
            let ends = [*device, device + host, device + host + disk];
            let [device, host, disk] = ends.map(|end| end.min(prompt.len()));
            for placement in [&mut bare, &mut tiered] {
                placement.apply(rank(number), LIFE, &stored(&prompt[..device]));
            }
            tiered.apply(rank(number), LIFE, &on(Medium::Host, &prompt[device..host]));
            tiered.apply(rank(number), LIFE, &on(Medium::Disk, &prompt[host..disk]));
            let costs = TierCosts {
                host: self::cost(0, us[0] / 10),
                disk: self::cost(us[1], us[2]),
                ..peers(self::cost(us[3], us[0]), [pair(1, self::cost(us[2], us[1]))])
            };
            report(&mut tiered, number, costs);
            if *lends {
                let profile = Profile { lends: Some(Label(number)), ..Profile::default() };
                tiered.set_profile(rank(number), profile);
            }
        }
        let asked = PlacementRequest { explain: true, ..request(&prompt) };
        let plain = bare.pick(&asked, TAUGHT, 1).unwrap();
        let decision = tiered.pick(&asked, TAUGHT, 1).unwrap();
        for (one, other) in decision.candidates.iter().zip(&plain.candidates) {
            prop_assert!(one.score.total <= other.score.total + 1e-6, "{one:?} {other:?}");
            prop_assert!(one.sources.own.blocks() <= one.overlap.blocks());
            prop_assert!(one.sources.blocks() as usize <= prompt.len());
            prop_assert_eq!(one.sources.from.is_some(), one.sources.fetched > 0);
        }
        prop_assert!(decision.holders.iter().all(|holder| holder.worker != decision.worker));
        prop_assert!(decision.holders.is_sorted_by(|one, next| one.blocks >= next.blocks));
        let fetches = decision.sources.from.is_some();
        prop_assert!(!fetches || decision.holders[0].worker == decision.sources.from.unwrap());
    }
}
