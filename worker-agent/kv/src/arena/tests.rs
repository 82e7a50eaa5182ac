use super::*;
use crate::checksum::checksum;
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate};

const BLOCK: usize = 5000;

fn kv(seed: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn a_slot_keeps_its_block() {
    let arena = Arena::new(3, BLOCK).unwrap();
    assert_eq!((arena.slots(), arena.block_bytes(), arena.stride()), (3, BLOCK, 8192));
    for slot in 0..3 {
        arena.write(SlotId(slot), &kv(slot as u8));
    }
    for slot in 0..3 {
        let mut read = vec![0; BLOCK];
        arena.read(SlotId(slot), &mut read);
        assert_eq!(read, kv(slot as u8));
        assert!(arena.address(SlotId(slot)).addr().is_multiple_of(SLOT_ALIGNMENT));
    }
}

#[test]
fn copies_are_whole_at_every_alignment() {
    let arena = Arena::new(1, BLOCK).unwrap();
    let kv = kv(9);
    let mut memory = vec![0; BLOCK + 4096];
    // Where the allocator put the vector is up to it: all distances within a page are tried.
    for at in (0..70).chain([1000, 4095]) {
        arena.write(SlotId(0), &vec![0; BLOCK]);
        memory[at..at + BLOCK].copy_from_slice(&kv);
        arena.write(SlotId(0), &memory[at..at + BLOCK]);
        memory.fill(0);
        arena.read(SlotId(0), &mut memory[at..at + BLOCK]);
        assert_eq!(memory[at..at + BLOCK], kv);
        assert!(memory[..at].iter().chain(&memory[at + BLOCK..]).all(|&byte| byte == 0));
    }
}

#[test]
fn every_way_to_a_checksum_gives_the_same() {
    let name = BlockName(7);
    for bytes in [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
        let kv: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let arena = Arena::new(2, bytes).unwrap();
        let mut read = vec![0; bytes];
        let expected = checksum(name, &kv);
        assert_eq!(arena.write_checked(SlotId(1), name, &kv), expected);
        assert_eq!(arena.checksum(SlotId(1), name), expected);
        assert_eq!(arena.read_checked(SlotId(1), name, &mut read), expected);
        assert_eq!(read, kv);
    }
}

#[test]
fn a_second_mapping_sees_writes_both_ways() {
    let arena = Arena::new(2, BLOCK).unwrap();
    let other = Arena::open(arena.file().try_clone_to_owned().unwrap(), 2, BLOCK).unwrap();
    assert_ne!(arena.address(SlotId(0)), other.address(SlotId(0)));
    arena.write(SlotId(0), &kv(1));
    other.write(SlotId(1), &kv(2));
    let mut read = vec![0; BLOCK];
    other.read(SlotId(0), &mut read);
    assert_eq!(read, kv(1));
    drop(other);
    arena.read(SlotId(1), &mut read);
    assert_eq!(read, kv(2));
}

#[test]
fn an_arena_outlives_the_one_who_made_it() {
    let arena = Arena::new(1, BLOCK).unwrap();
    arena.write(SlotId(0), &kv(3));
    let other = Arena::open(arena.file().try_clone_to_owned().unwrap(), 1, BLOCK).unwrap();
    drop(arena);
    let mut read = vec![0; BLOCK];
    other.read(SlotId(0), &mut read);
    assert_eq!(read, kv(3));
}

#[test]
fn arena_rss_is_what_was_asked() {
    // A quarter of a terabyte of addresses, which no test machine has as memory.
    let arena = Arena::new(1 << 17, 2 << 20).unwrap();
    let used = || fstat(&arena.file).unwrap().st_blocks as usize * 512;
    assert_eq!(used(), 0);
    let page = fstat(&arena.file).unwrap().st_blksize as usize;
    let block = vec![1; 2 << 20];
    arena.write(SlotId(5), &block);
    arena.write(SlotId((1 << 17) - 1), &block);
    arena.write(SlotId(5), &block);
    assert!((2 * block.len()..=2 * block.len() + 2 * page).contains(&used()), "{}", used());
    // Nobody wrote the slot, and reading it gives zeros.
    let mut read = vec![1; 2 << 20];
    arena.read(SlotId(9), &mut read);
    assert!(read.iter().all(|&byte| byte == 0));
}

#[test]
fn nobody_resizes_or_seals_the_file() {
    let arena = Arena::new(1, BLOCK).unwrap();
    assert!(ftruncate(arena.file(), 0).is_err());
    assert!(ftruncate(arena.file(), 1 << 20).is_err());
    assert!(fallocate(arena.file(), FallocateFlags::empty(), 0, 1 << 20).is_err());
    assert!(fcntl_add_seals(arena.file(), SealFlags::FUTURE_WRITE).is_err());
}

#[test]
fn a_file_that_is_no_arena_is_refused() {
    let arena = Arena::new(2, BLOCK).unwrap();
    let file = || arena.file().try_clone_to_owned().unwrap();
    assert!(Arena::open(file(), 3, BLOCK).is_err());
    assert!(Arena::open(file(), 2, 8193).is_err());
    let plain = tempfile::tempfile().unwrap();
    plain.set_len(1 << 20).unwrap();
    assert!(Arena::open(plain.into(), 2, BLOCK).is_err());
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    for (slots, bytes) in [(0, 1), (1, 0), (2, usize::MAX), (u32::MAX, 1 << 40), (1 << 20, 1 << 42)]
    {
        assert!(Arena::new(slots, bytes).is_err(), "{slots} x {bytes}");
    }
}

#[test]
#[should_panic(expected = "slot 2 of 2")]
fn a_slot_beyond_the_arena_is_refused() {
    Arena::new(2, BLOCK).unwrap().address(SlotId(2));
}

#[test]
#[should_panic(expected = "bytes of a block")]
fn a_block_of_another_size_is_refused() {
    Arena::new(2, BLOCK).unwrap().write(SlotId(1), &[0; BLOCK + 1]);
}
