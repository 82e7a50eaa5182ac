use super::*;
use proptest::{collection::vec, option, prelude::*};
use stator_protos::WorkerId;

const OTHER: WorkerRank = WorkerRank { worker: WorkerId(7), rank: 0 };
const WEIGHTS: [f64; 4] = [1.0, 0.75, 0.25, 0.5];

/// Times in milliseconds: latency and for each block, of host, disk, remote and others.
fn loads(ms: [Option<(f64, f64)>; 4]) -> WorkerLoads {
    let time = |ms: Option<(f64, f64)>| {
        ms.map(|(latency, block)| LoadTime { latency_s: latency / 1e3, block_s: block / 1e3 })
    };
    let [host, disk, remote, peer] = ms.map(time);
    let by_medium = [None, host, disk, remote];
    WorkerLoads { by_medium, peer, ..WorkerLoads::default() }
}

fn inputs<'a>(overlap: [u32; 4], loads: &'a WorkerLoads, lent: u32) -> ReuseInputs<'a> {
    let loan = Loan { worker: OTHER, blocks: lent, time: loads.peer, disk: None };
    let overlap = Overlap::new(overlap);
    ReuseInputs { overlap, loads, weights: WEIGHTS, loans: [Some(loan), None] }
}

/// Seconds to compute what is left of 100 blocks, at 10 ms each.
fn compute_s(saved: f64) -> f64 {
    (100.0 - saved).max(0.0) * 0.01
}

/// Seconds of a plan that loads for so long, as workers weigh it.
fn seconds(load_s: f64, saved: f64) -> f64 {
    load_s * 1.25 + compute_s(saved)
}

fn best(overlap: [u32; 4], loads: &WorkerLoads, lent: u32) -> ReusePlan {
    ReusePlan::best(&inputs(overlap, loads, lent), compute_s)
}

#[test]
fn a_tier_is_read_where_that_is_faster() {
    let quick = loads([Some((1.0, 1.0)), Some((5.0, 4.0)), None, None]);
    let plan = best([10, 20, 30, 0], &quick, 0);
    assert_eq!((plan.sources.own.blocks(), plan.saved), (60, 60.0));
    assert!((plan.load_s - 0.125).abs() < 1e-9, "tiers are read side by side");
    let slow = loads([Some((1.0, 1.0)), Some((5.0, 11.0)), None, None]);
    assert_eq!(best([10, 20, 30, 0], &slow, 0).sources.own.blocks(), 30);
    let broken = loads([Some((f64::INFINITY, 0.0)), None, None, None]);
    assert_eq!(best([10, 20, 30, 0], &broken, 0), ReusePlan::device(Overlap::new([10, 0, 0, 0])));
}

#[test]
fn what_was_not_measured_counts_by_its_weight() {
    let plan = best([10, 20, 40, 0], &WorkerLoads::default(), 0);
    assert_eq!((plan.saved, plan.load_s), (10.0 + 15.0 + 10.0, 0.0));
    assert_eq!(plan.sources.own.blocks(), 70);
}

#[test]
fn blocks_are_fetched_where_that_is_faster_than_the_own_disk_and_than_computing() {
    let near = loads([Some((0.0, 0.1)), Some((5.0, 8.0)), None, Some((2.0, 1.0))]);
    let plan = best([10, 20, 30, 0], &near, 80);
    assert_eq!((plan.sources.own.blocks(), plan.sources.fetched), (30, 50));
    let text = plan.sources.to_string();
    assert_eq!(text, format!("10 blocks device, 20 host, 50 from worker {OTHER}"));
    let far = loads([Some((0.0, 0.1)), Some((5.0, 8.0)), None, Some((2.0, 40.0))]);
    assert_eq!(best([10, 20, 30, 0], &far, 80).sources.fetched, 0);
    // Nothing beyond its own.
    assert_eq!(best([10, 20, 0, 0], &near, 30).sources.fetched, 0);
    assert_eq!(best([0; 4], &near, 0).sources.to_string(), "nothing cached");
    let fetched = best([0; 4], &near, 9).sources;
    assert_eq!(fetched.to_string(), format!("9 blocks from worker {OTHER}"));
}

/// Milliseconds, of latency and of each block.
fn time((latency, block): (f64, f64)) -> LoadTime {
    LoadTime { latency_s: latency / 1e3, block_s: block / 1e3 }
}

/// A loan of 40 blocks in memory, and one of 60 of which the last 20 are on a disk.
fn with_disk(loads: &WorkerLoads, disk: (f64, f64)) -> ReuseInputs<'_> {
    let mut inputs = inputs([10, 0, 0, 0], loads, 40);
    let part = DiskPart { blocks: 20, time: time(disk) };
    inputs.loans[1] = inputs.loans[0].map(|loan| Loan { blocks: 60, disk: Some(part), ..loan });
    inputs
}

#[test]
fn the_disk_of_another_is_read_where_that_and_the_way_are_faster_than_computing() {
    let loads = loads([None, None, None, Some((2.0, 1.0))]);
    let fetched = |disk| {
        let plan = ReusePlan::best(&with_disk(&loads, disk), compute_s);
        (plan.sources.fetched, (plan.load_s * 1e3).round())
    };
    // 20 blocks take 200 ms to compute: the way takes 20 of them, and a quarter is to be saved.
    assert_eq!(fetched((5.0, 6.0)), (50, 2.0 + 50.0 + 5.0 + 120.0));
    assert_eq!(fetched((5.0, 7.0)), (30, 32.0));
    assert_eq!(fetched((25.0, 6.0)), (30, 32.0));
    assert_eq!(fetched((f64::INFINITY, 0.0)), (30, 32.0));
}

