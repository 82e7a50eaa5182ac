use super::*;
use crate::plugin::RouteError;
use crate::testkit::{endpoint, life, program, rank};
use crate::{CacheConfig, HeaderView, Lora, Prompt, Subset, SubsetEntry};
use proptest::{collection::vec, prelude::*};
use stator_placement::{PeerLoad, WorkerHoldings};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Stored};

fn pool(endpoints: u8) -> Scheduler {
    let mut pool = Scheduler::new(program(), SchedulerSettings::default());
    pool.set_endpoints(&(1..=endpoints).map(endpoint).collect::<Vec<_>>());
    pool
}

fn sequence(from: u64, blocks: u64) -> Vec<SequenceHash> {
    (from..from + blocks).map(SequenceHash).collect()
}

fn asking(sequence: &[SequenceHash]) -> Request<'_> {
    let tokens = sequence.len() as u32 * 16;
    Request { prompt: Prompt { sequence, tokens, ..Prompt::default() }, ..Request::default() }
}

fn call(ms: u64, watched: bool) -> Call {
    Call { now: Time::from_millis(ms), seed: 7, watched, scores: false }
}

#[track_caller]
fn schedule(pool: &mut Scheduler, request: &Request<'_>, call: Call) -> (u64, String) {
    let decision = pool.schedule(request, call).expect("an endpoint takes it");
    (decision.ticket, decision.targets[0].pod.to_string())
}

fn in_flight(pool: &Scheduler) -> Vec<u64> {
    pool.endpoints().map(|(_, _, in_flight)| in_flight.requests).collect()
}

fn over(ticket: u64) -> RequestProgress<'static> {
    RequestProgress {
        ticket,
        output_tokens: None,
        cached_tokens: None,
        answered: true,
        served: None,
    }
}

fn stored(hashes: &[SequenceHash]) -> KvEvent {
    KvEvent::Stored(Stored {
        hashes: hashes.iter().map(|hash| hash.0).collect(),
        parent: None,
        tokens: Vec::new(),
        block_size: 16,
        medium: Medium::Device,
        lora_name: None,
    })
}

#[test]
fn the_endpoint_that_holds_the_prefix_takes_the_request() {
    let mut pool = pool(3);
    let blocks = sequence(1, 8);
    pool.set_life(rank(2), Generation(5));
    pool.prefixes().apply(rank(2), Generation(5), &[stored(&blocks)]);
    let decision = pool.schedule(&asking(&blocks), call(1, true)).expect("one takes it");
    assert_eq!(&*decision.targets[0].pod, "pod2");
    assert_eq!(decision.cached_tokens, 128);
}

#[test]
fn what_was_just_sent_counts_before_any_report() {
    let mut pool = pool(2);
    let (one, two) = (sequence(1, 4), sequence(100, 4));
    assert_eq!(schedule(&mut pool, &asking(&one), call(1, true)).1, "pod1");
    assert_eq!(schedule(&mut pool, &asking(&two), call(1, true)).1, "pod2");
    assert_eq!(in_flight(&pool), [1, 1]);
}

#[test]
fn requests_that_wait_at_an_engine_keep_others_away() {
    let mut pool = pool(2);
    let updated = Some(Time::from_millis(1));
    pool.report(rank(1), EngineLoad { waiting: 9, updated, ..EngineLoad::default() });
    for at in 2..12 {
        let blocks = sequence(100 * at, 4);
        let (_, pod) = schedule(&mut pool, &asking(&blocks), call(at, true));
        assert_eq!(pod, "pod2", "request {at}");
    }
}

#[test]
fn a_watched_request_holds_its_place_until_it_ends() {
    let mut pool = pool(1);
    let (ticket, _) = schedule(&mut pool, &asking(&sequence(1, 4)), call(1, true));
    let load = EngineLoad { updated: Some(Time::from_millis(900_000)), ..EngineLoad::default() };
    pool.report(rank(1), load);
    let now = Time::from_millis(900_000);
    pool.expire(now);
    assert_eq!((in_flight(&pool), pool.stats(now).placement.bookings), (vec![1], 1));
    pool.ended(&over(ticket), Time::from_millis(900_001));
    pool.ended(&over(ticket), Time::from_millis(900_002));
    assert_eq!(in_flight(&pool), [0]);
}

