use super::*;
use crate::cost::{WeightSettings, Weights};
use crate::mode::Mode;
use proptest::{collection::vec, prelude::*, sample::select};
use stator_protos::WorkerId;
use stator_protos::discovery::WorkerRecord;
use stator_protos::kv_event::Stored;
use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::Duration;
use surveying::surveyed;

mod constraints;
mod halves;
mod hostile;
mod replicas;
mod reusing;
mod splitting;
mod surveying;
mod timing;

const LIFE: Generation = Generation(1);
const BLOCK_SIZE: u32 = 16;

fn rank(number: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(number), rank: 0 }
}

fn worker(number: u64) -> Worker {
    let record = WorkerRecord { worker: rank(number), generation: LIFE, total_blocks: 100 };
    Worker::new(&record, true)
}

/// `workers` idle workers, numbered from 0.
fn placement(settings: PlacementSettings, workers: u64) -> Placement {
    let mut placement = Placement::new(settings);
    for number in 0..workers {
        assert!(placement.worker_up(worker(number)));
    }
    placement
}

fn in_mode(mode: Mode, workers: u64) -> Placement {
    placement(PlacementSettings { mode, ..PlacementSettings::default() }, workers)
}

fn sequence(from: u64, blocks: u64) -> Vec<SequenceHash> {
    (from..from + blocks).map(SequenceHash).collect()
}

fn stored(hashes: &[SequenceHash]) -> KvEvent {
    KvEvent::Stored(Stored {
        hashes: hashes.iter().map(|hash| hash.0).collect(),
        parent: None,
        tokens: Vec::new(),
        block_size: BLOCK_SIZE,
        medium: Medium::Device,
        lora_name: None,
    })
}

/// A request whose prompt is exactly these blocks.
fn request(sequence: &[SequenceHash]) -> PlacementRequest<'_> {
    let prompt_tokens = sequence.len() as u32 * BLOCK_SIZE;
    PlacementRequest { sequence, prompt_tokens, ..PlacementRequest::default() }
}

#[track_caller]
fn pick(placement: &mut Placement, request: &PlacementRequest<'_>) -> Decision {
    placement.pick(request, Time::default(), 0).unwrap()
}

/// The numbers of the workers that so many equal requests go to.
fn picks<const N: usize>(placement: &mut Placement, request: &PlacementRequest<'_>) -> [u64; N] {
    let mut seed = 0;
    [(); N].map(|()| {
        seed += 1;
        placement.pick(request, Time::default(), seed).unwrap().worker.worker.0
    })
}

#[test]
fn a_request_goes_where_its_prefix_is() {
    let mut placement = in_mode(Mode::Kv, 4);
    let prompt = sequence(0, 10);
    assert_eq!(placement.apply(rank(2), LIFE, &stored(&prompt[..6])), EventEffect::Yes);
    let decision =
        pick(&mut placement, &PlacementRequest { prompt_tokens: 165, ..request(&prompt) });
    assert_eq!((decision.worker, decision.prefill), (rank(2), None));
    assert_eq!((decision.overlap_blocks, decision.cached_tokens), (6, 96));
    let expected = InFlight { requests: 1, prefill_tokens: 69, blocks: 11 };
    assert_eq!(placement.in_flight(rank(2)), expected);
    assert!(decision.candidates.is_empty(), "nobody asked why");
}

#[test]
fn a_decision_explains_itself_when_asked() {
    let mut placement = in_mode(Mode::Kv, 2);
    let prompt = sequence(0, 10);
    placement.apply(rank(1), LIFE, &stored(&prompt[..6]));
    let asked = PlacementRequest { explain: true, ..request(&prompt) };
    let decision = pick(&mut placement, &asked);
    let totals: Vec<_> = decision.candidates.iter().map(|c| (c.worker, c.score.total)).collect();
    assert_eq!(totals, [(rank(0), 20.0), (rank(1), 14.0)]);

    let next = pick(&mut placement, &asked).candidates[1];
    assert_eq!((next.active_blocks, next.in_flight.requests), (10, 1));
    // 4 blocks of backlog, 4 of its own, 10 in use and shared.
    assert_eq!(next.score.total, 18.0);
}

