//! A directory that several agents share.

use super::bench::{Bench, FORM, block, settings};
use crate::arena::Arena;
use crate::object::{ObjectOpenError, ObjectSettings, ObjectTier};
use crate::tier::TierError;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

fn in_directory(directory: &TempDir) -> ObjectSettings {
    settings(&format!("file://{}/kv", directory.path().display()))
}

/// Files in the directory, without index objects.
fn extents(directory: &TempDir) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut open = vec![directory.path().to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                files.push(path);
            } else if path.file_name().unwrap() != "index" {
                open.push(path);
            }
        }
    }
    files.sort();
    files
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn second_process_hits_all() {
    let directory = TempDir::new().unwrap();
    let mut first = Bench::open(in_directory(&directory));
    assert_eq!(first.write(0..20).await, [Ok(()); 20]);
    let mut second = Bench::open(in_directory(&directory));
    second.find(0..20).await;
    assert_eq!(second.read(0..20).await, [Ok(()); 20]);
    let depths: Vec<_> = second.found.iter().map(|block| block.depth).collect();
    assert!(depths.is_sorted(), "parents first: {depths:?}");
    assert_eq!(second.found, (0..20).map(block).collect::<Vec<_>>());
    // The other way too, while both run.
    assert_eq!(second.write(20..30).await, [Ok(()); 10]);
    first.find(20..30).await;
    assert_eq!(first.read(20..30).await, [Ok(()); 10]);
}

#[tokio::test]
async fn a_restart_finds_what_was_written_before() {
    let directory = TempDir::new().unwrap();
    let first = Bench::open(in_directory(&directory));
    first.ask_writes(0..20);
    first.tier.close().await;
    let mut second = Bench::open(in_directory(&directory));
    second.find(0..20).await;
    assert_eq!(second.read(0..20).await, [Ok(()); 20]);
}

#[tokio::test]
async fn blocks_of_a_chain_are_one_request() {
    let directory = TempDir::new().unwrap();
    let mut bench = Bench::open(in_directory(&directory));
    bench.write(0..16).await;
    assert_eq!(bench.tier.counts().extents_written, 2);
    assert_eq!(bench.read(0..16).await, [Ok(()); 16]);
    assert_eq!(bench.tier.counts().reads, 2);
    assert_eq!(bench.read(11..14).await, [Ok(()); 3]);
    assert_eq!(bench.tier.counts().reads, 3);
}

#[tokio::test]
async fn what_nobody_wrote_is_missing() {
    let directory = TempDir::new().unwrap();
    let mut bench = Bench::open(in_directory(&directory));
    bench.write(0..3).await;
    let expected = [Ok(()), Ok(()), Err(TierError::Missing), Err(TierError::Missing)];
    assert_eq!(bench.read(1..5).await, expected);
}

#[tokio::test]
async fn the_same_blocks_are_one_extent_whoever_writes_them() {
    let directory = TempDir::new().unwrap();
    let mut benches =
        [Bench::open(in_directory(&directory)), Bench::open(in_directory(&directory))];
    for bench in &mut benches {
        assert_eq!(bench.write(0..8).await, [Ok(()); 8]);
    }
    assert_eq!(extents(&directory).len(), 1);
    assert_eq!(benches[0].write(0..8).await, [Ok(()); 8], "known already");
    for bench in &mut benches {
        assert_eq!(bench.read(0..8).await, [Ok(()); 8]);
    }
}

#[tokio::test]
async fn a_flipped_bit_is_a_miss_and_its_neighbours_are_not() {
    let directory = TempDir::new().unwrap();
    let mut bench = Bench::open(in_directory(&directory));
    bench.write(0..4).await;
    let [extent] = &extents(&directory)[..] else { panic!("one extent") };
    change(extent, |bytes| {
        let end = bytes.len();
        bytes[end - 3 * (FORM.block_bytes + 64)] ^= 1;
    });
    assert_eq!(bench.read(0..4).await, [Ok(()), Err(TierError::Corrupt), Ok(()), Ok(())]);
    assert_eq!(bench.read(1..2).await, [Err(TierError::Missing)]);
    bench.lose(1..2).await;
    assert_eq!(bench.tier.counts().blocks_corrupt, 1);
    assert_eq!(bench.write(1..2).await, [Ok(())]);
    assert_eq!(bench.read(0..4).await, [Ok(()); 4]);
}

