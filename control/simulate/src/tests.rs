//! Whole runs on small fleets.

use crate::args::SimulateArgs;
use crate::args::tests::args;
use crate::report::SimulationReport;
use crate::run::simulate;
use stator_fleet_model::RunOutcome;

fn run(line: &str) -> Vec<RunOutcome> {
    simulate(&args(line)).unwrap_or_else(|error| panic!("{line}: {error:#}"))
}

fn json(args: &SimulateArgs) -> String {
    let outcomes = simulate(args).expect("no rule is broken");
    serde_json::to_string(&SimulationReport::new(args, &outcomes)).expect("it can be written")
}

const FAULTS: &str = "--deaths-per-hour 60 --restart-s 5 --stragglers 0.3 --event-loss 0.02 \
                      --report-loss 0.1";

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_does_not() {
    let line = format!("--requests 200 --mix mixed --rate 20 --workers 5 {FAULTS}");
    let first = args(&line);
    let bytes = json(&first);
    assert_eq!(bytes, json(&first));
    assert_ne!(bytes, json(&SimulateArgs { seed: 2, ..first }));
}

#[test]
fn every_policy_keeps_the_rules_while_everything_fails() {
    let policies = "random,round-robin,power-of-two,prefix-hash,llm-d,dynamo,stator";
    for mix in ["chat", "agents", "summarise", "batch", "mixed"] {
        for outcome in run(&format!(
            "--mix {mix} --policy {policies} --requests 100 --rate 15 --workers 4 \
             --kv-tokens 140000 --host-kv-tokens 100000 {FAULTS}"
        )) {
            assert_eq!(outcome.requests, 100);
            assert!(outcome.ttft_ms.count >= 100 - outcome.failed, "{mix}: {}", outcome.policy);
        }
    }
}

#[test]
fn a_split_fleet_keeps_the_rules_while_everything_fails() {
    for seed in 0..3 {
        let line = format!("--prefill 3 --decode 3 --requests 100 --seed {seed} {FAULTS}");
        let outcomes = run(&format!("{line} --mix chat --rate 10 --policy stator,random"));
        assert!(outcomes.iter().all(|outcome| outcome.failed < 20), "seed {seed}");
    }
}

#[test]
fn a_fleet_of_all_roles_keeps_the_rules_while_everything_fails() {
    for split in ["auto", "never", "uncached", "prefill-load --split-prefill-tokens 4000"] {
        let outcomes = run(&format!(
            "--prefill 2 --decode 2 --workers 2 --mix agents --requests 150 --rate 8 --split {split} \
             --policy llm-d,prefix-hash,dynamo,stator --adapters 3 --session-affinity hard {FAULTS}"
        ));
        assert!(outcomes.iter().all(|outcome| outcome.failed < 20), "{split}");
    }
}

#[test]
fn edges_keep_the_rules_while_everything_fails() {
    for faults in ["", FAULTS] {
        for peers in [0, 10] {
            let outcomes = run(&format!(
                "--edges 3 --peer-interval-ms {peers} --mix mixed --requests 150 --rate 40 \
                 --workers 3 --policy stator,least-loaded --session-affinity soft {faults} \
                 --active-prefill-tokens-threshold 4000"
            ));
            assert!(outcomes.iter().all(|outcome| outcome.failed < 20), "{faults} {peers}");
        }
    }
}

/// The mean time to the first token, and the share of tokens that was reused.
fn quality(line: &str) -> (f64, f64) {
    let outcomes = run(&format!("{line} --policy stator"));
    (outcomes[0].ttft_ms.mean, outcomes[0].cached_share)
}

#[test]
fn edges_that_tell_each_other_decide_about_as_well_as_one() {
    let line = "--mix agents --requests 1500 --rate 24 --workers 12 --report-interval-ms 500";
    let (one, cached) = quality(line);
    let (told, cached_told) = quality(&format!("{line} --edges 3 --peer-interval-ms 10"));
    let (deaf, _) = quality(&format!("{line} --edges 3"));
    assert!(told < 1.05 * one && cached_told > 0.98 * cached, "{told} {one}");
    assert!(told < deaf, "{told} {deaf}");
}