#[test]
fn what_is_booked_counts_for_the_next_request() {
    let mut placement = in_mode(Mode::Kv, 2);
    let first = pick(&mut placement, &request(&sequence(0, 10)));
    let second = pick(&mut placement, &request(&sequence(100, 10)));
    assert_ne!(first.worker, second.worker);
    assert!(
        placement.prefill_done(first.booking, Time::default())
            && placement.output_block(first.booking, Time::default())
    );
    let expected = InFlight { requests: 1, prefill_tokens: 0, blocks: 11 };
    assert_eq!(placement.in_flight(first.worker), expected);
    assert!(placement.release(first.booking) && !placement.release(first.booking));
    assert_eq!(pick(&mut placement, &request(&sequence(200, 10))).worker, first.worker);
}

#[test]
fn a_running_request_draws_those_that_share_its_prefix() {
    let mut placement = in_mode(Mode::Kv, 2);
    let prompt = sequence(0, 40);
    let whole = PlacementRequest { prompt_tokens: 41 * BLOCK_SIZE, ..request(&prompt) };
    let first = pick(&mut placement, &whole);
    placement.prefill_done(first.booking, Time::default());
    placement.apply(first.worker, LIFE, &stored(&prompt));
    assert_eq!(pick(&mut placement, &whole).worker, first.worker);
    assert_eq!(placement.in_flight(first.worker).blocks, 42);

    let settings = WeightSettings { assume_kv_reuse: false, ..WeightSettings::default() };
    let weights = Weights::new(settings).unwrap();
    let alone = PlacementRequest { weights: Some(&weights), ..whole };
    // Counted anew, 1 block to compute, 42 in use and 41 more cost more than 41 and 41.
    assert_ne!(pick(&mut placement, &alone).worker, first.worker);
}

#[test]
fn round_robin_takes_each_in_turn_and_skips_who_may_not() {
    let mut placement = in_mode(Mode::RoundRobin, 4);
    let prompt = sequence(0, 1);
    assert_eq!(picks(&mut placement, &request(&prompt)), [0, 1, 2, 3, 0, 1]);
    placement.worker_up(Worker { accepting: false, ..worker(2) });
    assert_eq!(picks(&mut placement, &request(&prompt)), [3, 0, 1, 3]);
    placement.worker_down(rank(0));
    let excluded = [rank(1)];
    let request = PlacementRequest { excluded: &excluded, ..request(&prompt) };
    assert_eq!(picks(&mut placement, &request), [3, 3]);
    let pinned = PlacementRequest { pinned: Some(rank(1)), excluded: &[], ..request };
    assert_eq!(picks(&mut placement, &pinned), [1]);
}

#[test]
fn suspects_are_passed_over_where_others_can_take_a_request() {
    for mode in [Mode::RoundRobin, Mode::LeastLoaded, Mode::Kv] {
        let mut placement = in_mode(mode, 4);
        let prompt = sequence(0, 1);
        let suspect = |number, suspect| Worker { suspect, ..worker(number) };
        for number in [1, 2] {
            placement.worker_up(suspect(number, true));
        }
        let mut round: [u64; 6] = picks(&mut placement, &request(&prompt));
        round.sort_unstable();
        assert_eq!((round[0], round[5]), (0, 3), "{mode:?}");
        assert!(!round.contains(&1) && !round.contains(&2), "{mode:?}: {round:?}");
        // A request that no other may take, and one that names it.
        let excluded = [rank(0), rank(3)];
        let only = PlacementRequest { excluded: &excluded, ..request(&prompt) };
        let [one, other] = picks(&mut placement, &only);
        assert!([1, 2].contains(&one) && [1, 2].contains(&other), "{mode:?}");
        let pinned = PlacementRequest { pinned: Some(rank(1)), ..request(&prompt) };
        assert_eq!(picks(&mut placement, &pinned), [1], "{mode:?}");
        // Where most are suspect, discovery is: the one that is left does not get everything.
        placement.worker_up(suspect(0, true));
        let round: [u64; 8] = picks(&mut placement, &request(&prompt));
        assert!((0..4).all(|number| round.contains(&number)), "{mode:?}: {round:?}");
        // Gone, not accepting, or beyond doubt again: it counts no more.
        placement.worker_down(rank(0));
        placement.worker_up(Worker { accepting: false, ..suspect(1, true) });
        let round: [u64; 2] = picks(&mut placement, &request(&prompt));
        assert_eq!(round, [3, 3], "{mode:?}");
        placement.worker_up(suspect(2, false));
        let mut round: [u64; 4] = picks(&mut placement, &request(&prompt));
        round.sort_unstable();
        assert_eq!((round[0], round[3]), (2, 3), "{mode:?}");
    }
}