#[test]
fn an_unwatched_request_is_covered_by_a_later_report() {
    let mut pool = pool(1);
    schedule(&mut pool, &asking(&sequence(1, 4)), call(1000, false));
    let report = |pool: &mut Scheduler, ms| {
        let updated = Some(Time::from_millis(ms));
        pool.report(rank(1), EngineLoad { running: 1, updated, ..EngineLoad::default() });
        in_flight(pool)
    };
    assert_eq!(report(&mut pool, 1099), [1]);
    assert_eq!(report(&mut pool, 1100), [0]);
    assert_eq!(pool.stats(Time::from_millis(1100)).in_flight, 0);
}

#[test]
fn an_unwatched_request_without_reports_ends_with_its_lease() {
    let mut pool = pool(1);
    schedule(&mut pool, &asking(&sequence(1, 4)), call(0, false));
    pool.expire(Time::from_millis(59_999));
    assert_eq!(in_flight(&pool), [1]);
    pool.expire(Time::from_millis(60_000));
    assert_eq!(in_flight(&pool), [0]);
}

#[test]
fn only_what_the_data_plane_allows_is_chosen() {
    let mut pool = pool(3);
    let mut ask = |entries: Vec<SubsetEntry>| {
        let subset = Subset(entries);
        let request = Request { subset: Some(&subset), ..Request::default() };
        pool.schedule(&request, call(1, true)).map(|decision| decision.targets[0].pod.to_string())
    };
    let entry = |last: u8, port| SubsetEntry { ip: [10, 0, 0, last].into(), port };
    assert_eq!(ask(vec![entry(3, Some(8000))]), Ok("pod3".into()));
    assert_eq!(ask(vec![entry(2, None)]), Ok("pod2".into()));
    assert_eq!(ask(vec![entry(3, Some(8001))]), Err(ScheduleError::NoEndpoints));
    assert_eq!(ask(vec![]), Err(ScheduleError::NoEndpoints));
}

#[test]
fn what_an_agent_says_of_its_engine_stays_while_loads_come() {
    let mut pool = pool(1);
    let lora = Lora { max: 2, running: vec!["sql".into()], waiting: vec![] };
    let cache = CacheConfig { block_size: 16, blocks: 1000 };
    let has = Equipment { lora: Some(lora.clone()), cache: Some(cache), ..Equipment::default() };
    pool.set_equipment(rank(1), has);
    pool.set_life(rank(1), Generation(5));
    let load = Load { waiting: 3, total_blocks: 1000, used_blocks: 500, ..Load::default() };
    pool.report_agent(rank(1), Generation(5), load, Time::from_millis(1));
    let (_, known) = pool.endpoint(rank(1)).expect("it is there");
    assert_eq!((known.waiting, known.kv_usage), (3, 0.5));
    assert_eq!((&known.lora, known.cache), (&Some(lora), Some(cache)));
    pool.set_equipment(rank(1), Equipment::default());
    let (_, known) = pool.endpoint(rank(1)).expect("it is there");
    assert_eq!((&known.lora, known.cache), (&None, None));
}

#[test]
fn an_endpoint_whose_agent_drains_gets_nothing_new() {
    let mut pool = pool(2);
    pool.set_accepting(rank(1), false);
    for _ in 0..3 {
        assert_eq!(schedule(&mut pool, &asking(&sequence(1, 4)), call(1, true)).1, "pod2");
    }
    pool.set_accepting(rank(1), true);
    assert_eq!(schedule(&mut pool, &asking(&sequence(1, 4)), call(1, true)).1, "pod1");
}

#[test]
fn an_empty_pool_and_drained_filters_are_different_refusals() {
    let mut none = pool(0);
    let refused = none.schedule(&Request::default(), call(1, true)).map(|_| ());
    assert_eq!(refused, Err(ScheduleError::NoEndpoints));
    let headers = [("only", "pod9")];
    let request = Request { headers: HeaderView(&headers), ..Request::default() };
    let refused = pool(2).schedule(&request, call(1, true)).map(|_| ());
    assert_eq!(refused, Err(ScheduleError::NotRouted(RouteError::Drained)));
}

