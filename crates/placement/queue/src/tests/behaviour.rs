//! What the model does not cover: bands that come and go, drain rates, closing.

use super::{entry, ms, queues, queues_of};
use crate::{
    BandPolicy, BandSettings, Bounds, DispatchedRequest, Eviction, Fairness, FlowId, QueueEntry,
    QueueHead, QueueRefusal, QueueSettings, Queues, Verdict,
};
use std::time::Duration;

fn push(
    queues: &mut Queues<u32>,
    entry: QueueEntry<u32>,
    now: Duration,
) -> Result<(), QueueRefusal> {
    let mut displaced = Vec::new();
    let result = queues.push(entry, now, &mut displaced);
    assert_eq!(displaced, []);
    result.map(|_| ()).map_err(|rejected| rejected.reason)
}

/// Lets at most so many go.
fn pop(queues: &mut Queues<u32>, most: usize, now: Duration) -> Vec<DispatchedRequest<u32>> {
    let (mut left, mut dispatched) = (most, Vec::new());
    let mut verdict = |_: &QueueHead, _: &mut u32| match left.checked_sub(1) {
        Some(fewer) => {
            left = fewer;
            Verdict::Go
        }
        None => Verdict::Stop,
    };
    queues.pop(now, &mut verdict, &mut dispatched);
    dispatched
}

#[track_caller]
fn check_evicted(queues: &mut Queues<u32>, now: Duration, expected: &[(u32, Eviction)]) {
    let mut evicted = Vec::new();
    queues.expire(now, &mut evicted);
    let evicted: Vec<_> = evicted.iter().map(|gone| (gone.payload, gone.reason)).collect();
    assert_eq!(evicted, expected);
}

fn priorities(queues: &Queues<u32>) -> Vec<i32> {
    queues.stats(ms(0)).bands.iter().map(|band| band.priority).collect()
}

/// A queue that drains ten requests of ten tokens a second, empty after one second.
fn draining(settings: QueueSettings) -> Queues<u32> {
    let mut queues = queues_of(settings);
    for payload in 0..10 {
        push(&mut queues, entry(0, 10, payload), ms(0)).expect("there is room");
    }
    for tick in 1..=10 {
        assert_eq!(pop(&mut queues, 1, ms(tick * 100)).len(), 1);
    }
    queues
}

#[test]
fn bands_come_on_first_use_and_go_when_idle() {
    let second_band = BandSettings { priority: -5, ..BandSettings::default() };
    let mut queues = queues_of(QueueSettings {
        bands: vec![second_band, BandSettings::default()],
        bands_max: 3,
        default_band: BandPolicy { ttl: ms(700), ..BandPolicy::default() },
        ..QueueSettings::default()
    });
    let at = |priority| QueueEntry { priority, ..entry(1, 1, 0) };
    assert_eq!(priorities(&queues), [0, -5]);
    push(&mut queues, at(7), ms(0)).expect("there is room");
    assert_eq!(priorities(&queues), [7, 0, -5]);
    assert_eq!(queues.next_event(), Some(ms(700)), "as the default band");
    for (priority, nearest) in [(9, 7), (4, 7), (3, 0), (-2, 0), (-3, -5), (i32::MIN, -5)] {
        push(&mut queues, at(priority), ms(0)).expect("there is room");
        let band = pop(&mut queues, 9, ms(0)).pop().map(|gone| gone.band);
        assert_eq!(band, Some(nearest), "priority {priority}");
    }
    check_evicted(&mut queues, ms(600_000), &[]);
    assert_eq!(priorities(&queues), [7, 0, -5]);
    check_evicted(&mut queues, ms(600_001), &[]);
    assert_eq!(priorities(&queues), [0, -5]);
    let counts = queues.stats(ms(0)).forgotten;
    assert_eq!((counts.queued, counts.dispatched), (3, 3));
}

#[test]
fn between_two_bands_the_lower_is_nearest() {
    let band = |priority| BandSettings { priority, ..BandSettings::default() };
    let mut queues = queues_of(QueueSettings {
        bands: vec![band(10), band(0)],
        bands_max: 2,
        ..QueueSettings::default()
    });
    push(&mut queues, QueueEntry { priority: 5, ..entry(1, 1, 0) }, ms(0)).expect("there is room");
    assert_eq!(pop(&mut queues, 1, ms(0))[0].band, 0);
}

