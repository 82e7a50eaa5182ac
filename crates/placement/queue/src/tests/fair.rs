//! How far two flows that both have something waiting can come apart.

use super::{entry, ms, queues};
use crate::{BandPolicy, Bounds, Fairness, FlowId, QueueHead, Queues, Verdict};
use proptest::{collection::vec, prelude::*};

/// Serves three flows that have requests of these tokens waiting, and reports after each service
/// the weighted tokens of all three, while all of them still have some.
fn serve(
    fairness: Fairness,
    prompts: &[Vec<u32>; 3],
    answer: u32,
    weights: (u32, u32),
) -> Vec<[u64; 3]> {
    let mut queues: Queues<u32> =
        queues(BandPolicy { fairness, bounds: Bounds::MAX, ..BandPolicy::default() });
    for (flow, prompts) in prompts.iter().enumerate() {
        for &tokens in prompts {
            let entry = entry(flow as u64, tokens, 0);
            queues.push(entry, ms(0), &mut Vec::new()).expect("there is room");
        }
    }
    let (mut served, mut left) = ([0; 3], prompts.each_ref().map(Vec::len));
    let mut history = Vec::new();
    while left.iter().all(|left| *left > 0) {
        let mut gone = None;
        let mut verdict = |head: &QueueHead, _: &mut u32| match gone {
            None => {
                gone = Some((head.flow, head.tokens));
                Verdict::Go
            }
            Some(_) => Verdict::Stop,
        };
        queues.pop(ms(0), &mut verdict, &mut Vec::new());
        let (FlowId(flow), tokens) = gone.expect("something waits");
        queues.charge(0, FlowId(flow), u64::from(answer), ms(0));
        let weighted = u64::from(weights.0 * tokens) + u64::from(weights.1 * answer);
        served[flow as usize] += weighted;
        left[flow as usize] -= 1;
        history.push(served);
    }
    history
}

fn spread(served: &[u64; 3]) -> u64 {
    served.iter().max().zip(served.iter().min()).map_or(0, |(most, least)| most - least)
}

fn any_prompts() -> impl Strategy<Value = [Vec<u32>; 3]> {
    let flow = |longest: u32| vec(1..=longest, 1..120);
    [flow(10), flow(100), flow(300)]
}

proptest! {
    #[test]
    fn deficit_round_robin_keeps_flows_within_a_quantum_and_a_request(
        prompts in any_prompts(),
        quantum_tokens in 1..400u32,
    ) {
        for served in serve(Fairness::Drr { quantum_tokens }, &prompts, 0, (1, 0)) {
            prop_assert!(spread(&served) <= u64::from(quantum_tokens) + 300, "{served:?}");
        }
    }

    #[test]
    fn token_counters_keep_flows_within_a_request_and_its_answer(
        prompts in any_prompts(),
        answer in 0..200u32,
    ) {
        let fairness = Fairness::Vtc { input_weight: 1, output_weight: 2 };
        for served in serve(fairness, &prompts, answer, (1, 2)) {
            prop_assert!(spread(&served) <= 300 + 2 * u64::from(answer), "{served:?}");
        }
    }
}

#[test]
fn a_flow_that_comes_late_neither_catches_up_nor_waits_for_others() {
    for fairness in [
        Fairness::RoundRobin,
        Fairness::Drr { quantum_tokens: 10 },
        Fairness::Vtc { input_weight: 1, output_weight: 1 },
    ] {
        let mut queues = queues(BandPolicy { fairness, ..BandPolicy::default() });
        let push = |queues: &mut Queues<u32>, flow, count| {
            for _ in 0..count {
                queues.push(entry(flow, 10, 0), ms(0), &mut Vec::new()).expect("there is room");
            }
        };
        push(&mut queues, 1, 100);
        assert_eq!(flows_of_next(&mut queues, 50), [50, 0]);
        push(&mut queues, 2, 100);
        assert_eq!(flows_of_next(&mut queues, 40), [20, 20], "{fairness:?}");
    }
}