#[test]
fn a_full_pool_sheds_requests_of_negative_priority_alone() {
    let mut pool = pool(1);
    let updated = Some(Time::from_millis(1000));
    pool.report(rank(1), EngineLoad { waiting: 5, updated, ..EngineLoad::default() });
    let mut ask = |priority, ms| {
        let request = Request { priority, ..Request::default() };
        pool.schedule(&request, call(ms, false)).map(|_| ())
    };
    assert_eq!(ask(0, 1000), Ok(()));
    assert_eq!(ask(-1, 1000), Err(ScheduleError::Saturated));
    // The report is stale, and of what was sent one request is no crowd.
    assert_eq!(ask(-1, 2000), Ok(()));
}

#[test]
fn another_life_of_a_pod_holds_nothing_and_has_nothing_in_flight() {
    let mut pool = pool(1);
    let blocks = sequence(1, 8);
    pool.set_life(rank(1), Generation(5));
    pool.prefixes().apply(rank(1), Generation(5), &[stored(&blocks)]);
    let (ticket, _) = schedule(&mut pool, &asking(&blocks), call(1, true));
    pool.set_endpoints(&[life(1, "2")]);
    assert_eq!(in_flight(&pool), [0]);
    let decision = pool.schedule(&asking(&blocks), call(2, true)).expect("it takes requests");
    assert_eq!(decision.cached_tokens, 0);
    pool.ended(&over(ticket), Time::from_millis(3));
    assert_eq!(in_flight(&pool), [1]);
}

#[test]
fn reported_cache_use_weighs_on_the_choice() {
    let mut pool = pool(2);
    let cache = Some(CacheConfig { block_size: 16, blocks: 1000 });
    let updated = Some(Time::from_millis(1));
    let busy = EngineLoad { kv_usage: 0.9, cache, updated, ..EngineLoad::default() };
    pool.report(rank(1), busy);
    assert_eq!(schedule(&mut pool, &asking(&sequence(1, 4)), call(2, true)).1, "pod2");
}

#[test]
fn scores_come_when_they_are_wanted() {
    let mut pool = pool(2);
    let wanted = Call { scores: true, ..call(1, true) };
    let decision = pool.schedule(&Request::default(), wanted).expect("one takes it");
    assert_eq!(decision.scores.len(), 2);
    let decision = pool.schedule(&Request::default(), call(1, true)).expect("one takes it");
    assert_eq!(decision.scores, []);
}

/// Numbers of requests that are kept for reports and for leases.
fn kept(pool: &Scheduler) -> (usize, usize) {
    (pool.slots.iter().map(|slot| slot.unsettled.len()).sum(), pool.tickets.leases())
}

#[test]
fn an_endpoint_that_never_reports_costs_no_memory_once_leases_are_over() {
    let mut pool = pool(1);
    for ms in 0..1000 {
        schedule(&mut pool, &asking(&sequence(1, 4)), call(ms, false));
    }
    assert_eq!(kept(&pool), (1000, 1000));
    pool.expire(Time::from_millis(60_500));
    assert_eq!(kept(&pool), (499, 499));
    pool.expire(Time::from_millis(61_000));
    assert_eq!(kept(&pool), (0, 0));
}

#[test]
fn one_silent_endpoint_takes_no_room_from_requests_that_others_have_ended() {
    let settings = SchedulerSettings { in_flight_max: 10, ..SchedulerSettings::default() };
    let mut pool = Scheduler::new(program(), settings);
    pool.set_endpoints(&[endpoint(1), endpoint(2)]);
    let ask = |pool: &mut Scheduler, pod, ms| {
        let headers = [("only", pod)];
        let request = Request { headers: HeaderView(&headers), ..Request::default() };
        schedule(pool, &request, call(ms, false))
    };
    ask(&mut pool, "pod1", 0);
    for ms in 0..1000 {
        ask(&mut pool, "pod2", ms);
        let updated = Some(Time::from_millis(ms + 100));
        pool.report(rank(2), EngineLoad { updated, ..EngineLoad::default() });
    }
    assert_eq!(in_flight(&pool), [1, 0]);
    let (reports, leases) = kept(&pool);
    assert!(reports == 1 && leases < 100, "{reports} for reports, {leases} for leases");
    for ms in 1000..1009 {
        ask(&mut pool, "pod1", ms);
    }
    let refused = pool.schedule(&Request::default(), call(1009, false)).map(|_| ());
    assert_eq!(refused, Err(ScheduleError::TooMany { limit: 10 }));
}

/// Whose requests there are, and their priorities.
const FLOWS: [(&str, i32); 3] = [("a", 0), ("b", 0), ("a", 7)];