#[test]
fn idle_flows_are_forgotten_after_a_while_or_when_they_are_many() {
    let mut queues = queues_of(QueueSettings { idle_flows_max: 100, ..QueueSettings::default() });
    let flows = |queues: &Queues<u32>| queues.stats(ms(0)).bands[0].flows;
    for flow in 0..1000 {
        push(&mut queues, entry(flow, 1, 0), ms(flow)).expect("there is room");
        assert_eq!(pop(&mut queues, 1, ms(flow)).len(), 1);
        assert!(flows(&queues) <= 101);
    }
    assert_eq!(flows(&queues), 100);
    check_evicted(&mut queues, ms(300_950), &[]);
    assert_eq!(flows(&queues), 50);
    check_evicted(&mut queues, ms(301_000), &[]);
    assert_eq!(flows(&queues), 0);
}

#[test]
fn what_is_charged_keeps_a_flow_behind_and_in_mind() {
    let fairness = Fairness::Vtc { input_weight: 1, output_weight: 2 };
    let mut queues = queues(BandPolicy { fairness, ..BandPolicy::default() });
    push(&mut queues, entry(1, 5, 1), ms(0)).expect("there is room");
    push(&mut queues, entry(2, 5, 2), ms(0)).expect("there is room");
    assert_eq!(pop(&mut queues, 2, ms(0)).len(), 2);
    queues.charge(0, FlowId(1), 50, ms(299_000));
    queues.charge(0, FlowId(3), 50, ms(299_000));
    queues.charge(8, FlowId(1), 50, ms(299_000));
    let due: Vec<(u64, u32)> = vec![(2, 1), (2, 2), (1, 3), (2, 4)];
    for (flow, payload) in due {
        push(&mut queues, entry(flow, 60, payload), ms(299_000)).expect("there is room");
    }
    let order = |queues: &mut Queues<u32>| {
        let gone = pop(queues, 9, ms(299_000));
        gone.iter().map(|gone| gone.payload).collect::<Vec<u32>>()
    };
    // The charge of 2 · 50 tokens is what flow 2 may have before flow 1 is next.
    assert_eq!(order(&mut queues), [1, 2, 3, 4]);
    queues.charge(0, FlowId(2), 50, ms(400_000));
    check_evicted(&mut queues, ms(650_000), &[]);
    assert_eq!(queues.stats(ms(0)).bands[0].flows, 1, "flow 2, heard of last");
}

#[test]
fn who_is_refused_learns_when_the_queue_will_have_drained() {
    let bounds = Bounds { requests: 50, ..Bounds::MAX };
    let policy = BandPolicy { bounds, ..BandPolicy::default() };
    let bands = vec![BandSettings { priority: 0, policy }];
    let mut queues = draining(QueueSettings { bands, ..QueueSettings::default() });
    assert_eq!(queues.retry_after(0), Duration::from_secs(1), "nothing waits: the least there is");
    for payload in 0..50 {
        push(&mut queues, entry(0, 10, payload), ms(1000)).expect("there is room");
    }
    let rejected = queues.push(entry(0, 10, 50), ms(1000), &mut Vec::new());
    let rejected = rejected.expect_err("the band is full");
    let (limit, current) = (rejected.limit, rejected.current);
    assert_eq!((rejected.reason, limit, current), (QueueRefusal::BandRequests, 50, 50));
    let seconds = rejected.retry_after.as_secs_f64();
    assert!((4.9..5.1).contains(&seconds), "{seconds}");
    assert_eq!(queues.retry_after(1), Duration::from_secs(1), "nothing of its priority waits");
    let expected = "refused by the queue of priority 0, band-requests: 50, limit 50";
    assert_eq!(rejected.to_string(), expected);
    check_evicted(&mut queues, ms(40_000), &[]);
    assert_eq!(queues.retry_after(0), Duration::from_secs(60), "it has come to a standstill");
}

#[test]
fn what_cannot_make_its_deadline_is_refused_if_that_is_set() {
    let settings = QueueSettings { evict_hopeless: true, ..QueueSettings::default() };
    let mut queues = draining(settings.clone());
    for payload in 0..20 {
        push(&mut queues, entry(0, 10, payload), ms(1000)).expect("there is room");
    }
    let due = |ms: u64| QueueEntry { deadline: Some(super::ms(ms)), ..entry(0, 10, 20) };
    assert_eq!(push(&mut queues, due(2900), ms(1000)), Err(QueueRefusal::Hopeless));
    assert_eq!(push(&mut queues, due(3100), ms(1000)), Ok(()));
    let mut indifferent = draining(QueueSettings { evict_hopeless: false, ..settings });
    for payload in 0..20 {
        push(&mut indifferent, entry(0, 10, payload), ms(1000)).expect("there is room");
    }
    assert_eq!(push(&mut indifferent, due(2900), ms(1000)), Ok(()));
}