#[tokio::test]
async fn a_bit_may_flip_anywhere_and_the_block_is_written_anew() {
    let trailer = FORM.block_bytes;
    for at in [0, trailer - 1, trailer, trailer + 8, trailer + 24] {
        let directory = TempDir::new().unwrap();
        let mut bench = Bench::open(in_directory(&directory));
        bench.write(0..1).await;
        change(&extents(&directory)[0], |bytes| {
            let frame = bytes.len() - trailer - 64;
            bytes[frame + at] ^= 0x20;
        });
        assert_eq!(bench.read(0..1).await, [Err(TierError::Corrupt)], "byte {at}");
        assert_eq!(bench.write(0..1).await, [Ok(())]);
        assert_eq!(bench.read(0..1).await, [Ok(())], "byte {at}");
        assert_eq!(extents(&directory).len(), 1);
    }
}

#[tokio::test]
async fn an_extent_that_is_cut_short_or_gone_or_anothers_is_a_miss() {
    let directory = TempDir::new().unwrap();
    let mut bench = Bench::open(in_directory(&directory));
    bench.write(0..24).await;
    let [cut, gone, other] = &extents(&directory)[..] else { panic!("three extents") };
    change(cut, |bytes| bytes.truncate(bytes.len() - 1));
    fs::remove_file(gone).unwrap();
    // An extent of other blocks under this one's name: as long, and all in order.
    let mut stranger = Bench::open(settings(&format!("file://{}/x", directory.path().display())));
    stranger.write(100..108).await;
    let theirs =
        extents(&directory).into_iter().find(|path| path.starts_with(directory.path().join("x")));
    fs::copy(theirs.unwrap(), other).unwrap();
    let ends = bench.read(0..24).await;
    assert_eq!(ends.iter().filter(|end| **end == Err(TierError::Corrupt)).count(), 16);
    assert_eq!(ends.iter().filter(|end| **end == Err(TierError::Missing)).count(), 8);
    bench.lose(0..24).await;
    assert_eq!(bench.tier.counts().outages, 0);
}

#[tokio::test]
async fn a_block_that_others_put_there_is_a_miss() {
    let directory = TempDir::new().unwrap();
    let with_key = |key: u8| ObjectSettings { key: Some([key; 32]), ..in_directory(&directory) };
    let mut fleet = Bench::open(with_key(1));
    fleet.write(0..4).await;
    // Whoever has another secret sees nothing of the fleet's, and overwrites what it cannot use.
    let mut other = Bench::open(with_key(2));
    assert_eq!(other.read(0..4).await, [Err(TierError::Missing); 4]);
    other.write(0..4).await;
    assert_eq!(other.read(0..4).await, [Ok(()); 4]);
    assert_eq!(fleet.read(0..4).await, [Err(TierError::Corrupt); 4]);
    assert!(fleet.tier.counts().blocks_corrupt >= 4);
}

#[tokio::test]
async fn a_slot_that_changed_is_not_written() {
    let directory = TempDir::new().unwrap();
    let mut bench = Bench::open(in_directory(&directory));
    bench.ask_writes(0..2);
    bench.arena.write(crate::SlotId(1), &super::bench::kv(9));
    assert_eq!(bench.write_ends(0..2).await, [Ok(()), Err(TierError::Corrupt)]);
    assert_eq!(bench.read(0..2).await, [Ok(()), Err(TierError::Missing)]);
}

#[tokio::test]
async fn a_full_directory_loses_its_oldest_extents() {
    let directory = TempDir::new().unwrap();
    let mut bench =
        Bench::open(ObjectSettings { capacity_bytes: Some(100_000), ..in_directory(&directory) });
    bench.write(0..8).await;
    bench.write(8..16).await;
    bench.write(16..24).await;
    bench.lose(0..8).await;
    assert_eq!(extents(&directory).len(), 2);
    assert_eq!(bench.read(0..8).await, [Err(TierError::Missing); 8]);
    assert_eq!(bench.read(8..24).await, [Ok(()); 16]);
}