/// What is in flight at an endpoint from here, by flow.
type ByFlow = std::collections::BTreeMap<(String, i32), InFlight>;

/// The flows at each endpoint, in order.
fn flows(pool: &Scheduler) -> Vec<ByFlow> {
    let of = |flow: &FlowLoad| ((flow.fairness_id.to_string(), flow.priority), flow.in_flight);
    pool.flows().map(|(flows, _)| flows.map(of).collect()).collect()
}

#[test]
fn what_is_in_flight_is_told_apart_by_flow() {
    let mut pool = pool(1);
    let blocks = sequence(0, 2);
    let mut send = |(fairness_id, priority)| {
        let request = Request { fairness_id, priority, ..asking(&blocks) };
        schedule(&mut pool, &request, call(1, true)).0
    };
    let tickets = FLOWS.map(&mut send);
    let again = send(FLOWS[0]);
    let of = |flow: usize, requests, tokens| {
        let (fairness_id, priority) = FLOWS[flow];
        ((fairness_id.to_owned(), priority), InFlight { requests, tokens })
    };
    // The prompt of the first is cached for all that come after it.
    let all = [of(0, 2, 32), of(1, 1, 0), of(2, 1, 0)];
    assert_eq!(flows(&pool), [ByFlow::from(all)]);
    pool.first_token(&over(tickets[0]), Time::from_millis(2));
    pool.ended(&over(tickets[1]), Time::from_millis(3));
    assert_eq!(flows(&pool), [ByFlow::from([of(0, 2, 0), of(2, 1, 0)])]);
    for ticket in [tickets[0], again, tickets[2]] {
        pool.ended(&over(ticket), Time::from_millis(3));
    }
    assert_eq!(flows(&pool), [ByFlow::new()]);
}

#[test]
fn numbers_of_requests_begin_where_they_are_told_to() {
    let settings = SchedulerSettings { tickets_above: 100, ..SchedulerSettings::default() };
    let mut pool = Scheduler::new(program(), settings);
    pool.set_endpoints(&[endpoint(1)]);
    assert_eq!(schedule(&mut pool, &asking(&[]), call(1, true)).0, 101);
}

/// Something that happens to a pool.
#[derive(Clone, Debug)]
enum Step {
    Schedule { blocks: u64, watched: bool, flow: usize },
    First(usize),
    End(usize),
    Report(u8),
    Leave(u8),
    Join(u8),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..20u64, any::<bool>(), 0..FLOWS.len())
            .prop_map(|(blocks, watched, flow)| Step::Schedule { blocks, watched, flow }),
        1 => any::<usize>().prop_map(Step::First),
        3 => any::<usize>().prop_map(Step::End),
        1 => (1..4u8).prop_map(Step::Report),
        1 => (1..4u8).prop_map(Step::Leave),
        1 => (1..4u8).prop_map(Step::Join),
        1 => (0..5000u64).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Whatever happens, when all requests have ended nothing is in flight anywhere.
    #[test]
    fn nothing_leaks(steps in vec(any_step(), 0..200)) {
        let mut pool = pool(3);
        let (mut now, mut open) = (0, Vec::new());
        let mut here: std::collections::BTreeMap<u8, u32> = (1..4).map(|n| (n, 1)).collect();
        let mut lives = 1;
        let mut seen = own(&pool, now);
        for step in steps {
            match step {
                Step::Schedule { blocks, watched, flow } => {
                    let blocks = sequence(0, blocks);
                    let (fairness_id, priority) = FLOWS[flow];
                    let request = Request { fairness_id, priority, ..asking(&blocks) };
                    if let Ok(decision) = pool.schedule(&request, call(now, watched))
                        && watched
                    {
                        open.push(decision.ticket);
                    }
                }
                Step::First(at) if !open.is_empty() => {
                    pool.first_token(&over(open[at % open.len()]), Time::from_millis(now));
                }
                Step::End(at) if !open.is_empty() => {
                    let ticket = open.swap_remove(at % open.len());
                    pool.ended(&over(ticket), Time::from_millis(now));
                }
                Step::First(_) | Step::End(_) => {}
                Step::Report(number) => {
                    let updated = Some(Time::from_millis(now));
                    pool.report(rank(number), EngineLoad { updated, ..EngineLoad::default() });
                }
                Step::Leave(number) => {
                    here.remove(&number);
                }
                Step::Join(number) => {
                    lives += 1;
                    here.entry(number).or_insert(lives);
                }
                Step::Wait(ms) => now += ms,
            }
            let all: Vec<_> = here.iter().map(|(n, uid)| life(*n, &uid.to_string())).collect();
            pool.set_endpoints(&all);
            let present = own(&pool, now);
            prop_assert!(present.1 == seen.1 || present.0 != seen.0, "{:?}", (seen, present));
            seen = present;
            // The flows of each endpoint are all that is there, and none of them is empty.
            for (flows, (_, own)) in flows(&pool).iter().zip(pool.own(Time::from_millis(now))) {
                let sum = |of: fn(&InFlight) -> u64| flows.values().map(of).sum::<u64>();
                prop_assert_eq!((sum(|f| f.requests), sum(|f| f.tokens)), (own.requests, own.tokens));
                prop_assert!(flows.values().all(|flow| flow.requests > 0), "{:?}", flows);
            }
        }
        for ticket in open {
            pool.ended(&over(ticket), Time::from_millis(now));
        }
        pool.expire(Time::from_millis(now + 60_000));
        let left: Vec<_> = pool.endpoints().map(|(_, _, in_flight)| in_flight).collect();
        prop_assert!(left.iter().all(|left| *left == InFlight::default()), "{left:?}");
        let stats = pool.stats(Time::from_millis(now + 60_000));
        prop_assert_eq!((stats.in_flight, stats.placement.bookings), (0, 0));
        prop_assert_eq!(kept(&pool), (0, 0));
    }
}

