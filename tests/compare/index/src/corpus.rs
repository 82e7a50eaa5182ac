//! A corpus: what a fleet was asked and what became of its caches, in the order of time.
//!
//! It is written to a file once and read by every trial, so that all of them see the same.

use crate::random::mix;
use crate::trace::{Prompt, TOKENS_PER_ID};
use anyhow::{Context as _, ensure};
use stator_protos::hash::{BlockHash, SequenceHash, next_sequence_hash};
use std::ops::Range;
use std::path::Path;

/// First word of a file.
const MAGIC: u64 = u64::from_le_bytes(*b"kvcorp01");
/// Words of a request in a file.
const REQUEST_WORDS: usize = 6;

/// A request and what its worker did to serve it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// When it came, as a part of the corpus's length: `0.0..=1.0`.
    pub at: f64,
    /// Worker that served it.
    pub worker: u32,
    /// Its blocks among all blocks of the corpus.
    pub blocks: Range<usize>,
    /// How many of them the worker held already.
    pub held: usize,
    /// Blocks that the worker evicted first, deepest first, among all that were evicted.
    pub removed: Range<usize>,
}

/// What a fleet was asked, with the changes of its caches.
#[derive(Debug, PartialEq)]
pub struct Corpus {
    /// Tokens per block.
    pub block_size: u32,
    /// Workers, numbered from 0.
    pub workers: u32,
    /// In the order of time.
    pub requests: Vec<Request>,
    /// Hashes of all requests' blocks on their own.
    pub local: Vec<u64>,
    /// Hashes of the same blocks with everything before them.
    pub sequence: Vec<u64>,
    /// Sequence hashes of evicted blocks.
    pub removed: Vec<u64>,
}

/// A prompt as both indexes want it: one chain, named in two ways.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    /// Hashes of the blocks on their own.
    pub local: &'a [u64],
    /// Hashes of the blocks with everything before them.
    pub sequence: &'a [u64],
}

/// A change of a worker's cache.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The blocks of `chain` from `start` on are held now, as those before them are.
    Stored {
        /// The worker.
        worker: u32,
        /// A prompt from its start.
        chain: Chain<'a>,
        /// First new block; at least one is new.
        start: usize,
    },
    /// Blocks are gone, deepest first.
    Removed {
        /// The worker.
        worker: u32,
        /// Their sequence hashes.
        sequence: &'a [u64],
    },
}

impl Change<'_> {
    /// The worker whose cache changes.
    pub fn worker(&self) -> u32 {
        match *self {
            Self::Stored { worker, .. } | Self::Removed { worker, .. } => worker,
        }
    }

    /// Blocks that it names.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Stored { chain, start, .. } => chain.sequence.len() - start,
            Self::Removed { sequence, .. } => sequence.len(),
        }
    }
}