#[test]
fn what_a_flow_attained_is_forgotten_by_half_lives_and_waiting_counts_beside_it() {
    let las = |service_weight, wait_weight| Fairness::Las {
        service_weight,
        wait_weight,
        half_life: ms(100),
        idle: ms(3_600_000),
    };
    // Flow 1 got 800 tokens at first and flow 2 got 300 after so many half-lives.
    let next = |fairness, half_lives: u64, waits: [u64; 2]| {
        let mut queues = queues(BandPolicy { fairness, ..BandPolicy::default() });
        let charged = ms(100 * half_lives);
        for (flow, at) in [(1, ms(0)), (2, charged)] {
            queues.push(entry(flow, 1, 0), at, &mut Vec::new()).expect("there is room");
            queues.pop(at, &mut |_: &QueueHead, _: &mut u32| Verdict::Go, &mut Vec::new());
        }
        queues.charge(0, FlowId(1), 400, ms(0));
        queues.charge(0, FlowId(2), 150, charged);
        for (flow, wait) in [1, 2].into_iter().zip(waits) {
            let came = charged + ms(100 - wait);
            queues.push(entry(flow, 1, 0), came, &mut Vec::new()).expect("there is room");
        }
        let mut first = None;
        let mut verdict = |head: &QueueHead, _: &mut u32| {
            first.get_or_insert(head.flow);
            Verdict::Stop
        };
        queues.pop(charged + ms(100), &mut verdict, &mut Vec::new());
        first.expect("two wait")
    };
    assert_eq!(next(las(800, 200), 0, [0, 0]), FlowId(2));
    assert_eq!(next(las(800, 200), 1, [0, 0]), FlowId(2), "400 are left of 800");
    assert_eq!(next(las(800, 200), 2, [0, 0]), FlowId(1), "200 are left of 800");
    assert_eq!(next(las(800, 200), 0, [90, 0]), FlowId(2), "service weighs more");
    assert_eq!(next(las(200, 800), 0, [90, 0]), FlowId(1), "waiting weighs more");
}

#[test]
fn deep_sessions_go_first_until_others_have_waited_long_or_they_paused() {
    let turns = |wait_weight, inactivity| Fairness::TurnPriority {
        wait_weight,
        inactivity: ms(inactivity),
        idle: ms(3_600_000),
    };
    // Flow 1 took four turns and flow 2 one; both ask again, flow 2 so many ms before the end.
    let next = |fairness, wait: u64| {
        let mut queues = queues(BandPolicy { fairness, ..BandPolicy::default() });
        for flow in [1, 1, 1, 1, 2] {
            queues.push(entry(flow, 1, 0), ms(0), &mut Vec::new()).expect("there is room");
            queues.pop(ms(0), &mut |_: &QueueHead, _: &mut u32| Verdict::Go, &mut Vec::new());
        }
        let end = ms(10_000);
        for (flow, came) in [(2, end - ms(wait)), (1, end)] {
            queues.push(entry(flow, 1, 0), came, &mut Vec::new()).expect("there is room");
        }
        let mut first = None;
        let mut verdict = |head: &QueueHead, _: &mut u32| {
            first.get_or_insert(head.flow);
            Verdict::Stop
        };
        queues.pop(end, &mut verdict, &mut Vec::new());
        first.expect("two wait")
    };
    assert_eq!(next(turns(500, 120_000), 5_000), FlowId(1), "2.5 turns are fewer than 3");
    assert_eq!(next(turns(500, 120_000), 7_000), FlowId(2), "3.5 turns are more than 3");
    assert_eq!(next(turns(0, 120_000), 9_000), FlowId(1), "depth alone counts");
    assert_eq!(next(turns(0, 5_000), 1), FlowId(2), "both begin anew, and it joined first");
}

/// How many of the next so many are of flow 1 and of flow 2.
fn flows_of_next(queues: &mut Queues<u32>, count: usize) -> [usize; 2] {
    let (mut left, mut dispatched) = (count, Vec::new());
    let mut verdict = |_: &QueueHead, _: &mut u32| {
        if left == 0 {
            return Verdict::Stop;
        }
        left -= 1;
        Verdict::Go
    };
    queues.pop(ms(0), &mut verdict, &mut dispatched);
    [1, 2].map(|flow| dispatched.iter().filter(|gone| gone.flow == FlowId(flow)).count())
}
