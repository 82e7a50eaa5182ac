//! Feeds the target that the environment variable `STATOR_FUZZ_TARGET` names. One program has all
//! targets, because linking thirty takes longer than a minute of fuzzing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use stator_fuzz::TARGETS;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("STATOR_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("STATOR_FUZZ_TARGET: {name:?} is no target")).run
});

fuzz_target!(|input: &[u8]| TARGET(input));