#[test]
fn least_loaded_takes_the_fewest_requests() {
    let mut placement = in_mode(Mode::LeastLoaded, 3);
    let prompt = sequence(0, 1);
    for _ in 0..3 {
        let mut round: [u64; 3] = picks(&mut placement, &request(&prompt));
        round.sort_unstable();
        assert_eq!(round, [0, 1, 2]);
    }
    let load = Load { running: 8, ..Load::default() };
    assert!(placement.report_load(rank(1), LIFE, load));
    let next: [u64; 4] = picks(&mut placement, &request(&prompt));
    assert!(!next.contains(&1), "others keep it busy");
}

#[test]
fn power_of_two_never_takes_the_worst() {
    let mut placement = in_mode(Mode::PowerOfTwo, 3);
    let load = Load { waiting: 1000, ..Load::default() };
    placement.report_load(rank(0), LIFE, load);
    let chosen: [u64; 100] = picks(&mut placement, &request(&sequence(0, 1)));
    assert_eq!(chosen.into_iter().collect::<HashSet<_>>(), HashSet::from([1, 2]));
    let mut placement = in_mode(Mode::PowerOfTwo, 1);
    assert_eq!(picks(&mut placement, &request(&[])), [0]);
}

#[test]
fn random_takes_them_all_alike() {
    let mut placement = in_mode(Mode::Random, 4);
    let mut counts = [0; 4];
    for worker in picks::<4000>(&mut placement, &request(&[])) {
        counts[worker as usize] += 1;
    }
    assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
}

#[test]
fn the_reason_why_nobody_is_chosen_is_told() {
    let mut placement = placement(PlacementSettings::default(), 0);
    let prompt = sequence(0, 2);
    #[track_caller]
    fn check(placement: &mut Placement, request: &PlacementRequest<'_>, expected: PickError) {
        assert_eq!(placement.pick(request, Time::default(), 0), Err(expected));
        assert_eq!(placement.stats().bookings, 0, "nothing is booked");
    }
    check(&mut placement, &request(&prompt), PickError::NoWorkers);
    placement.worker_up(worker(1));
    placement.worker_up(worker(2));
    let excluded = [rank(1), rank(2)];
    let failed = PlacementRequest { excluded: &excluded, ..request(&prompt) };
    check(&mut placement, &failed, PickError::NoWorkers);
    let pinned = |number| PlacementRequest { pinned: Some(rank(number)), ..request(&prompt) };
    check(&mut placement, &pinned(3), PickError::PinnedUnavailable { worker: rank(3) });

    placement.set_busy(BusyThresholds::new(Some(0.5), None).unwrap());
    let load = Load { used_blocks: 51, total_blocks: 100, ..Load::default() };
    placement.report_load(rank(1), LIFE, load);
    check(&mut placement, &pinned(1), PickError::AllBusy { workers: 1 });
    placement.report_load(rank(2), LIFE, load);
    check(&mut placement, &request(&prompt), PickError::AllBusy { workers: 2 });
    placement.report_load(rank(2), LIFE, Load { used_blocks: 50, ..load });
    assert_eq!(pick(&mut placement, &request(&prompt)).worker, rank(2));
}

#[test]
fn a_backlog_makes_a_worker_busy_too() {
    let mut placement = in_mode(Mode::Kv, 1);
    placement.set_busy(BusyThresholds::new(None, Some(159)).unwrap());
    let first = pick(&mut placement, &request(&sequence(0, 10)));
    let next = placement.pick(&request(&[]), Time::default(), 0);
    assert_eq!(next, Err(PickError::AllBusy { workers: 1 }));
    placement.prefill_done(first.booking, Time::default());
    pick(&mut placement, &request(&[]));
    for share in [f64::NAN, -0.1, 1.1] {
        assert!(BusyThresholds::new(Some(share), None).is_err());
    }
}

