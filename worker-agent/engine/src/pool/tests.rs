use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const BLOCK_SIZE: u32 = 2;

/// A sequence as a path in a tree of few branches: its blocks are named by all turns up to them.
fn hash(path: &[u8]) -> SequenceHash {
    SequenceHash(path.iter().fold(1, |hash, turn| hash * 4 + u64::from(*turn) + 1))
}

fn key(path: &[u8]) -> BlockKey {
    let hash = hash(path);
    BlockKey { name: BlockName(hash.0.into()), hash }
}

fn tokens(turn: u8) -> [u32; 2] {
    [u32::from(turn), 9]
}

/// A holder of blocks, as a sequence would be.
#[derive(Default)]
struct Holder {
    path: Vec<u8>,
    blocks: Vec<BlockId>,
    /// Blocks at the end that are not committed yet.
    private: usize,
}

impl Holder {
    fn keys(&self) -> Vec<BlockKey> {
        (1..=self.path.len()).map(|len| key(&self.path[..len])).collect()
    }

    /// Takes what is cached and private blocks for the rest, as far as the pool goes.
    fn start(path: Vec<u8>, pool: &mut Pool) -> Self {
        let mut holder = Self { path, ..Self::default() };
        let prefix = pool.lookup(&holder.keys());
        for key in &holder.keys()[..prefix.blocks] {
            holder.blocks.push(pool.acquire(key.name).unwrap());
        }
        for _ in prefix.blocks..holder.path.len() {
            let Some(block) = pool.allocate() else { break };
            holder.blocks.push(block);
            holder.private += 1;
        }
        holder
    }

    fn commit_next(&mut self, pool: &mut Pool) {
        let Some(private) = self.private.checked_sub(1) else { return };
        let place = self.blocks.len() - self.private;
        let keys = self.keys();
        let parent = place.checked_sub(1).map(|before| keys[before].hash);
        let own = tokens(self.path[place]);
        self.blocks[place] = pool.commit(self.blocks[place], keys[place], parent, &own);
        self.private = private;
    }

    fn end(self, pool: &mut Pool) {
        for block in self.blocks.into_iter().rev() {
            pool.release(block);
        }
    }
}

/// Checks everything that must hold between any two calls.
fn check(pool: &mut Pool, holders: &[Holder], held: &mut HashMap<SequenceHash, Option<u64>>) {
    let mut events = Vec::new();
    pool.drain_events(&mut events);
    for event in events {
        match event {
            KvEvent::Stored(stored) => {
                let mut parent = stored.parent;
                assert_eq!(stored.tokens.len(), stored.hashes.len() * BLOCK_SIZE as usize);
                for hash in stored.hashes {
                    assert_eq!(held.insert(SequenceHash(hash), parent), None);
                    parent = Some(hash);
                }
            }
            KvEvent::Removed(removed) => {
                assert!(removed.hashes.iter().all(|h| held.remove(&SequenceHash(*h)).is_some()));
            }
            KvEvent::Cleared => held.clear(),
        }
    }
    let listed = pool.hashes();
    assert_eq!(listed.iter().copied().collect::<HashSet<_>>(), held.keys().copied().collect());
    let mut seen = HashSet::new();
    for hash in &listed {
        let parent = held[hash].map(SequenceHash);
        assert!(parent.is_none_or(|parent| seen.contains(&parent)), "prefix-closed, in order");
        seen.insert(*hash);
    }
    let committed = |holder: &Holder| holder.blocks.len() - holder.private;
    let shared = holders.iter().flat_map(|h| &h.blocks[..committed(h)]).collect::<HashSet<_>>();
    let private: Vec<_> = holders.iter().flat_map(|h| &h.blocks[committed(h)..]).collect();
    let distinct: HashSet<_> = shared.iter().copied().chain(private.iter().copied()).collect();
    assert_eq!(distinct.len(), shared.len() + private.len(), "a private block has one holder");
    assert_eq!(pool.used(), distinct.len());
    assert_eq!(pool.idle(), listed.len() - shared.len());
    assert_eq!(pool.available() + pool.used(), pool.total as usize);
    assert!(pool.free.iter().all(|free| !distinct.contains(free)), "no block is free and used");
    assert_eq!(pool.blocks.len(), pool.free.len() + pool.idle() + pool.used());
}

