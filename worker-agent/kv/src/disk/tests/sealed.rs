//! Encryption: what is on disk shows nothing, and nothing is read without the key.

use super::*;
use crate::cipher::KvKey;

fn sealed(dir: &Path, secret: Option<&str>) -> DiskSettings {
    let key = secret.map(|secret| KvKey::of_secret(secret.as_bytes()));
    DiskSettings { key, ..settings(dir, 8) }
}

fn open(dir: &Path, secret: Option<&str>) -> Result<Rig, OpenError> {
    Rig::open(sealed(dir, secret), FORM)
}

#[test]
fn encrypted_blocks_survive_a_restart_and_show_nothing() {
    let dir = TempDir::new().unwrap();
    // Names that do not look like anything else.
    let name = |number: u128| (0x0123_4567_89ab_cdef << 64) + number;
    let rig = open(dir.path(), Some("a")).unwrap();
    (0..32).for_each(|number| drop(rig.write(name(number))));
    rig.check_reads((0..32).map(name));
    // Hot blocks stay where they are, and get another descriptor.
    assert!(!rig.write(name(40)).is_empty());
    rig.close();
    let all = files(dir.path(), &FORM).into_values().flatten().collect::<Vec<u8>>();
    let shows = |part: &[u8]| all.windows(part.len()).any(|window| window == part);
    for number in 0..41 {
        assert!(!shows(&kv(name(number), BLOCK_BYTES)[..16]), "payload of block {number}");
        assert!(!shows(&BlockName(name(number)).to_bytes()), "name of block {number}");
    }
    let rig = open(dir.path(), Some("a")).unwrap();
    rig.check_reads((4..32).chain([40]).map(name));
    assert_eq!(rig.tier.counts().torn, 0);
}

#[test]
fn another_key_or_none_or_one_too_many_is_refused_in_words() {
    let (own, plain) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    open(own.path(), Some("a")).unwrap().write(1);
    open(plain.path(), None).unwrap().write(1);
    let before = (files(own.path(), &FORM), files(plain.path(), &FORM));
    let cases = [
        (&own, Some("b"), "is encrypted with another key"),
        (&own, None, "is encrypted, and there is no key"),
        (&plain, Some("a"), "is not encrypted"),
    ];
    for (dir, secret, words) in cases {
        let refused = open(dir.path(), secret).err().unwrap().to_string();
        assert!(refused.starts_with("kv-key-file: ") && refused.contains(words), "{refused}");
    }
    assert_eq!((files(own.path(), &FORM), files(plain.path(), &FORM)), before);
    open(own.path(), Some("a")).unwrap().check_reads([1]);
}

#[test]
fn a_flipped_bit_of_an_encrypted_block_is_a_miss_and_counted() {
    let dir = TempDir::new().unwrap();
    let rig = open(dir.path(), Some("a")).unwrap();
    (0..8).for_each(|name| drop(rig.write(name)));
    rig.close();
    let geometry = Geometry { block_bytes: BLOCK_BYTES, segment_slots: 4 };
    // A payload, and the descriptor of another block.
    edit(dir.path(), 1, |bytes| bytes[geometry.slot_offset(2) as usize + 4321] ^= 1);
    edit(dir.path(), 1, |bytes| bytes[DESCRIPTOR_BYTES + 60] ^= 1);
    let rig = open(dir.path(), Some("a")).unwrap();
    assert_eq!(rig.read(6), Err(TierError::Corrupt));
    assert_eq!(rig.report(), TierReport::Gone(vec![BlockName(6)]));
    assert_eq!(rig.read(5), Err(TierError::Missing));
    assert_eq!((rig.tier.counts().corrupt, rig.tier.counts().torn), (1, 1));
    rig.check_reads([0, 1, 2, 3, 4, 7]);
}

#[test]
fn a_segment_moved_between_directories_of_one_key_says_nothing() {
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for dir in [&one, &two] {
        let rig = open(dir.path(), Some("a")).unwrap();
        (0..4).for_each(|name| drop(rig.write(name)));
    }
    let folder = |dir: &TempDir| dir.path().join(folder::folder_name(&FORM)).join("segment-00000");
    fs::copy(folder(&one), folder(&two)).unwrap();
    let rig = open(two.path(), Some("a")).unwrap();
    assert_eq!(rig.read(1), Err(TierError::Missing));
    assert_eq!(rig.tier.counts().torn, 4);
}