/// The version of what is in flight, and what is.
fn own(pool: &Scheduler, now: u64) -> (u64, Vec<(WorkerRank, PeerLoad)>) {
    let busy = |(_, share): &(_, PeerLoad)| *share != PeerLoad::default();
    (pool.own_version(), pool.own(Time::from_millis(now)).filter(busy).collect())
}

/// What a worker reported that it holds.
fn held(pool: &Scheduler, rank: WorkerRank) -> Option<WorkerHoldings> {
    let tells = pool.tellers().any(|teller| teller == rank);
    tells.then(|| pool.prefixes().held_by(&[rank]).pop()).flatten().map(|(_, held)| held)
}

fn restore(pool: &mut Scheduler, rank: WorkerRank, held: WorkerHoldings) -> bool {
    pool.expects(rank, held.generation) && pool.prefixes().restore(rank, held)
}

/// What a replica that starts takes over of pod 1 after `before` happened to it; pod 1 holds 8
/// blocks in life 5.
#[track_caller]
fn check_restore(before: impl FnOnce(&mut Scheduler), taken: bool, cached_tokens: u64) {
    let (mut old, mut new) = (pool(1), pool(1));
    let blocks = sequence(1, 8);
    assert_eq!(held(&old, rank(1)), None, "nothing was reported yet");
    old.set_life(rank(1), Generation(5));
    old.prefixes().apply(rank(1), Generation(5), &[stored(&blocks)]);
    before(&mut new);
    let reported = held(&old, rank(1)).expect("it reported");
    assert_eq!(restore(&mut new, rank(1), reported), taken);
    let decision = new.schedule(&asking(&blocks), call(1, true)).expect("one takes it");
    assert_eq!(decision.cached_tokens, cached_tokens);
}

#[test]
fn a_peers_blocks_count_until_the_own_feed_tells() {
    check_restore(|_| {}, true, 128);
    let connects = |pool: &mut Scheduler| {
        pool.set_life(rank(1), Generation(5));
        pool.prefixes().unknown(rank(1));
    };
    check_restore(connects, true, 128);
    check_restore(|pool| pool.set_life(rank(1), Generation(5)), false, 0);
    check_restore(|pool| pool.set_life(rank(1), Generation(6)), false, 0);
    check_restore(|pool| pool.set_endpoints(&[endpoint(1), endpoint(2)]), true, 128);
}

