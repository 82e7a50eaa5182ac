//! What the tests of engines have in common: requests, and running them to their end.

pub(crate) mod tiers;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::KvEvent;

use super::transfer::ArrivedBlocks;
use super::{
    AnswerRules, Engine, Finish, FinishReason, Output, Request, RequestKey, SharedKv, Step,
    TokenLogprobs,
};
use stator_protos::name::BlockName;
use stator_protos::worker::Sampling;

/// Blocks on their way between two engines: names and KV.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cargo(pub(crate) Vec<(BlockName, Vec<u8>)>);

impl Cargo {
    /// Copies of the blocks of these names that an engine has of a prompt, from place `first` on.
    pub(crate) fn of(
        kv: &dyn SharedKv,
        key: RequestKey,
        first: usize,
        names: &[BlockName],
    ) -> Self {
        let block =
            |(place, name): (usize, &BlockName)| Some((*name, kv.export(key, place)?.to_vec()));
        Self((first..).zip(names).map_while(block).collect())
    }
}

impl ArrivedBlocks for Cargo {
    fn name(&self, block: usize) -> Option<BlockName> {
        Some(self.0.get(block)?.0)
    }

    fn load(&mut self, block: usize, kv: &mut [u8]) -> bool {
        let here = &self.0[block].1;
        let is_whole = here.len() == kv.len();
        if is_whole {
            kv.copy_from_slice(here);
        }
        is_whole
    }
}

/// One choice's answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<TokenLogprobs>,
    pub(crate) prompt_logprobs: Vec<TokenLogprobs>,
    pub(crate) pooled: Vec<f32>,
    pub(crate) finish: Option<Finish>,
}

impl Answer {
    pub(crate) fn cached_tokens(&self) -> u32 {
        self.finish.expect("an answer that has ended").cached_tokens
    }

    pub(crate) fn reason(&self) -> FinishReason {
        self.finish.expect("an answer that has ended").reason
    }
}

/// A greedy request of one choice.
pub(crate) fn request(key: u64, tokens: Vec<u32>, max_tokens: u32) -> Request {
    request_with(key, tokens, Sampling { max_tokens, ..Sampling::neutral() })
}

/// A request of one choice.
pub(crate) fn request_with(key: u64, tokens: Vec<u32>, sampling: Sampling) -> Request {
    Request {
        key: RequestKey(key),
        tokens,
        resumed: 0,
        first_choice: 0,
        choices: 1,
        sampling: Arc::new(sampling),
        cache_salt: None,
        named: None,
        rules: AnswerRules::default(),
    }
}

/// Drives an engine, collects answers, and checks that its events tell what it holds.
pub(crate) struct Driver<E> {
    pub(crate) engine: E,
    pub(crate) answers: BTreeMap<(u64, u32), Answer>,
    pub(crate) steps: usize,
    held: HashSet<SequenceHash>,
}

impl<E: Engine> Driver<E> {
    pub(crate) fn new(engine: E) -> Self {
        Self { engine, answers: BTreeMap::new(), steps: 0, held: HashSet::new() }
    }

    pub(crate) fn submit(&mut self, request: Request) {
        self.engine.submit(request).expect("the request can run");
    }

    /// One step; whether anything ran.
    pub(crate) fn step(&mut self) -> bool {
        let mut step = Step::default();
        self.engine.step(&mut step);
        self.steps += 1;
        for output in step.outputs {
            self.take(output);
        }
        for event in &step.events {
            self.replay(event);
        }
        let blocks = self.engine.blocks();
        assert_eq!(blocks.len(), self.held.len());
        assert!(blocks.iter().all(|block| self.held.contains(block)), "events tell what is held");
        step.ran
    }

    /// Steps until nothing is left to do.
    pub(crate) fn run(&mut self) {
        while self.step() {
            assert!(self.steps < 100_000, "the engine does not come to an end");
        }
        let load = self.engine.load();
        assert_eq!((load.running, load.waiting, load.used_blocks), (0, 0, 0));
    }

    /// The answer of a request's first choice.
    pub(crate) fn answer(&self, key: u64) -> &Answer {
        &self.answers[&(key, 0)]
    }

    fn take(&mut self, output: Output) {
        let answer = self.answers.entry((output.key.0, output.choice)).or_default();
        assert_eq!(answer.finish, None, "nothing follows the last output");
        answer.tokens.extend(output.tokens);
        answer.logprobs.extend(output.logprobs);
        answer.prompt_logprobs.extend(output.prompt_logprobs);
        answer.pooled.extend(output.pooled);
        answer.finish = output.finish;
    }

    fn replay(&mut self, event: &KvEvent) {
        match event {
            KvEvent::Stored(stored) => {
                assert_eq!(stored.tokens.len(), stored.hashes.len() * stored.block_size as usize);
                let parent = stored.parent.map(SequenceHash);
                assert!(parent.is_none_or(|parent| self.held.contains(&parent)), "parents first");
                for &hash in &stored.hashes {
                    assert!(self.held.insert(SequenceHash(hash)), "stored twice");
                }
            }
            KvEvent::Removed(removed) => {
                for &hash in &removed.hashes {
                    assert!(self.held.remove(&SequenceHash(hash)), "removed but not held");
                }
            }
            KvEvent::Cleared => self.held.clear(),
        }
    }
}

/// What a fresh engine answers to one request alone.
pub(crate) fn alone<E: Engine>(engine: E, request: Request) -> BTreeMap<(u64, u32), Answer> {
    let mut driver = Driver::new(engine);
    driver.submit(request);
    driver.run();
    driver.answers
}