#[test]
fn a_report_counts_only_what_others_did_and_only_for_a_while() {
    let mut placement = in_mode(Mode::Kv, 1);
    pick(&mut placement, &request(&sequence(0, 10)));
    let load = Load {
        running: 1,
        waiting: 2,
        used_blocks: 30,
        total_blocks: 100,
        pending_prefill_tokens: 200,
        ..Load::default()
    };
    assert!(placement.report_load(rank(0), LIFE, load));
    let reported = InFlight { requests: 3, prefill_tokens: 200, blocks: 30 };
    assert_eq!(placement.in_flight(rank(0)), reported);
    placement.expire(Time::from_millis(10_000));
    assert_eq!(placement.in_flight(rank(0)), reported);
    placement.expire(Time::from_millis(10_001));
    let booked = InFlight { requests: 1, prefill_tokens: 160, blocks: 10 };
    assert_eq!(placement.in_flight(rank(0)), booked);

    assert!(!placement.report_load(rank(0), Generation(9), load));
    assert!(!placement.report_load(rank(7), LIFE, load));
}

#[test]
fn a_new_life_starts_with_nothing() {
    let mut placement = in_mode(Mode::Kv, 1);
    let prompt = sequence(0, 4);
    placement.apply(rank(0), LIFE, &stored(&prompt));
    let old = pick(&mut placement, &request(&prompt));
    let next = Generation(2);
    assert!(placement.worker_up(Worker { generation: next, ..worker(0) }));
    assert_eq!(placement.in_flight(rank(0)), InFlight::default());
    assert!(!placement.release(old.booking));
    assert!(!placement.worker_up(worker(0)), "the old life is over");
    assert_eq!(placement.apply(rank(0), LIFE, &stored(&prompt)), EventEffect::Stale);
    assert_eq!(pick(&mut placement, &request(&prompt)).overlap_blocks, 0);
    assert_eq!(placement.stats().ignored_events, 1);
}

#[test]
fn events_may_tell_of_a_new_life_before_discovery_does() {
    let mut placement = in_mode(Mode::Kv, 1);
    let (prompt, next) = (sequence(0, 4), Generation(2));
    placement.apply(rank(0), next, &stored(&prompt));
    assert!(placement.worker_up(Worker { generation: next, ..worker(0) }));
    assert_eq!(pick(&mut placement, &request(&prompt)).overlap_blocks, 4);
}

#[test]
fn a_gap_forgets_blocks_until_a_snapshot_comes() {
    let mut placement = in_mode(Mode::Kv, 1);
    let prompt = sequence(0, 4);
    placement.apply(rank(0), LIFE, &stored(&prompt));
    placement.unknown(rank(0));
    assert_eq!(placement.apply(rank(0), LIFE, &stored(&prompt)), EventEffect::UnknownState);
    assert_eq!(pick(&mut placement, &request(&prompt)).overlap_blocks, 0);
    let snapshot = prompt[..3].iter().map(|&hash| (hash, Medium::Device));
    assert_eq!(placement.replace(rank(0), LIFE, snapshot), EventEffect::Yes);
    assert_eq!(pick(&mut placement, &request(&prompt)).overlap_blocks, 3);
    assert_eq!(placement.stats().ignored_events, 1);
}

#[test]
fn blocks_of_another_size_mean_nothing() {
    let block_size = NonZeroU32::new(32).unwrap();
    let mut placement =
        placement(PlacementSettings { block_size, ..PlacementSettings::default() }, 1);
    let prompt = sequence(0, 4);
    assert_eq!(placement.apply(rank(0), LIFE, &stored(&prompt)), EventEffect::BlockSize);
    assert_eq!(pick(&mut placement, &request(&prompt)).overlap_blocks, 0);
}

#[test]
fn a_silent_worker_is_taken_to_hold_what_it_was_sent() {
    let mut placement = Placement::new(PlacementSettings::default());
    placement.worker_up(Worker { publishes_events: false, ..worker(0) });
    let prompt = sequence(0, 4);
    pick(&mut placement, &request(&prompt));
    let at = |seconds| Time(Duration::from_secs(seconds));
    let next = placement.pick(&request(&prompt), at(119), 0).unwrap();
    assert_eq!((next.overlap_blocks, next.cached_tokens), (4, 64));
    assert_eq!(placement.pick(&request(&prompt), at(300), 0).unwrap().overlap_blocks, 0);

    let early_prediction_ttl = Some(Duration::from_secs(5));
    let mut placement = super::tests::placement(
        PlacementSettings { early_prediction_ttl, ..PlacementSettings::default() },
        1,
    );
    pick(&mut placement, &request(&prompt));
    assert_eq!(placement.pick(&request(&prompt), at(4), 0).unwrap().overlap_blocks, 4);
    assert_eq!(placement.pick(&request(&prompt), at(10), 0).unwrap().overlap_blocks, 0);
}