impl Corpus {
    /// The whole prompt of a request.
    pub fn chain(&self, request: &Request) -> Chain<'_> {
        let blocks = request.blocks.clone();
        Chain { local: &self.local[blocks.clone()], sequence: &self.sequence[blocks] }
    }

    /// What a request changed in its worker's cache, in order.
    pub fn changes(&self, request: &Request) -> impl Iterator<Item = Change<'_>> {
        let worker = request.worker;
        let chain = self.chain(request);
        let removed = &self.removed[request.removed.clone()];
        let removed =
            (!removed.is_empty()).then_some(Change::Removed { worker, sequence: removed });
        let stored = (request.held < chain.sequence.len()).then_some(Change::Stored {
            worker,
            chain,
            start: request.held,
        });
        removed.into_iter().chain(stored)
    }

    /// Blocks that changes name: stored and removed.
    pub fn changed_blocks(&self) -> usize {
        let stored = self.requests.iter().map(|r| r.blocks.len() - r.held).sum::<usize>();
        stored + self.removed.len()
    }

    /// Reads what [`Corpus::write`] wrote.
    ///
    /// # Errors
    ///
    /// The file cannot be read or holds something else.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("{}", path.display()))?;
        let (words, rest) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|bytes| u64::from_le_bytes(*bytes));
        ensure!(rest.is_empty() && words.next() == Some(MAGIC), "{} is no corpus", path.display());
        let mut word = || words.next().context("the corpus ends early");
        let (block_size, workers) = (word()? as u32, word()? as u32);
        let (requests, blocks, removed) = (word()? as usize, word()? as usize, word()? as usize);
        let mut all: Vec<u64> = words.collect();
        ensure!(all.len() == requests * REQUEST_WORDS + blocks + removed, "the corpus ends early");
        let removed = all.split_off(requests * REQUEST_WORDS + blocks);
        let local = all.split_off(requests * REQUEST_WORDS);
        let requests: Vec<Request> =
            all.as_chunks::<REQUEST_WORDS>().0.iter().map(Request::from_words).collect();
        let mut sequence = Vec::with_capacity(local.len());
        for request in &requests {
            sequence.extend(chain_of(&local[request.blocks.clone()]));
        }
        Ok(Self { block_size, workers, requests, local, sequence, removed })
    }

    /// Writes the corpus to a file.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let sizes = [self.requests.len(), self.local.len(), self.removed.len()];
        let mut bytes = Vec::new();
        let mut put = |word: u64| bytes.extend_from_slice(&word.to_le_bytes());
        [MAGIC, self.block_size.into(), self.workers.into()].into_iter().for_each(&mut put);
        sizes.into_iter().for_each(|size| put(size as u64));
        self.requests.iter().flat_map(Request::words).for_each(&mut put);
        self.local.iter().chain(&self.removed).for_each(|&hash| put(hash));
        std::fs::write(path, bytes).with_context(|| format!("{}", path.display()))
    }
}

impl Request {
    fn words(&self) -> [u64; REQUEST_WORDS] {
        let blocks = [self.blocks.start, self.blocks.len(), self.held].map(|n| n as u64);
        // Evicted blocks are in the order of requests, so that their number is enough, but a
        // place of its own keeps a request readable without those before it.
        let removed = (self.removed.start as u64) << 32 | self.removed.len() as u64;
        [self.at.to_bits(), self.worker.into(), blocks[0], blocks[1], blocks[2], removed]
    }

    fn from_words(words: &[u64; REQUEST_WORDS]) -> Self {
        let [at, worker, first, blocks, held, removed] = *words;
        let (first, from) = (first as usize, (removed >> 32) as usize);
        Self {
            at: f64::from_bits(at),
            worker: worker as u32,
            blocks: first..first + blocks as usize,
            held: held as usize,
            removed: from..from + (removed & u64::from(u32::MAX)) as usize,
        }
    }
}

/// Sequence hashes of blocks that follow each other from the start of a prompt.
pub fn chain_of(local: &[u64]) -> impl Iterator<Item = u64> {
    continue_chain(None, local)
}

/// Sequence hashes of blocks that follow the block `parent`.
pub fn continue_chain(parent: Option<u64>, local: &[u64]) -> impl Iterator<Item = u64> {
    local.iter().scan(parent.map(SequenceHash), |parent, &block| {
        let next = next_sequence_hash(*parent, BlockHash(block));
        *parent = Some(next);
        Some(next.0)
    })
}

/// Hashes of a prompt's blocks on their own, every id cut into blocks of `block_size` tokens;
/// prompts of different `copy` have no block in common.
pub fn local_hashes(prompt: &Prompt, block_size: u32, copy: u64) -> impl Iterator<Item = u64> {
    let parts = TOKENS_PER_ID as u64 / u64::from(block_size);
    let blocks =
        prompt.ids.iter().flat_map(move |id| (0..parts).map(move |part| id * parts + part));
    blocks.map(move |block| mix(block ^ mix(copy)))
}