#[test]
fn sessions_that_are_bound_reuse_no_less() {
    let line = "--mix chat --requests 600 --rate 12 --workers 6";
    let (_, free) = quality(line);
    for affinity in ["soft", "hard"] {
        let (_, bound) = quality(&format!("{line} --session-affinity {affinity}"));
        assert!(bound > free - 0.02, "{affinity}: {bound} {free}");
    }
}

#[test]
fn a_link_that_is_shared_makes_answers_wait() {
    let line = "--prefill 2 --decode 2 --mix summarise --requests 150 --rate 3 --split always \
                --host-workers 1";
    let (fast, _) = quality(&format!("{line} --remote-gb-s 40"));
    let (slow, _) = quality(&format!("{line} --remote-gb-s 1"));
    assert!(slow > 1.5 * fast, "{slow} {fast}");
    let (kept, _) = quality(&format!("{line} --remote-gb-s 1").replace("always", "auto"));
    assert!(kept < slow, "what is slow is used less: {kept} {slow}");
}

#[test]
fn a_dead_worker_loses_no_request_and_costs_time() {
    let line = "--mix chat --requests 200 --rate 10 --workers 4 --policy least-loaded";
    let calm = &run(line)[0];
    let failing = &run(&format!("{line} --deaths-per-hour 120 --migrations-max 50"))[0];
    assert!(failing.deaths > 0 && failing.migrations > 0);
    assert_eq!((calm.failed, failing.failed), (0, 0));
    assert!(failing.ttft_ms.p99 > calm.ttft_ms.p99);
}

#[test]
fn placing_by_kv_reuses_more_than_placing_in_turn() {
    let outcomes = run("--mix agents --requests 600 --policy round-robin,stator --workers 6");
    let [turn, kv] = [0, 1].map(|policy: usize| outcomes[policy].cached_share);
    assert!(kv > turn + 0.05, "{kv} {turn}");
}

#[test]
fn a_host_tier_saves_what_the_device_evicts() {
    let line = "--mix agents --requests 500 --rate 4 --workers 2 --kv-tokens 70000 --policy stator";
    let without = run(line)[0].cached_share;
    let with = run(&format!("{line} --host-kv-tokens 500000"))[0].cached_share;
    assert!(with > without + 0.02, "{with} {without}");
}

#[test]
fn lost_events_cost_hits_and_a_resync_heals_them() {
    let line = "--mix chat --requests 500 --rate 15 --workers 6 --policy stator";
    let share = |faults: &str| run(&format!("{line} {faults}"))[0].cached_share;
    let (all, few, none) =
        (share(""), share("--event-loss 0.05"), share("--event-loss 0.05 --resync-ms 60000"));
    assert!(all > none + 0.02 && few > none + 0.02, "{all} {few} {none}");
}

#[test]
fn a_request_larger_than_a_worker_fails_and_the_rest_goes_on() {
    let outcomes = run("--mix summarise --requests 100 --kv-tokens 16384 --policy random");
    assert!(outcomes[0].failed > 0 && outcomes[0].failed < 100, "{}", outcomes[0].failed);
}

#[test]
fn busy_workers_make_requests_wait_and_none_is_lost() {
    for fairness in ["global-strict", "round-robin", "drr", "vtc"] {
        let line = format!(
            "--mix mixed --requests 150 --rate 40 --workers 3 --policy stator \
             --active-prefill-tokens-threshold 4000 --fairness {fairness} \
             --ordering shortest-prompt {FAULTS}"
        );
        for outcome in run(&line) {
            assert!(outcome.samples.iter().any(|sample| sample.held > 0), "{fairness}");
            assert!(outcome.failed < 15, "{fairness}: {} failed", outcome.failed);
        }
    }
}

#[test]
fn a_full_queue_refuses_and_an_old_request_gives_up() {
    let line = "--mix batch --requests 300 --rate 50 --workers 1 --policy stator \
                --active-prefill-tokens-threshold 0";
    let full = &run(&format!("{line} --queue-max 10"))[0];
    let late = &run(&format!("{line} --queue-timeout-ms 3000"))[0];
    assert!(full.failed > 100 && full.failed < 300, "{}", full.failed);
    assert!(late.failed > 0 && late.failed < 300, "{}", late.failed);
}