#[test]
fn a_lost_request_gives_its_place_back() {
    let mut placement = in_mode(Mode::Kv, 1);
    pick(&mut placement, &request(&sequence(0, 4)));
    assert_eq!(placement.expire(Time(Duration::from_secs(299))), 0);
    assert_eq!(placement.expire(Time(Duration::from_secs(300))), 1);
    let stats = placement.stats();
    assert_eq!((stats.workers, stats.bookings, stats.expired_bookings), (1, 0, 1));
}

/// What one of a random run of calls does.
#[derive(Clone, Debug)]
enum Call {
    Up { number: u64, accepting: bool },
    Down { number: u64 },
    Store { number: u64, from: u64, blocks: u64 },
    Report { number: u64, load: Box<Load> },
    Pick { from: u64, blocks: u64, tokens: u32, excluded: Vec<u64>, seed: u64 },
    PrefillDone { booking: u64 },
    OutputBlock { booking: u64 },
    Release { booking: u64 },
}

fn any_call() -> impl Strategy<Value = Call> {
    let number = || 0u64..6;
    let from = || select(vec![0u64, 100, 200]);
    let load = (0u32..9, 0u32..50, 0u64..500).prop_map(|(running, used_blocks, tokens)| Load {
        running,
        used_blocks,
        total_blocks: 100,
        pending_prefill_tokens: tokens,
        ..Load::default()
    });
    let pick = (from(), 0u64..20, 0u32..40, vec(number(), 0..3), any::<u64>());
    prop_oneof![
        3 => (number(), any::<bool>()).prop_map(|(number, accepting)| Call::Up { number, accepting }),
        1 => number().prop_map(|number| Call::Down { number }),
        4 => (number(), from(), 0u64..20)
            .prop_map(|(number, from, blocks)| Call::Store { number, from, blocks }),
        2 => (number(), load).prop_map(|(number, load)| Call::Report { number, load: Box::new(load) }),
        8 => pick.prop_map(|(from, blocks, tokens, excluded, seed)| {
            Call::Pick { from, blocks, tokens, excluded, seed }
        }),
        3 => (1u64..40).prop_map(|booking| Call::PrefillDone { booking }),
        3 => (1u64..40).prop_map(|booking| Call::OutputBlock { booking }),
        3 => (1u64..40).prop_map(|booking| Call::Release { booking }),
    ]
}

/// Makes a call; a pick is checked against the least cost that its own candidates tell of.
fn call(placement: &mut Placement, call: &Call) -> Option<Result<Decision, PickError>> {
    match call {
        Call::Up { number, accepting } => {
            placement.worker_up(Worker { accepting: *accepting, ..worker(*number) });
        }
        Call::Down { number } => {
            placement.worker_down(rank(*number));
        }
        Call::Store { number, from, blocks } => {
            placement.apply(rank(*number), LIFE, &stored(&sequence(*from, *blocks)));
        }
        Call::Report { number, load } => {
            placement.report_load(rank(*number), LIFE, **load);
        }
        Call::Pick { from, blocks, tokens, excluded, seed } => {
            let sequence = sequence(*from, *blocks);
            let excluded: Vec<_> = excluded.iter().copied().map(rank).collect();
            let base = request(&sequence);
            let prompt_tokens = base.prompt_tokens + tokens;
            let request =
                PlacementRequest { prompt_tokens, excluded: &excluded, explain: true, ..base };
            return Some(placement.pick(&request, Time::default(), *seed));
        }
        Call::PrefillDone { booking } => {
            placement.prefill_done(BookingId(*booking), Time::default());
        }
        Call::OutputBlock { booking } => {
            placement.output_block(BookingId(*booking), Time::default());
        }
        Call::Release { booking } => {
            placement.release(BookingId(*booking));
        }
    }
    None
}

