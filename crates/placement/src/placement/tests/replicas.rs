//! What other replicas have in flight.

use super::*;

fn amount(requests: u64, prefill_tokens: u64, blocks: u64) -> InFlight {
    InFlight { requests, prefill_tokens, blocks }
}

fn told(requests: u64, prefill_tokens: u64, blocks: u64) -> PeerLoad {
    PeerLoad { requests, prefill_tokens, blocks, ..PeerLoad::default() }
}

#[test]
fn what_others_booked_counts_until_they_say_otherwise() {
    let mut placement = in_mode(Mode::LeastLoaded, 2);
    assert!(placement.set_peers(rank(0), told(2, 100, 9)));
    let picked: Vec<_> = (0..2).map(|_| pick(&mut placement, &request(&[])).worker).collect();
    assert_eq!(picked, [rank(1), rank(1)]);
    assert_eq!(placement.booked(rank(0), Time::default()), PeerLoad::default());
    assert_eq!(placement.in_flight(rank(0)), amount(2, 100, 9));
    assert!(placement.set_peers(rank(0), told(1, 0, 0)));
    assert_eq!(pick(&mut placement, &request(&[])).worker, rank(0));
    assert!(!placement.set_peers(rank(7), told(1, 0, 0)));
}

#[test]
fn a_report_counts_beyond_what_is_booked_anywhere() {
    let mut placement = in_mode(Mode::Kv, 1);
    placement.set_peers(rank(0), told(2, 100, 9));
    pick(&mut placement, &request(&sequence(0, 10)));
    let load = |running| Load { running, pending_prefill_tokens: 50, ..Load::default() };
    // It is as late as reports are: what is known already is not counted twice.
    placement.report_load(rank(0), LIFE, load(3));
    assert_eq!(placement.in_flight(rank(0)), amount(3, 260, 19));
    placement.report_load(rank(0), LIFE, load(8));
    assert_eq!(placement.in_flight(rank(0)), amount(8, 260, 19));
}

#[test]
fn a_new_life_has_nobodys_requests_and_claims_are_bounded() {
    let mut placement = in_mode(Mode::Kv, 1);
    placement.set_peers(rank(0), told(u64::MAX, u64::MAX, u64::MAX));
    let claimed = placement.in_flight(rank(0));
    assert!(claimed.requests < 1 << 41 && claimed.blocks < 1 << 41);
    pick(&mut placement, &request(&sequence(0, 10)));
    placement.worker_up(Worker { generation: Generation(2), ..worker(0) });
    assert_eq!(placement.in_flight(rank(0)), InFlight::default());
}

proptest! {
    /// However work is divided among three replicas that have told each other of it, each sees
    /// the sum of it, and what is booked is what is told.
    #[test]
    fn replicas_that_told_each_other_see_the_same(
        picks in vec((0usize..3, 1u64..20, any::<bool>()), 0..40),
    ) {
        let mut replicas: Vec<_> = (0..3).map(|_| in_mode(Mode::RoundRobin, 4)).collect();
        let mut held = Vec::new();
        for (number, (at, blocks, keep)) in picks.into_iter().enumerate() {
            let prompt = sequence(number as u64 * 100, blocks);
            let decision = pick(&mut replicas[at], &request(&prompt));
            match keep {
                true => held.push((decision.worker, blocks)),
                false => replicas[at].release_all(&decision),
            }
        }
        for worker in (0..4).map(rank) {
            let now = Time::default();
            let booked: Vec<_> =
                replicas.iter().map(|replica| replica.booked(worker, now)).collect();
            let here = held.iter().filter(|(at, _)| *at == worker).map(|(_, blocks)| *blocks);
            let (requests, blocks) = (here.clone().count() as u64, here.sum::<u64>());
            let all = amount(requests, blocks * u64::from(BLOCK_SIZE), blocks);
            for (number, replica) in replicas.iter_mut().enumerate() {
                let others = booked.iter().enumerate().filter(|(other, _)| *other != number);
                let others = others.fold(PeerLoad::default(), |sum, (_, own)| sum.plus(*own));
                replica.set_peers(worker, others);
                prop_assert_eq!(replica.in_flight(worker), all);
            }
        }
    }
}
