//! Each policy on a few workers, by what makes it that policy.

use super::*;
use crate::engine::block::{BlockId, hash};

const BLOCK: u32 = 64;

struct Fleet {
    policy: Box<dyn Policy>,
    seed: u64,
}

impl Fleet {
    fn new(kind: PolicyKind, workers: usize) -> Self {
        Self::of(kind, &vec![Role::Aggregated; workers])
    }

    /// A worker of each of these roles.
    fn of(kind: PolicyKind, roles: &[Role]) -> Self {
        let block_size = NonZeroU32::new(BLOCK).expect("it is not 0");
        let paired = roles.contains(&Role::Prefill);
        let busy = BusyThresholds::default();
        let common = Common { block_size, paired, split: None, busy, sessions: None };
        let mut policy = kind.build(&common);
        for (worker, &role) in (0..).zip(roles) {
            // The last has adapter 7.
            let adapters = if worker as usize + 1 == roles.len() { vec![7] } else { Vec::new() };
            let member = Member {
                role,
                host: 0,
                total_blocks: 1_000,
                step_tokens: 8_192,
                adapters,
                lends: false,
            };
            policy.hear(worker, WorkerNews::Up { generation: 1, member: &member }, 0);
        }
        Self { policy, seed: 0 }
    }

    /// Where a prompt of these blocks goes.
    fn send(&mut self, blocks: std::ops::Range<BlockId>) -> Choice {
        self.send_for(blocks, None)
    }

    /// The same for an adapter.
    fn send_for(&mut self, blocks: std::ops::Range<BlockId>, adapter: Option<u32>) -> Choice {
        self.seed += 1;
        let sequence: Vec<_> = blocks.map(hash).collect();
        let prompt_tokens = sequence.len() as u32 * BLOCK;
        let seed = self.seed;
        let query = PickQuery { sequence: &sequence, prompt_tokens, adapter, session: 0, seed };
        self.policy.pick(&query, self.seed).expect("there are workers")
    }

    fn waiting(&mut self, worker: WorkerNumber, waiting: u32) {
        let load = Load { waiting, total_blocks: 1_000, ..Load::default() };
        self.policy.hear(worker, WorkerNews::Load { generation: 1, load: &load }, self.seed);
    }
}

#[test]
fn prefix_hash_keeps_to_a_prefix_until_loads_differ() {
    let mut fleet = Fleet::new(PolicyKind::PrefixHash, 3);
    let first = fleet.send(0..10).worker;
    assert_ne!(fleet.send(100..110).worker, first);
    // Ten of 33 blocks are more than 0.3, ten of 34 are not.
    assert_eq!(fleet.send(0..33).worker, first);
    // With two requests there, 63 more make a difference of 65 to the idle one.
    let sent: Vec<_> = (0..63).map(|_| fleet.send(0..10).worker).collect();
    assert!(sent.iter().all(|worker| *worker == first));
    assert_ne!(fleet.send(0..10).worker, first);
}

#[test]
fn llm_d_weighs_prefix_against_queue() {
    let mut fleet = Fleet::new(PolicyKind::LlmD, 2);
    let first = fleet.send(0..10).worker;
    assert_eq!(fleet.send(0..10).worker, first);
    // All of the prefix is worth more than the shortest queue, half of it is not.
    fleet.waiting(first, 5);
    assert_eq!(fleet.send(0..10).worker, first);
    assert_ne!(fleet.send(5..25).worker, first);
}

#[test]
fn the_real_placement_follows_what_engines_hold() {
    let mut fleet = Fleet::new(PolicyKind::Stator, 4);
    let blocks: Vec<_> = (0..20).map(|id| (hash(id), Medium::Device)).collect();
    fleet.policy.hear(2, WorkerNews::Snapshot { generation: 1, blocks: &blocks }, 1);
    assert_eq!(fleet.send(0..20).worker, 2);
    fleet.policy.hear(2, WorkerNews::Down, 2);
    assert_ne!(fleet.send(0..20).worker, 2);
}

#[test]
fn every_policy_forgets_what_ended_and_who_is_gone() {
    for kind in <PolicyKind as clap::ValueEnum>::value_variants() {
        let mut fleet = Fleet::new(*kind, 3);
        let choices: Vec<_> = (0..9).map(|n| fleet.send(n * 10..n * 10 + 10)).collect();
        assert_eq!(fleet.policy.in_flight(), 9..=9, "{kind:?}");
        for choice in choices {
            fleet.policy.progress(choice.ticket, RequestProgress::First, 10);
            fleet.policy.progress(choice.ticket, RequestProgress::Tokens(BLOCK), 10);
            fleet.policy.progress(choice.ticket, RequestProgress::End, 10);
        }
        assert_eq!(fleet.policy.in_flight(), 0..=0, "{kind:?}");
        (0..3).for_each(|worker| fleet.policy.hear(worker, WorkerNews::Down, 11));
        let query =
            PickQuery { sequence: &[], prompt_tokens: 5, adapter: None, session: 0, seed: 1 };
        assert_eq!(fleet.policy.pick(&query, 12), Err(NoPick::NoWorkers), "{kind:?}");
    }
}

#[test]
fn whoever_has_no_opinion_splits_whenever_it_can() {
    use PolicyKind::{Dynamo, LlmD, PrefixHash, RoundRobin};
    for kind in [RoundRobin, PrefixHash, LlmD, Dynamo] {
        let mut fleet = Fleet::of(kind, &[Role::Prefill, Role::Decode]);
        let choice = fleet.send(0..10);
        let (prefill, ticket) = choice.prefill.expect("there is a worker for prompts");
        assert_eq!((prefill, choice.worker), (0, 1), "{kind:?}");
        assert_eq!(fleet.policy.in_flight(), 2..=2, "{kind:?}");
        fleet.policy.progress(ticket, RequestProgress::End, 5);
        fleet.policy.hear(0, WorkerNews::Down, 6);
        assert_eq!(fleet.send(0..10).prefill, None, "{kind:?}");
        assert_eq!(fleet.policy.in_flight(), 2..=2, "{kind:?}");
    }
}

#[test]
fn a_request_for_an_adapter_goes_where_it_is_loaded() {
    for kind in <PolicyKind as clap::ValueEnum>::value_variants() {
        let mut fleet = Fleet::new(*kind, 3);
        for start in 0..5 {
            let choice = fleet.send_for(start * 10..start * 10 + 10, Some(7));
            assert_eq!(choice.worker, 2, "{kind:?}");
        }
    }
}

#[test]
fn what_others_have_in_flight_counts() {
    let mut fleet = Fleet::new(PolicyKind::LeastLoaded, 2);
    let load = PeerLoad { requests: 3, ..PeerLoad::default() };
    fleet.policy.hear(0, WorkerNews::Others { load }, 1);
    let sent: Vec<_> = (0..3).map(|n| fleet.send(n * 10..n * 10 + 10).worker).collect();
    assert_eq!(sent, [1, 1, 1]);
    assert_eq!([0, 1].map(|worker| fleet.policy.booked(worker, 9).requests), [0, 3]);
}