#[test]
fn reports_of_agents_are_understood() {
    let never = LoadCost { latency_us: LoadCost::NEVER_US, block_ns: 0 };
    let disk = LoadCost { latency_us: 500, block_ns: 2_000 };
    let costs = TierCosts { compute_ns: 1_000_000, disk, remote: never, ..TierCosts::default() };
    let loads = WorkerLoads::new(&costs);
    assert_eq!((loads.compute_s, loads.peer, loads.block_bytes), (Some(1e-3), None, None));
    let [_, host, disk, remote] = loads.by_medium;
    assert_eq!(host, None);
    assert!((disk.unwrap().seconds(1000) - 2.5e-3).abs() < 1e-12);
    assert_eq!(remote.unwrap().seconds(0), f64::INFINITY);
}

proptest! {
    /// Of the lenders those with most blocks are kept, of each agent the first worker, and of the
    /// agents the first ones.
    #[test]
    fn the_best_holders_are_those_of_a_sorted_list(
        lenders in vec((0..9_u64, 1..4_u32), 0..20),
    ) {
        let mut lenders: Vec<_> = (0..).zip(lenders).map(|(number, (agent, blocks))| {
            let worker = WorkerRank { worker: WorkerId(number * 7 % 20), rank: number as u16 };
            let holder = Holder { worker, blocks };
            BestHolder { slot: number as u32, holder, lends: Label(agent), disk: None }
        }).collect();
        let best = BestHolders::of(lenders.iter().copied());
        lenders.sort_by_key(|of| (std::cmp::Reverse(of.holder.blocks), of.holder.worker));
        let most = lenders.first().map_or(0, |first| first.holder.blocks);
        let mut wanted: Vec<BestHolder> = Vec::new();
        for lender in lenders.into_iter().filter(|of| of.holder.blocks == most) {
            if wanted.iter().all(|other| other.lends != lender.lends) {
                wanted.push(lender);
            }
        }
        wanted.truncate(KV_HOLDERS_MAX);
        prop_assert_eq!(best.iter().copied().collect::<Vec<_>>(), wanted);
    }

    /// A plan fetches blocks from another's disk only where that makes it faster.
    #[test]
    fn a_disk_of_another_never_makes_a_plan_slower(
        overlap in [0..30_u32, 0..30_u32, 0..30_u32, 0..30_u32],
        times in vec((0.0..50.0_f64, 0.0..20.0_f64), 4),
        (lent, more) in (0..100_u32, 1..60_u32),
        disk in (0.0..50.0_f64, 0.0..20.0_f64),
    ) {
        let times: Vec<_> = times.into_iter().map(Some).collect();
        let loads = loads(times.try_into().expect("there are four"));
        let without = inputs(overlap, &loads, lent);
        let part = DiskPart { blocks: more, time: time(disk) };
        let far = Loan { blocks: lent + more, disk: Some(part), ..without.loans[0].unwrap() };
        let with = ReuseInputs { loans: [without.loans[0], Some(far)], ..without };
        let seconds = |plan: &ReusePlan| seconds(plan.load_s, plan.saved);
        let (plan, without) =
            (ReusePlan::best(&with, compute_s), ReusePlan::best(&without, compute_s));
        prop_assert!(seconds(&plan) <= seconds(&without));
        prop_assert!(seconds(&plan) <= compute_s(f64::from(overlap[0])));
        if plan != without {
            let fetched = plan.sources.fetched;
            let least = far.seconds(fetched).unwrap();
            prop_assert_eq!(plan.sources.blocks(), lent + more);
            prop_assert!(plan.load_s >= least);
        }
    }

    /// No other end of the prefix, with or without lent blocks behind it, is faster, and
    /// neither is computing all of it.
    #[test]
    fn no_other_plan_is_faster(
        overlap in [0..30_u32, 0..30_u32, 0..30_u32, 0..30_u32],
        times in vec(option::of((0.0..50.0_f64, 0.0..20.0_f64)), 4),
        lent in 0..140_u32,
    ) {
        let times: [_; 4] = times.try_into().expect("there are four");
        let loads = loads(times);
        let plan = best(overlap, &loads, lent);
        let found = seconds(plan.load_s, plan.saved);
        prop_assert!(plan.sources.own.on(Medium::Device) == overlap[0]);
        for media in 1..=4_usize {
            for lends in [false, true] {
                let held: u32 = overlap[..media].iter().sum();
                let more = if lends { lent.saturating_sub(held) } else { 0 };
                let blocks = |at: usize| if at < 4 { overlap[at] } else { more };
                let read = (1..media).chain([4]).filter(|&at| blocks(at) > 0);
                let (mut load, mut saved) = (0.0_f64, f64::from(overlap[0]));
                for at in read {
                    let weight = WEIGHTS[at.min(3)];
                    match times[at - 1] {
                        Some((latency, block)) => {
                            load = load.max((latency + block * f64::from(blocks(at))) / 1e3);
                            saved += f64::from(blocks(at));
                        }
                        None => saved += weight * f64::from(blocks(at)),
                    }
                }
                prop_assert!(found <= seconds(load, saved) + 1e-9, "{media} {lends}");
            }
        }
        prop_assert!(found <= compute_s(f64::from(overlap[0])));
    }
}
