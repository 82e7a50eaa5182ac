//! Restarts: what is found, and what is not believed.

use super::*;

#[test]
fn restart_reannounces_and_overwrites_nothing() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    (0..30).for_each(|name| drop(rig.write(name)));
    rig.close();
    let before = files(dir.path(), &FORM);

    let found = found(dir.path(), 8);
    assert_eq!(names(&found), (0..30).collect::<Vec<_>>());
    assert!(found.is_sorted_by_key(|block| block.depth), "parents come first");
    assert!(found.iter().all(|found| *found == block(found.name.0)));
    assert_eq!(files(dir.path(), &FORM), before);

    let rig = Rig::with_segments(dir.path(), 8);
    rig.check_reads(0..30);
    // The free places of the last segment come first.
    assert!((30..32).all(|name| rig.write(name).is_empty()));
    rig.check_reads(0..32);
}

#[test]
fn torn_descriptor_is_skipped() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    (0..8).for_each(|name| drop(rig.write(name)));
    rig.close();
    // Of block 5 only the first half of the descriptor reached the disk.
    edit(dir.path(), 1, |bytes| bytes[DESCRIPTOR_BYTES + 64..2 * DESCRIPTOR_BYTES].fill(0));
    let rig = Rig::with_segments(dir.path(), 8);
    assert_eq!(rig.read(5), Err(TierError::Missing));
    rig.check_reads([0, 1, 2, 3, 4, 6, 7]);
    assert_eq!((rig.tier.counts().torn, rig.tier.counts().found), (1, 7));
}

#[test]
fn one_flipped_byte_is_a_miss() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    (0..8).for_each(|name| drop(rig.write(name)));
    let geometry = Geometry { block_bytes: BLOCK_BYTES, segment_slots: 4 };
    let at = geometry.slot_offset(2) as usize + 4321;
    rig.close();
    edit(dir.path(), 1, |bytes| bytes[at] ^= 1);

    let rig = Rig::with_segments(dir.path(), 8);
    assert_eq!(rig.read(6), Err(TierError::Corrupt));
    assert_eq!(rig.report(), TierReport::Gone(vec![BlockName(6)]));
    assert_eq!(rig.read(6), Err(TierError::Missing));
    assert_eq!(rig.tier.counts().corrupt, 1);
    rig.check_reads([0, 1, 2, 3, 4, 5, 7]);
    rig.close();
    // Nor is it found again.
    assert_eq!(names(&found(dir.path(), 8)), [0, 1, 2, 3, 4, 5, 7]);
}

#[test]
fn stale_segment_is_never_read() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    (0..32).for_each(|name| drop(rig.write(name)));
    rig.close();
    let old = files(dir.path(), &FORM);
    let rig = Rig::with_segments(dir.path(), 8);
    // Segment 0 is recycled, its first two slots have new blocks.
    (32..34).for_each(|name| drop(rig.write(name)));
    rig.close();

    // The old descriptors of the other two slots come back: they are of an earlier use.
    let half = 2 * DESCRIPTOR_BYTES..4 * DESCRIPTOR_BYTES;
    edit(dir.path(), 0, |bytes| bytes[half.clone()].copy_from_slice(&old["segment-00000"][half]));
    assert_eq!(names(&found(dir.path(), 8)), (4..34).collect::<Vec<_>>());

    // All old descriptors come back, over new payloads: checksums tell.
    let table = 0..4 * DESCRIPTOR_BYTES;
    edit(dir.path(), 0, |bytes| bytes[table.clone()].copy_from_slice(&old["segment-00000"][table]));
    let rig = Rig::with_segments(dir.path(), 8);
    assert_eq!(rig.read(0), Err(TierError::Corrupt));
    assert_eq!(rig.read(1), Err(TierError::Corrupt));
    rig.check_reads([2, 3, 4]);
    rig.close();

    // A segment in the place of another says nothing.
    edit(dir.path(), 2, |bytes| bytes.copy_from_slice(&old["segment-00003"]));
    let rig = Rig::with_segments(dir.path(), 8);
    assert_eq!(rig.read(8), Err(TierError::Missing));
    assert_eq!(rig.tier.counts().torn, 4);
    rig.check_reads([12, 13, 14, 15]);
}

#[test]
fn other_form_is_never_read() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    (0..8).for_each(|name| drop(rig.write(name)));
    rig.close();
    let before = files(dir.path(), &FORM);
    let other = BlockForm { fingerprint: [8; 32], ..FORM };
    let rig = Rig::open(settings(dir.path(), 8), other).unwrap();
    assert_eq!(rig.read(1), Err(TierError::Missing));
    rig.write(1);
    rig.close();
    assert_eq!(files(dir.path(), &FORM), before);

    // Files that somebody moved between forms: the header is refused, descriptors are torn.
    let of_form = dir.path().join(folder::folder_name(&FORM));
    let of_other = dir.path().join(folder::folder_name(&other));
    fs::copy(of_form.join("segment-00000"), of_other.join("segment-00000")).unwrap();
    let rig = Rig::open(settings(dir.path(), 8), other).unwrap();
    assert_eq!(rig.read(1), Err(TierError::Missing));
    assert_eq!(rig.tier.counts().torn, 4);
    rig.close();
    fs::copy(of_form.join("header"), of_other.join("header")).unwrap();
    let refused = Rig::open(settings(dir.path(), 8), other).err().unwrap();
    assert!(refused.to_string().contains("another form of KV"), "{refused}");
}

#[test]
fn other_version_is_left_alone() {
    let dir = TempDir::new().unwrap();
    Rig::with_segments(dir.path(), 8).write(1);
    let header = dir.path().join(folder::folder_name(&FORM)).join("header");
    let mut bytes = fs::read(&header).unwrap();
    bytes[8] = 2;
    fs::write(&header, &bytes).unwrap();
    let before = files(dir.path(), &FORM);
    let refused = Rig::open(settings(dir.path(), 8), FORM).err().unwrap();
    assert!(refused.to_string().contains("it has version 2 of the format"), "{refused}");
    // Only the lock says who was here last.
    assert_eq!(files(dir.path(), &FORM), before);
}

#[test]
fn damaged_header_is_an_empty_tier() {
    let dir = TempDir::new().unwrap();
    Rig::with_segments(dir.path(), 8).write(1);
    let header = dir.path().join(folder::folder_name(&FORM)).join("header");
    let mut bytes = fs::read(&header).unwrap();
    bytes[60] ^= 1;
    fs::write(&header, &bytes).unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    assert_eq!(rig.read(1), Err(TierError::Missing));
    rig.write(1);
    rig.close();
    assert_eq!(names(&found(dir.path(), 8)), [1]);
}

#[test]
fn smaller_tier_keeps_the_blocks_that_fit() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 16);
    (0..64).for_each(|name| drop(rig.write(name)));
    rig.close();
    // Segments for 8 parts of the room would have 2 blocks; the old ones have 4.
    assert_eq!(names(&found(dir.path(), 4)), (0..16).collect::<Vec<_>>());
    assert_eq!(names(&found(dir.path(), 16)), (0..16).collect::<Vec<_>>());
}