proptest! {
    /// Whatever sequences start, fill blocks and end: events tell what is held, what is held is
    /// prefix-closed, and no block is lost or given out twice.
    #[test]
    fn agrees_with_plain_sets(
        steps in prop::collection::vec(
            (0..4_u8, prop::collection::vec(0..2_u8, 1..6), any::<prop::sample::Index>()),
            0..120,
        ),
        total in 4..24_u32,
    ) {
        let mut pool = Pool::new(total, BLOCK_SIZE);
        let (mut holders, mut held) = (Vec::<Holder>::new(), HashMap::new());
        for (what, path, which) in steps {
            match what {
                0 => holders.push(Holder::start(path, &mut pool)),
                1 if !holders.is_empty() => {
                    let holder = holders.swap_remove(which.index(holders.len()));
                    holder.end(&mut pool);
                }
                _ if !holders.is_empty() => {
                    let which = which.index(holders.len());
                    holders[which].commit_next(&mut pool);
                }
                _ => pool.clear(),
            }
            check(&mut pool, &holders, &mut held);
        }
    }
}

#[test]
fn the_least_recently_used_leaf_goes_first() {
    let mut pool = Pool::new(4, BLOCK_SIZE);
    for path in [vec![0, 0], vec![1, 1]] {
        let mut holder = Holder::start(path, &mut pool);
        holder.commit_next(&mut pool);
        holder.commit_next(&mut pool);
        holder.end(&mut pool);
    }
    // Using the first path again makes the other the older one.
    Holder::start(vec![0, 0], &mut pool).end(&mut pool);
    pool.allocate().unwrap();
    assert_eq!(pool.lookup(&[key(&[0]), key(&[0, 0])]), Prefix { blocks: 2, idle: 2 });
    assert_eq!(pool.lookup(&[key(&[1]), key(&[1, 1])]), Prefix { blocks: 1, idle: 1 });
}

#[test]
fn consecutive_blocks_make_one_event() {
    let mut pool = Pool::new(4, BLOCK_SIZE);
    let mut holder = Holder::start(vec![1, 0, 1], &mut pool);
    (0..3).for_each(|_| holder.commit_next(&mut pool));
    let mut events = Vec::new();
    pool.drain_events(&mut events);
    let hashes = vec![hash(&[1]).0, hash(&[1, 0]).0, hash(&[1, 0, 1]).0];
    let expected = Stored {
        hashes,
        parent: None,
        tokens: vec![1, 9, 0, 9, 1, 9],
        block_size: BLOCK_SIZE,
        medium: Medium::Device,
        lora_name: None,
    };
    assert_eq!(events, [KvEvent::Stored(expected)]);
}

#[test]
fn a_pool_that_is_all_held_gives_out_nothing() {
    let mut pool = Pool::new(2, BLOCK_SIZE);
    assert_eq!((pool.allocate(), pool.allocate()), (Some(BlockId(0)), Some(BlockId(1))));
    assert_eq!(pool.allocate(), None);
    pool.release(BlockId(1));
    assert_eq!(pool.allocate(), Some(BlockId(1)));
}

#[test]
fn blocks_that_share_a_sequence_hash_are_told_apart_by_name() {
    let mut pool = Pool::new(2, BLOCK_SIZE);
    let own = key(&[1]);
    let forged = BlockKey { name: BlockName(0), ..own };
    let first = pool.allocate().unwrap();
    pool.commit(first, forged, None, &tokens(0));
    assert_eq!((pool.lookup(&[own]).blocks, pool.acquire(own.name)), (0, None));
    let second = pool.allocate().unwrap();
    assert_eq!(pool.commit(second, own, None, &tokens(1)), second);
    assert_eq!((pool.acquire(forged.name), pool.acquire(own.name)), (Some(first), Some(second)));
}