#[tokio::test]
async fn agents_that_sweep_one_directory_disturb_no_read_and_leave_what_is_new() {
    const ROUNDS: u32 = 12;
    let directory = TempDir::new().unwrap();
    let open = || {
        Bench::open(ObjectSettings { capacity_bytes: Some(100_000), ..in_directory(&directory) })
    };
    let (mut writer, mut reader) = (open(), open());
    for round in 0..ROUNDS {
        let new = round * 8..round * 8 + 8;
        writer.ask_writes(new.clone());
        // The reader wrote these a round ago, and reads them while the writer sweeps.
        let before = round.saturating_sub(1) * 8;
        let ends = reader.read(before..before + 8).await;
        let is_harmless =
            |end: &Result<(), TierError>| matches!(end, Ok(()) | Err(TierError::Missing));
        assert!(ends.iter().all(is_harmless), "{ends:?}");
        assert_eq!(writer.write_ends(new).await, [Ok(()); 8]);
        std::mem::swap(&mut writer, &mut reader);
    }
    assert_eq!(writer.read(0..8).await, [Err(TierError::Missing); 8]);
    let last = (ROUNDS - 1) * 8;
    assert_eq!(reader.read(last..last + 8).await, [Ok(()); 8]);
    for agent in [writer, reader] {
        assert_eq!(agent.tier.counts().outages, 0);
        agent.tier.close().await;
    }
}

#[tokio::test]
async fn what_is_cleared_is_gone_for_all_also_after_a_restart() {
    use crate::tier::Tier;
    let directory = TempDir::new().unwrap();
    let mut first = Bench::open(in_directory(&directory));
    let mut second = Bench::open(in_directory(&directory));
    first.write(0..8).await;
    second.find(0..8).await;
    first.tier.clear();
    assert_eq!(first.read(0..8).await, [Err(TierError::Missing); 8]);
    second.lose(0..8).await;
    // What is written afterwards counts, under the same names too.
    assert_eq!(first.write(0..8).await, [Ok(()); 8]);
    assert_eq!(first.write(8..16).await, [Ok(()); 8]);
    assert_eq!(first.read(0..16).await, [Ok(()); 16]);
    first.tier.close().await;
    let mut third = Bench::open(in_directory(&directory));
    third.find(0..16).await;
    assert_eq!(third.read(0..16).await, [Ok(()); 16]);
    third.tier.clear();
    third.tier.close().await;
    let mut fourth = Bench::open(in_directory(&directory));
    fourth.write(20..21).await;
    fourth.read(20..21).await;
    assert_eq!(fourth.found, []);
}

#[tokio::test]
async fn whoever_asks_a_closed_tier_gets_an_end() {
    let directory = TempDir::new().unwrap();
    let mut bench = Bench::open(in_directory(&directory));
    bench.write(0..2).await;
    bench.tier.close().await;
    assert_eq!(bench.read(0..2).await, [Err(TierError::Failed); 2]);
    assert_eq!(bench.write(2..4).await, [Err(TierError::Failed); 2]);
}

#[test]
fn what_is_queued_fails_when_the_runtime_ends() {
    let directory = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut bench = runtime.block_on(async { Bench::open(in_directory(&directory)) });
    bench.ask_reads(0..3, crate::tier::Urgency::Demand);
    bench.ask_writes(0..3);
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert_eq!(bench.read_ends(0..3).await.len(), 3);
    });
}

#[tokio::test]
async fn a_share_that_is_not_mounted_is_an_error() {
    let arena = Arc::new(Arena::new(1, FORM.block_bytes).unwrap());
    let open =
        |settings| ObjectTier::open(settings, FORM, Arc::clone(&arena), Arc::new(drop)).err();
    let directory = TempDir::new().unwrap();
    let away = settings(&format!("file://{}/away/kv", directory.path().display()));
    assert!(matches!(open(away), Some(ObjectOpenError::Directory { .. })));
    let small = ObjectSettings { extent_bytes: 5_000, ..in_directory(&directory) };
    assert!(matches!(open(small), Some(ObjectOpenError::Extent { .. })));
}