/// The cost of a worker, from the questions that anybody can ask.
fn cost_of(placement: &Placement, number: u64, sequence: &[SequenceHash], tokens: u32) -> f64 {
    let InFlight { prefill_tokens, blocks, .. } = placement.in_flight(rank(number));
    let mut out = Overlaps::default();
    placement.index().overlap(sequence, &mut out);
    let overlap = out.of(rank(number)).blocks();
    let slot = placement.fleet.slot(rank(number)).expect("the worker is known");
    let in_use = placement.tracker.running().overlap(slot, sequence);
    let prompt_blocks = tokens.div_ceil(BLOCK_SIZE);
    let prefill = (prefill_tokens as f64 + f64::from(tokens)) / f64::from(BLOCK_SIZE);
    (prefill - f64::from(overlap)).max(0.0) + blocks as f64 + f64::from(prompt_blocks - in_use)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever came before, a pick takes a worker that may and that costs the least.
    #[test]
    fn a_pick_is_the_least_cost_of_all(calls in vec(any_call(), 0..80)) {
        let mut placement = in_mode(Mode::Kv, 3);
        for each in &calls {
            let Call::Pick { from, blocks, tokens, excluded, .. } = each else {
                call(&mut placement, each);
                continue;
            };
            let (sequence, tokens) = (sequence(*from, *blocks), *blocks as u32 * BLOCK_SIZE + tokens);
            let costs: Vec<_> = (0..6)
                .filter(|number| {
                    let state = placement.fleet().worker(rank(*number));
                    state.is_some_and(|state| state.worker.accepting) && !excluded.contains(number)
                })
                .map(|number| (rank(number), cost_of(&placement, number, &sequence, tokens)))
                .collect();
            // Without a word about it, the same costs decide.
            let plain = PlacementRequest { prompt_tokens: tokens, ..request(&sequence) };
            let surveyed = surveyed(&mut placement, &plain, Time::default());
            if let Ok(decision) = placement.pick(&plain, Time::default(), 7) {
                let least = surveyed.iter().map(|found| found.1.0).min_by(f64::total_cmp);
                let chosen = surveyed.iter().find(|found| found.0 == decision.worker);
                prop_assert_eq!(chosen.map(|found| found.1.0), least);
                placement.release(decision.booking);
            }
            match call(&mut placement, each).unwrap() {
                Ok(decision) => {
                    let told = decision.candidates.iter().map(|c| (c.worker, c.score.total));
                    prop_assert_eq!(told.collect::<Vec<_>>(), costs.clone());
                    let least = costs.iter().map(|cost| cost.1).min_by(f64::total_cmp).unwrap();
                    prop_assert!(costs.contains(&(decision.worker, least)));
                    prop_assert!(decision.cached_tokens <= tokens);
                }
                Err(error) => {
                    prop_assert_eq!((error, costs.len()), (PickError::NoWorkers, 0));
                }
            }
        }
    }

    /// The same calls give the same answers in every mode, and leave nothing behind.
    #[test]
    fn calls_repeat_exactly_and_leave_nothing(calls in vec(any_call(), 0..80), mode in select(&Mode::ALL[..])) {
        let (mut one, mut other) = (in_mode(mode, 3), in_mode(mode, 3));
        let mut bookings = HashSet::new();
        for each in &calls {
            let answer = call(&mut one, each);
            prop_assert_eq!(&answer, &call(&mut other, each));
            if let Some(Ok(decision)) = answer {
                prop_assert!(bookings.insert(decision.booking), "a booking came twice");
            }
        }
        for booking in bookings {
            one.release(booking);
        }
        prop_assert_eq!(one.stats().bookings, 0);
        for number in 0..6 {
            let slot = one.fleet.slot(rank(number));
            let booked = slot.map(|slot| one.tracker.loads().booked(slot)).unwrap_or_default();
            prop_assert_eq!(booked, InFlight::default());
            one.worker_down(rank(number));
        }
        let PlacementStats { workers, index_blocks, predicted_blocks, dropped_blocks, .. } = one.stats();
        prop_assert_eq!((workers, index_blocks, predicted_blocks, dropped_blocks), (0, 0, 0, 0));
    }
}