#[test]
fn the_own_feed_overrules_what_a_peer_said() {
    let mut pool = pool(1);
    let blocks = vec![(SequenceHash(1), Medium::Device)];
    let theirs = WorkerHoldings { generation: Generation(5), blocks };
    assert!(restore(&mut pool, rank(1), theirs.clone()));
    pool.set_life(rank(1), Generation(5));
    assert_eq!(held(&pool, rank(1)), Some(theirs), "the same life goes on");
    pool.prefixes().replace(rank(1), Generation(5), vec![]);
    assert_eq!(held(&pool, rank(1)).map(|held| held.blocks), Some(vec![]));
    pool.set_life(rank(1), Generation(4));
    assert_eq!(held(&pool, rank(1)).map(|held| held.generation), Some(Generation(4)));
    let nobodys = WorkerHoldings { generation: Generation(1), blocks: vec![] };
    assert!(!restore(&mut pool, rank(9), nobodys));
}

#[test]
fn what_is_predicted_can_be_given_to_another_replica() {
    let (mut old, mut new) = (pool(1), pool(1));
    let blocks = sequence(1, 8);
    let predict = |pool: &mut Scheduler, worker, sequence: &[SequenceHash]| {
        let until =
            pool.prediction_end(worker, Time::from_millis(1)).expect("it tells of no events");
        pool.prefixes().predict(worker, sequence, until);
    };
    predict(&mut old, rank(1), &blocks);
    let told = old.prefixes().predictions(0, 100).expect("something is predicted");
    assert_eq!((told.len(), old.prefixes().predictions(8, 100)), (8, None));
    for (worker, hash) in told {
        predict(&mut new, worker, &[hash]);
    }
    let decision = new.schedule(&asking(&blocks), call(3, true)).expect("one takes it");
    assert_eq!(decision.cached_tokens, 128);
}

#[test]
fn what_a_replica_booked_is_what_the_others_count() {
    let (mut one, mut other) = (pool(2), pool(2));
    let blocks = sequence(1, 40);
    let streams = Request { stream: true, ..asking(&blocks) };
    let ticket = schedule(&mut one, &streams, call(1, true)).0;
    let shares = |pool: &Scheduler| own(pool, 1).1;
    let [(busy, share)] = shares(&one)[..] else { panic!("{:?}", shares(&one)) };
    assert_eq!((share.prefill_tokens, share.blocks), (640, 40));
    // The other one keeps away, whichever it would have taken.
    other.set_others(busy, share);
    let decision = other.schedule(&asking(&sequence(100, 4)), call(2, true)).expect("one takes it");
    assert_ne!(decision.targets[0].worker, busy);
    // A computed prompt is its blocks alone.
    one.first_token(&over(ticket), Time::from_millis(3));
    let [(_, share)] = shares(&one)[..] else { panic!("{:?}", shares(&one)) };
    assert_eq!((share.prefill_tokens, share.blocks), (0, 40));
}

/// Endpoint 2 takes five times as long for prompts as endpoint 1; both make a token in 10 ms.
#[track_caller]
fn check_learnt(streams: bool, served: Option<&str>, learnt: bool) {
    let mut pool = pool(2);
    for count in 0..400u64 {
        let (start, blocks) = (count * 10_000, sequence(count * 100, 10 + count % 9 * 10));
        // Each nine times in turn, with prompts of all lengths.
        let (number, slow) = if count / 9 % 2 == 0 { (1, 1) } else { (2, 5) };
        let allowed = SubsetEntry { ip: [10, 0, 0, number].into(), port: None };
        let subset = Subset(vec![allowed]);
        let request = Request { stream: streams, subset: Some(&subset), ..asking(&blocks) };
        let decision = pool.schedule(&request, call(start, true)).expect("one takes it");
        let first = start + blocks.len() as u64 * 16 * slow / 10;
        let progress = RequestProgress { served, ..over(decision.ticket) };
        pool.first_token(&progress, Time::from_millis(first));
        let end = RequestProgress { output_tokens: Some(16), ..progress };
        pool.ended(&end, Time::from_millis(first + 160));
    }
    let [fast, slow] = [1, 2].map(|number| {
        let speed = pool.placement.speed(rank(number)).expect("it is known");
        (speed.prefill_token_s * 1e4, speed.step_s > 0.0)
    });
    let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.2;
    match learnt {
        true => assert!(near(fast.0, 1.0) && near(slow.0, 5.0) && fast.1, "{fast:?} {slow:?}"),
        false => assert_eq!((fast, slow), ((0.0, false), (0.0, false))),
    }
}

#[test]
fn streamed_answers_teach_how_fast_endpoints_are() {
    check_learnt(true, None, true);
    check_learnt(false, None, false);
    check_learnt(true, Some("10.0.0.9:8000"), false);
}
