//! Command lines and what they mean.

use super::*;
use clap::Parser;
use stator_fleet_model::{FleetSettings, Sides};
use stator_timing::PRESETS;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: SimulateArgs,
}

/// The settings of a command line.
pub(crate) fn args(line: &str) -> SimulateArgs {
    let words = std::iter::once("simulate").chain(line.split_whitespace());
    Line::try_parse_from(words).expect("a good command line").args
}

#[test]
fn defaults_are_valid_and_those_of_the_model() {
    let settings = args("").settings().expect("defaults are valid");
    let preset = PRESETS.iter().find(|preset| preset.name == "h100-llama-8b").expect("it is known");
    let sides = Sides { aggregated: 8, ..Sides::default() };
    assert_eq!(settings, FleetSettings::new(preset, sides));
}

#[test]
fn every_fault_is_named_at_once() {
    let line = "--workers 0 --timing abacus --event-loss 2 --restart-s 0.1 --block-size 48 \
                --trace x --speed 0 --max-batched-tokens 1 --edges 0 --peer-interval-ms 0.5 --peer-delay-ms 60001 \
                --adapters 3 --adapter-copies 0 --split prefill-load --split-uncached-share 2 \
                --disk-kv-tokens 9999 --disk-gb-s 0 --host-policy best --peer-kv";
    let InvalidArgs(faults) = args(line).settings().expect_err("all of it is wrong");
    let names = [
        "timing",
        "workers",
        "event_loss",
        "restart_s",
        "block_size",
        "speed",
        "max_batched_tokens",
        "edges",
        "peer_delay_ms",
        "peer_interval_ms",
        "adapters",
        "adapter_copies",
        "split_uncached_share",
        "split_prefill_tokens",
        "disk_kv_tokens",
        "disk_gb_s",
        "host_policy",
        "peer_kv",
    ];
    for name in names {
        assert!(faults.iter().any(|fault| fault.starts_with(name)), "{name}: {faults:?}");
    }
    assert_eq!(faults.len(), names.len(), "{faults:?}");
}

#[test]
fn a_run_can_be_repeated_from_its_command() {
    let line = "--policy random --mix chat --requests 30 --deaths-per-hour 3 --rate 2.5 \
                --host-kv-tokens 9999 --peer-kv";
    let first = args(line);
    let again = crate::run::command(&first, 7);
    let again = args(again.strip_prefix("stator simulate").expect("it begins so"));
    assert_eq!(serde_json::json!(again), serde_json::json!(SimulateArgs { seed: 7, ..first }));
}

#[test]
fn roles_add_up_and_splits_are_understood() {
    use stator_placement::{Split, UncachedThreshold};
    let line = "--prefill 2 --decode 3 --workers 4 --split uncached --split-uncached-tokens 100";
    let settings = args(line).settings().expect("good settings");
    assert_eq!((settings.workers(), settings.sides.prefill), (9, 2));
    let threshold = UncachedThreshold::new(100, 0.7).expect("the share is in range");
    assert_eq!(settings.split, Some(Split::Uncached(threshold)));
    assert_eq!(args("--prefill 2 --decode 3").settings().expect("good settings").workers(), 5);
    let wrong = args("--split uncached --split-uncached-share 1.5").settings();
    assert!(wrong.is_err_and(|faults| faults.to_string().contains("split_uncached_share: 1.5")));
}
