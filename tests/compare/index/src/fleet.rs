//! The fleet that a corpus is taken from: where each request goes and what the caches do.

use crate::corpus::{Corpus, Request, chain_of, local_hashes};
use crate::lru::Lru;
use crate::random::Random;
use crate::trace::Prompt;
use rustc_hash::FxHashMap;

/// Workers and their caches.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// Workers, at most 64.
    pub workers: u32,
    /// Tokens per block, a divisor of 512.
    pub block_size: u32,
    /// Blocks that a worker has room for, `None` if it never evicts any.
    pub capacity: Option<usize>,
    /// How often the trace is asked, each time with blocks of its own.
    pub copies: u32,
}

/// One request in this many goes to the least loaded worker, wherever its blocks are, so that
/// prefixes come to be held by several.
const SPILL: usize = 8;

/// Serves all prompts and notes what happened.
pub fn serve(fleet: Fleet, prompts: &[Prompt]) -> Corpus {
    let mut run = Run::new(fleet);
    let last_ms = prompts.last().map_or(1.0, |prompt| prompt.at_ms.max(1.0));
    for copy in 0..fleet.copies {
        for prompt in prompts {
            let at = (f64::from(copy) + prompt.at_ms / last_ms) / f64::from(fleet.copies);
            run.serve(at, prompt, copy);
        }
    }
    run.corpus
}

struct Run {
    fleet: Fleet,
    corpus: Corpus,
    /// Which workers hold a block: a bit for each.
    holders: FxHashMap<u64, u64>,
    /// What each worker used last, kept only where caches are bounded.
    caches: Vec<Lru>,
    /// Blocks that each worker has computed.
    computed: Vec<usize>,
    random: Random,
}

impl Run {
    fn new(fleet: Fleet) -> Self {
        assert!((1..=64).contains(&fleet.workers), "{} workers, at most 64", fleet.workers);
        let corpus = Corpus {
            block_size: fleet.block_size,
            workers: fleet.workers,
            requests: Vec::new(),
            local: Vec::new(),
            sequence: Vec::new(),
            removed: Vec::new(),
        };
        Self {
            fleet,
            corpus,
            holders: FxHashMap::default(),
            caches: (0..fleet.workers).map(|_| Lru::new()).collect(),
            computed: vec![0; fleet.workers as usize],
            random: Random::new(64),
        }
    }

    fn serve(&mut self, at: f64, prompt: &Prompt, copy: u32) {
        let first = self.corpus.local.len();
        self.corpus.local.extend(local_hashes(prompt, self.fleet.block_size, copy.into()));
        self.corpus.sequence.extend(chain_of(&self.corpus.local[first..]));
        let blocks = first..self.corpus.sequence.len();
        let worker = self.place(&self.corpus.sequence[blocks.clone()]);
        let spilled = self.random.below(SPILL) == 0;
        let worker = if spilled { None } else { worker }.unwrap_or_else(|| self.least_loaded(!0));
        let bit = 1 << worker;
        let chain = &self.corpus.sequence[blocks.clone()];
        let held = chain.iter().take_while(|h| self.holders.get(h).is_some_and(|m| m & bit != 0));
        let held = held.count();
        let removed = self.store(worker, blocks.clone());
        self.computed[worker as usize] += blocks.len() - held;
        self.corpus.requests.push(Request { at, worker, blocks, held, removed });
    }

    /// The worker that holds the most of a chain, if anybody holds half of it.
    fn place(&self, chain: &[u64]) -> Option<u32> {
        let (mut candidates, mut depth) = (!0, 0);
        for hash in chain {
            let left = candidates & self.holders.get(hash).copied().unwrap_or(0);
            if left == 0 {
                break;
            }
            (candidates, depth) = (left, depth + 1);
        }
        (depth * 2 >= chain.len()).then(|| self.least_loaded(candidates))
    }

    fn least_loaded(&self, candidates: u64) -> u32 {
        let workers = (0..self.fleet.workers).filter(|worker| candidates >> worker & 1 == 1);
        workers.min_by_key(|&worker| self.computed[worker as usize]).unwrap_or(0)
    }

    /// Puts a chain into a worker's cache and returns what went for it.
    fn store(&mut self, worker: u32, blocks: std::ops::Range<usize>) -> std::ops::Range<usize> {
        let first_removed = self.corpus.removed.len();
        let chain = &self.corpus.sequence[blocks];
        if let Some(capacity) = self.fleet.capacity {
            let cache = &mut self.caches[worker as usize];
            // Deepest first, so that a block is never used later than those before it, and goes
            // before them.
            chain.iter().rev().for_each(|&hash| cache.touch(hash));
            while cache.len() > capacity {
                let Some(hash) = cache.evict() else { break };
                self.corpus.removed.push(hash);
                if let Some(holders) = self.holders.get_mut(&hash) {
                    *holders &= !(1 << worker);
                    if *holders == 0 {
                        self.holders.remove(&hash);
                    }
                }
            }
        }
        for &hash in chain {
            *self.holders.entry(hash).or_default() |= 1 << worker;
        }
        first_removed..self.corpus.removed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Change;
    use crate::trace::synthesise;
    use std::collections::HashSet;

    const SMALL: Fleet = Fleet { workers: 4, block_size: 256, capacity: Some(900), copies: 2 };

    fn small() -> Corpus {
        serve(SMALL, &synthesise(1)[..400])
    }

    #[test]
    fn caches_are_closed_and_bounded() {
        let corpus = small();
        let mut held = vec![HashSet::new(); 4];
        let mut parents = FxHashMap::default();
        for request in &corpus.requests {
            for change in corpus.changes(request) {
                let cache = &mut held[change.worker() as usize];
                match change {
                    Change::Stored { chain, start, .. } => {
                        chain.sequence.windows(2).for_each(|w| _ = parents.insert(w[1], w[0]));
                        cache.extend(&chain.sequence[start..]);
                    }
                    Change::Removed { sequence, .. } => {
                        assert!(sequence.iter().all(|hash| cache.remove(hash)));
                    }
                }
            }
            let cache = &held[request.worker as usize];
            assert!(cache.len() <= 900);
            let parent_held = |hash| parents.get(hash).is_none_or(|parent| cache.contains(parent));
            assert!(cache.iter().all(parent_held));
        }
        assert!(!corpus.removed.is_empty());
    }

    #[test]
    fn a_file_holds_the_whole_corpus() {
        let corpus = small();
        let path = std::env::temp_dir().join(format!("corpus-{}", std::process::id()));
        corpus.write(&path).expect("the folder for temporary files takes it");
        let read = Corpus::read(&path).expect("it is a corpus");
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(read, corpus);
    }
}
