//! The index against literal sets, on prompts as they come in production.
//!
//! Prompts are made in the shapes of the public traces of Mooncake, since a clone of the project has
//! none of these. Those that `STATOR_TEST_TRACES` names are replayed too: paths of unpacked `.jsonl`
//! files, with colons between.

use stator_kv_index::{Index, IndexSettings, Overlaps};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};
use stator_protos::{Generation, WorkerId, WorkerRank};
use std::collections::{HashMap, HashSet, VecDeque};

/// Requests after which a worker forgets one.
const REMEMBERED: usize = 40;
/// Requests from one restart of a worker to the next.
const RESTARTS: usize = 97;

/// Splitmix64: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % end
    }
}

fn mix(number: u64) -> u64 {
    let mixed = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// A prompt's blocks, each known by itself and all before it.
fn chain(blocks: &[u64]) -> Vec<u64> {
    let next = |before: &mut u64, block: &u64| {
        *before = mix(before.rotate_left(17) ^ mix(block + 1));
        Some(*before)
    };
    blocks.iter().scan(0, next).collect()
}

/// Conversations that go on behind a common beginning, a turn of `turn` blocks at most at a time;
/// a part of the requests begins a new one.
fn made(requests: usize, shared: u64, turn: u64, new_of_100: u64) -> Vec<Vec<u64>> {
    let (mut random, mut fresh) = (Random(7), 1_000);
    let mut talks: Vec<Vec<u64>> = Vec::new();
    let mut next = |random: &mut Random| {
        if talks.is_empty() || random.below(100) < new_of_100 {
            talks.push((0..random.below(shared + 1)).collect());
        }
        let talk = random.below(talks.len() as u64) as usize;
        let more = 1 + random.below(turn);
        talks[talk].extend(fresh..fresh + more);
        fresh += more;
        talks[talk].clone()
    };
    (0..requests).map(|_| next(&mut random)).collect()
}

/// The numbers of `"hash_ids": [..]` on each line.
fn read(trace: &str) -> Vec<Vec<u64>> {
    let ids = |line: &str| -> Option<Vec<u64>> {
        let (_, rest) = line.split_once("\"hash_ids\"")?;
        let (ids, _) = rest.split_once('[')?.1.split_once(']')?;
        ids.split(',').map(|id| id.trim().parse().ok()).collect()
    };
    trace.lines().filter_map(ids).collect()
}

/// What one worker holds, and for which of its last requests.
#[derive(Default)]
struct Worker {
    held: HashSet<u64>,
    wanted: HashMap<u64, u32>,
    requests: VecDeque<Vec<u64>>,
    life: u64,
}

impl Worker {
    /// Answers a request; the events of that.
    fn answer(&mut self, chain: &[u64]) -> Vec<KvEvent> {
        let has = chain.iter().take_while(|hash| self.held.contains(hash)).count();
        let (parent, new) = (has.checked_sub(1).map(|last| chain[last]), chain[has..].to_vec());
        for &hash in chain {
            self.held.insert(hash);
            *self.wanted.entry(hash).or_default() += 1;
        }
        self.requests.push_back(chain.to_vec());
        let (tokens, block_size, lora_name) = (Vec::new(), 16, None);
        let medium = Medium::Device;
        let stored = Stored { hashes: new, parent, tokens, block_size, medium, lora_name };
        let mut events = vec![KvEvent::Stored(stored)];
        if self.requests.len() > REMEMBERED {
            let mut hashes = self.requests.pop_front().unwrap_or_default();
            hashes.retain(|hash| {
                let wanted = self.wanted.get_mut(hash).expect("a request of it was answered");
                *wanted -= 1;
                *wanted == 0 && self.held.remove(hash)
            });
            events.push(KvEvent::Removed(Removed { hashes, medium }));
        }
        events
    }
}

/// Replays prompts on so many workers. Of one prompt in `every` the answers for all workers are
/// those of literal sets. How many blocks were found.
fn replay(prompts: &[Vec<u64>], workers: u64, every: usize) -> u64 {
    let rank = |number: u64| WorkerRank { worker: WorkerId(number), rank: 0 };
    let index = Index::new(IndexSettings::default());
    let mut fleet: Vec<Worker> = (0..workers).map(|_| Worker::default()).collect();
    (0..workers).for_each(|number| _ = index.insert(rank(number), Generation(0)));
    let (mut random, mut out, mut found) = (Random(1), Overlaps::default(), 0);
    for (number, blocks) in prompts.iter().enumerate() {
        let chain = chain(blocks);
        let sequence: Vec<_> = chain.iter().copied().map(SequenceHash).collect();
        if number % every == 0 {
            index.overlap(&sequence, &mut out);
            for (at, worker) in (0..).zip(&fleet) {
                let held = chain.iter().take_while(|hash| worker.held.contains(hash)).count();
                let told = out.of(rank(at));
                assert_eq!(told.blocks() as usize, held, "prompt {number}, worker {at}");
                assert_eq!(told.on(Medium::Device), told.blocks());
                found += held as u64;
            }
        }
        // Often where the conversation was, and sometimes anywhere.
        let anywhere = blocks.last().copied().unwrap_or_default();
        let home = mix(blocks.iter().copied().find(|&block| block >= 1_000).unwrap_or(anywhere));
        let at = if random.below(4) == 0 { random.below(workers) } else { home % workers };
        let worker = &mut fleet[at as usize];
        if number % RESTARTS == RESTARTS - 1 {
            *worker = Worker { life: worker.life + 1, ..Worker::default() };
            assert!(index.insert(rank(at), Generation(worker.life)));
        }
        let life = Generation(worker.life);
        index.apply_all(rank(at), life, &worker.answer(&chain));
        if number % 61 == 0 {
            index.maintain(256);
        }
    }
    assert_eq!(index.stats().dropped, 0, "there is room for all");
    found
}

#[test]
fn a_trace_of_conversations_is_found_as_literal_sets_find_it() {
    let prompts = made(1_500, 3, 24, 30);
    assert!(replay(&prompts, 64, 1) > 10_000);
}

#[test]
fn a_trace_of_short_turns_behind_long_beginnings_is_found_as_literal_sets_find_it() {
    let prompts = made(1_500, 40, 3, 10);
    assert!(replay(&prompts, 16, 1) > 10_000);
}

#[test]
fn ten_thousand_workers_are_told_apart_as_literal_sets_tell_them() {
    let prompts = made(3_000, 12, 8, 30);
    assert!(replay(&prompts, 10_000, 50) > 1_000);
}

#[test]
fn traces_that_the_environment_names_are_found_as_literal_sets_find_them() {
    let paths = std::env::var("STATOR_TEST_TRACES").unwrap_or_default();
    for path in paths.split(':').filter(|path| !path.is_empty()) {
        let trace = std::fs::read_to_string(path).expect("STATOR_TEST_TRACES names files");
        let prompts = read(&trace);
        assert!(prompts.len() > 100, "{path}: {} prompts", prompts.len());
        assert!(replay(&prompts, 64, 1) > 10_000, "{path}");
        assert!(replay(&prompts, 10_000, 200) > 100, "{path}");
    }
}

#[test]
fn lines_of_a_trace_are_read() {
    let lines = "{\"timestamp\": 0, \"hash_ids\": [0, 46, 47]}\n{\"hash_ids\":[7]}\n{}\n";
    assert_eq!(read(lines), [vec![0, 46, 47], vec![7]]);
}
