//! Every target takes the inputs that were kept for it.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use stator_fuzz::TARGETS;
use std::collections::BTreeSet;
use std::path::Path;

/// Inputs of a target, each with its name.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("a folder can be read").path();
        let input = std::fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        (path.display().to_string(), input)
    };
    entries.map(read).collect()
}

#[test]
fn every_target_takes_its_seeds_whole_and_cut() {
    for target in TARGETS {
        let seeds = seeds(target.name);
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        for (name, input) in seeds {
            // A test prints this only when it fails.
            println!("{}: {name}", target.name);
            (target.run)(&input);
            // What breaks off somewhere is the commonest fault of all.
            for part in 1..8 {
                (target.run)(&input[..input.len() * part / 8]);
            }
        }
    }
}

/// Inputs made of a seed by changes of a few bytes at a time, the same in every run.
fn mutated(input: &[u8], count: usize) -> impl Iterator<Item = Vec<u8>> {
    // Bytes that mean something to some parser.
    const BYTES: &[u8] = b"\0\x7f\x80\xff\r\n \"\\{}[]:,%0-9e";
    let mut random = SmallRng::seed_from_u64(input.len() as u64);
    let mut current = input.to_vec();
    (0..count).map(move |at| {
        if at % 8 == 0 {
            current = input.to_vec();
        }
        let place = random.random_range(0..=current.len());
        let end = (place + random.random_range(0..4)).min(current.len());
        match random.random_range(0..4) {
            0 => drop(current.drain(place..end)),
            1 => current.insert(place, BYTES[random.random_range(0..BYTES.len())]),
            2 => current[place..end].fill_with(|| random.random()),
            _ => current.extend_from_within(place..end),
        }
        current.clone()
    })
}

#[test]
fn every_target_takes_its_seeds_with_changes() {
    const CHANGES: usize = 24;
    for target in TARGETS {
        for (name, input) in seeds(target.name) {
            println!("{}: {name}", target.name);
            for changed in mutated(&input, CHANGES) {
                let taken = std::panic::catch_unwind(|| (target.run)(&changed));
                assert!(taken.is_ok(), "{}: {}", target.name, changed.escape_ascii());
            }
        }
    }
}

#[test]
fn every_folder_of_seeds_has_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let folders = std::fs::read_dir(folder).expect("the seeds are there");
    let folders: BTreeSet<_> =
        folders.map(|entry| entry.expect("a folder").file_name().into_string()).collect();
    let targets = TARGETS.iter().map(|target| Ok(target.name.to_owned())).collect();
    assert_eq!(folders, targets);
}