#[test]
fn what_those_above_will_keep_from_its_deadline_is_sent_away_if_that_is_set() {
    let settings = QueueSettings { evict_hopeless: true, ..QueueSettings::default() };
    let mut queues = draining(settings);
    for (payload, due) in [(1, 2500), (2, 9000)] {
        let low = QueueEntry { priority: -1, deadline: Some(ms(due)), ..entry(0, 10, payload) };
        push(&mut queues, low, ms(1000)).expect("there is room");
    }
    for payload in 10..30 {
        push(&mut queues, entry(0, 10, payload), ms(1000)).expect("there is room");
    }
    let next = queues.next_event().expect("something waits");
    assert!((ms(400)..ms(600)).contains(&next), "{next:?}: two seconds before the deadline");
    check_evicted(&mut queues, ms(1000), &[(1, Eviction::Hopeless)]);
    assert_eq!(queues.waiting().requests, 21);
}

#[test]
fn a_closed_queue_sends_all_away_and_takes_nothing_in() {
    let mut queues = queues_of(QueueSettings::default());
    for payload in 0..3 {
        let priority = payload as i32;
        push(&mut queues, QueueEntry { priority, ..entry(1, 1, payload) }, ms(0))
            .expect("there is room");
    }
    let mut evicted = Vec::new();
    queues.close(ms(5), &mut evicted);
    let gone: Vec<_> = evicted.iter().map(|g| (g.payload, g.reason, g.waited)).collect();
    let closed = |payload| (payload, Eviction::Closed, ms(5));
    assert_eq!(gone, [closed(2), closed(1), closed(0)]);
    assert_eq!(push(&mut queues, entry(1, 1, 9), ms(6)), Err(QueueRefusal::Closed));
    let stats = queues.stats(ms(6));
    assert_eq!(stats.waiting.requests, 0);
    assert_eq!(stats.bands[0].counts.evicted(Eviction::Closed), 1);
    let refused: u64 = stats.bands.iter().map(|b| b.counts.refused(QueueRefusal::Closed)).sum();
    assert_eq!(refused, 1);
}

#[test]
fn a_ticket_is_good_for_one_request_only() {
    let mut queues = queues_of(QueueSettings::default());
    let first = queues.push(entry(1, 1, 1), ms(0), &mut Vec::new()).expect("there is room");
    assert_eq!(queues.cancel(first, ms(1)), Some(1));
    let second = queues.push(entry(1, 1, 2), ms(1), &mut Vec::new()).expect("there is room");
    assert_eq!((queues.deadline(first), queues.deadline(second)), (None, Some(ms(60_001))));
    assert_eq!(queues.cancel(first, ms(2)), None);
    assert_eq!(queues.cancel(second, ms(2)), Some(2));
    assert_eq!(queues.stats(ms(2)).bands[0].counts.cancelled, 2);
}

#[test]
fn a_head_knows_where_its_band_stands() {
    let mut queues = queues_of(QueueSettings::default());
    push(&mut queues, QueueEntry { priority: -3, ..entry(4, 6, 1) }, ms(2)).expect("there is room");
    push(&mut queues, QueueEntry { priority: 8, ..entry(5, 7, 2) }, ms(2)).expect("there is room");
    let mut seen = Vec::new();
    let mut verdict = |head: &QueueHead, _: &mut u32| {
        let band = head.band;
        let place = (band.priority, band.rank, band.bands, band.highest, band.lowest);
        seen.push((place, head.flow.0, head.tokens, head.waited));
        Verdict::Wait
    };
    queues.pop(ms(9), &mut verdict, &mut Vec::new());
    let expected = [((8, 0, 3, 8, -3), 5, 7, ms(7)), ((-3, 2, 3, 8, -3), 4, 6, ms(7))];
    assert_eq!(seen, expected);
}

#[test]
fn counts_at_the_end_of_their_range_do_no_harm() {
    let mut queues = queues_of(QueueSettings::default());
    let huge = QueueEntry {
        tokens: u32::MAX,
        bytes: u64::MAX,
        deadline: Some(Duration::MAX),
        objective: Some(Duration::MAX),
        jump: u32::MAX,
        priority: i32::MIN,
        flow: FlowId(u64::MAX),
        payload: 1,
    };
    assert_eq!(push(&mut queues, huge, Duration::ZERO), Err(QueueRefusal::BandBytes));
    for payload in 0..3 {
        let most = QueueEntry { bytes: 1, payload, ..huge };
        push(&mut queues, most, Duration::from_secs(u64::MAX / 2)).expect_err("its time is over");
        push(&mut queues, most, Duration::from_secs(1)).expect("there is room");
    }
    queues.charge(i32::MIN, FlowId(u64::MAX), u64::MAX, Duration::MAX);
    assert_eq!(pop(&mut queues, 9, Duration::from_secs(2)).len(), 3);
}
