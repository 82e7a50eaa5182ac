//! One choice of one request on its way through the engine.

use std::sync::Arc;

use super::kept::KeptPrompt;
use super::search::Search;
use crate::compute::{Draw, Item, ItemResult, PoolItem};
use crate::named::{BlockKey, NamedBlocks};
use crate::pool::{BlockId, Pool};
use crate::tiers::{ComingBlocks, OuterBlock, OuterTiers};
use crate::{
    AnswerRules, Finish, FinishReason, ModelInfo, Output, Pooling, Request, RequestKey,
    TokenLogprobs,
};
use stator_protos::worker::Sampling;

/// Prompt tokens computed in one step where logprobs of each are wanted: bounds the logits held.
const PROMPT_LOGPROBS_CHUNK: usize = 64;

/// A sequence of tokens, the blocks that hold its KV, and how far it is computed.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) choice: u32,
    /// Further choices, which start when this one's prompt is computed and reuse its blocks.
    pub(super) siblings: u32,
    /// Tokens to compute in the step that is being planned or run; 0 for none.
    pub(super) chunk: usize,
    /// Whether it has produced a token since it was last admitted.
    pub(super) decoding: bool,
    /// Whether it has given its last output.
    pub(super) ended: bool,
    /// Its search for KV outside the engine's memory.
    pub(super) search: Search,
    origin: Origin,
    tokens: Vec<u32>,
    /// Leading tokens whose KV is in `blocks`.
    computed: usize,
    blocks: Vec<BlockId>,
    /// Names of the leading full blocks of `tokens`, as far as they were needed yet.
    named: NamedBlocks,
    /// Prompt tokens found in the cache when it was first admitted.
    cached: Option<usize>,
    prompt_logprobs: Vec<TokenLogprobs>,
    wants_prompt_logprobs: bool,
    /// Rules of the answer, which have followed it so far.
    rules: AnswerRules,
    /// How a vector is made of the prompt, where one is wanted in the place of an answer.
    pooling: Option<Pooling>,
    /// What is there of that vector; with [`Pooling::Mean`] the sum over the computed tokens.
    pooled: Vec<f32>,
}

/// The parts that all choices of a request share.
#[derive(Clone, Debug)]
struct Origin {
    key: RequestKey,
    sampling: Arc<Sampling>,
    /// Tokens of the prompt, and with those that an earlier attempt generated.
    prompt: usize,
    submitted: usize,
}

impl Sequence {
    /// The first choice of a request, whose blocks are called as `named` says.
    pub(super) fn new(request: Request, named: NamedBlocks) -> Self {
        let origin = Origin {
            key: request.key,
            prompt: request.tokens.len() - request.resumed,
            submitted: request.tokens.len(),
            sampling: request.sampling,
        };
        let wanted = origin.sampling.prompt_logprobs.is_some();
        let mut first = Self::start(origin, request.first_choice, request.tokens, named);
        first.rules = request.rules;
        for token in &first.tokens[first.origin.prompt..] {
            first.rules.advance(*token);
        }
        first.siblings = request.choices - 1;
        first.wants_prompt_logprobs = wanted && request.resumed == 0;
        first
    }

    fn start(origin: Origin, choice: u32, tokens: Vec<u32>, named: NamedBlocks) -> Self {
        Self {
            choice,
            siblings: 0,
            chunk: 0,
            decoding: false,
            ended: false,
            search: Search::default(),
            origin,
            tokens,
            computed: 0,
            blocks: Vec::new(),
            named,
            cached: None,
            prompt_logprobs: Vec::new(),
            wants_prompt_logprobs: false,
            rules: AnswerRules::default(),
            pooling: None,
            pooled: Vec::new(),
        }
    }

    /// The same, of which a vector is made in the place of an answer.
    pub(super) fn pooled_by(self, pooling: Option<Pooling>) -> Self {
        Self { pooling, ..self }
    }

    /// Takes the further choices off this one, in order.
    pub(super) fn take_siblings(&mut self) -> Vec<Self> {
        let numbers = self.choice..=self.choice + std::mem::take(&mut self.siblings);
        let prompt = &self.tokens[..self.origin.submitted];
        let named = self.named.of_prefix(prompt.len());
        let choice = |n| {
            let mut sibling = Self::start(self.origin.clone(), n, prompt.to_vec(), named.clone());
            // This sequence has no token yet, so its rules stand at the beginning.
            sibling.rules = self.rules.clone();
            sibling
        };
        numbers.skip(1).map(choice).collect()
    }

    /// The request it belongs to.
    pub(super) fn key(&self) -> RequestKey {
        self.origin.key
    }

    /// Tokens whose KV is still to be computed.
    pub(super) fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Plans up to `budget` tokens for this step; returns how many.
    pub(super) fn plan(&mut self, budget: usize) -> usize {
        let limit = if self.wants_prompt_logprobs { PROMPT_LOGPROBS_CHUNK } else { usize::MAX };
        self.chunk = self.remaining().min(budget).min(limit);
        self.chunk
    }

    /// Keys of the blocks that need not be computed where their KV is to be had.
    fn reusable(&mut self, block_size: usize) -> &[BlockKey] {
        // At least one token must be computed to get logits.
        let reusable = (self.tokens.len() - 1) / block_size;
        let whole = self.wants_prompt_logprobs || self.pooling == Some(Pooling::Mean);
        let reusable = if whole { 0 } else { reusable };
        self.named.first(reusable, &self.tokens)
    }

    /// Leading blocks that the pool holds.
    pub(super) fn held(&mut self, pool: &Pool, block_size: usize) -> usize {
        pool.lookup(self.reusable(block_size)).blocks
    }

    /// Begins its search outside the engine's memory, unless it has begun.
    pub(super) fn search(&mut self, tiers: &mut dyn OuterTiers, pool: &Pool, block_size: usize) {
        if !self.search.is_due() {
            return;
        }
        let keys = self.reusable(block_size);
        let held = pool.lookup(keys).blocks;
        let names: Vec<_> = keys.iter().map(|key| key.name).collect();
        self.search.begin(held, tiers.look_up(self.origin.key, &names, held));
    }

    /// Takes the blocks of a prefix that is cached, and private ones for the rest of its tokens,
    /// if `spare` blocks stay available; otherwise takes none and returns false.
    pub(super) fn admit(&mut self, pool: &mut Pool, block_size: usize, spare: usize) -> bool {
        let length = self.tokens.len();
        let keys = self.reusable(block_size);
        let prefix = pool.lookup(keys);
        let missing = length.div_ceil(block_size) - prefix.blocks;
        if pool.available() < prefix.idle + missing + spare {
            return false;
        }
        let cached = keys[..prefix.blocks].iter();
        let cached = cached.map(|key| pool.acquire(key.name).expect("the pool just counted it"));
        let mut blocks: Vec<_> = cached.collect();
        let private =
            (0..missing).map(|_| pool.allocate().expect("the pool has as many as it said"));
        blocks.extend(private);
        self.blocks = blocks;
        self.computed = prefix.blocks * block_size;
        true
    }

    /// Counts the blocks that its search found as computed, and indexes them: they are copied while
    /// the step computes. The first block that cannot be used, and those behind it, are computed.
    pub(super) fn onboard(&mut self, pool: &mut Pool, block_size: usize) -> Option<ComingBlocks> {
        let (mut lookup, first, ready) = self.search.take()?;
        let held = self.computed / block_size;
        let mut blocks = Vec::new();
        for place in held..(first + ready).min(self.named.keys().len()) {
            if !lookup.holds(place - first) {
                break;
            }
            // A block of this kind that is there already needs no copy.
            if let Some((id, _)) = self.index(place, pool, block_size) {
                blocks.push((place - first, id));
            }
            self.computed += block_size;
        }
        Some(ComingBlocks { lookup, blocks })
    }

    /// Takes note of how much of the prompt need not be computed, once.
    pub(super) fn begin(&mut self) {
        self.cached.get_or_insert(self.computed.min(self.origin.prompt));
    }

    /// Indexes a block that became full; returns it if it is the first of its kind.
    fn index(
        &mut self,
        place: usize,
        pool: &mut Pool,
        block_size: usize,
    ) -> Option<(BlockId, OuterBlock)> {
        let keys = self.named.keys();
        let (key, parent) = (keys[place], place.checked_sub(1).map(|before| keys[before].hash));
        let tokens = &self.tokens[place * block_size..][..block_size];
        let own = self.blocks[place];
        let id = pool.commit(own, key, parent, tokens);
        self.blocks[place] = id;
        let (depth, space) = (place as u32, self.named.space());
        (id == own).then_some((id, OuterBlock { key, parent, depth, space }))
    }

    /// Has a block for the next token to compute; false if the pool has none.
    pub(super) fn grow(&mut self, pool: &mut Pool, block_size: usize) -> bool {
        if self.computed / block_size < self.blocks.len() {
            return true;
        }
        let block = pool.allocate();
        self.blocks.extend(block);
        block.is_some()
    }

    /// Hands its full blocks over, if they are at most `room`; the rest is given back.
    pub(super) fn keep(&mut self, pool: &mut Pool, block_size: usize, room: usize) -> KeptPrompt {
        let full = self.computed / block_size;
        if full > room {
            return KeptPrompt::default();
        }
        let rest = self.blocks.split_off(full);
        rest.into_iter().rev().for_each(|block| pool.release(block));
        KeptPrompt { blocks: std::mem::take(&mut self.blocks) }
    }

    /// Leading blocks whose KV is computed.
    pub(super) fn whole_blocks(&self, block_size: usize) -> &[BlockId] {
        &self.blocks[..self.computed / block_size]
    }

    /// Gives all blocks back; what is cached of them stays reusable for a while.
    pub(super) fn release(&mut self, pool: &mut Pool) {
        for block in self.blocks.drain(..).rev() {
            pool.release(block);
        }
        self.computed = 0;
        self.chunk = 0;
        self.decoding = false;
        self.pooled.clear();
        self.search = Search::default();
    }

    /// Its part of the step, as planned.
    pub(super) fn item<'a>(&'a self, model: &'a ModelInfo) -> Item<'a> {
        let end = self.computed + self.chunk;
        let draws = end == self.tokens.len() && self.pooling.is_none();
        let draw = draws.then_some(Draw {
            sampling: &self.origin.sampling,
            choice: self.choice,
            tokens: &self.tokens,
            prompt: self.origin.prompt,
            eos_token_ids: &model.eos_token_ids,
            guide: self.rules.guide.as_ref(),
            forced: self.rules.forced(),
        });
        let wanted = self.origin.sampling.prompt_logprobs;
        Item {
            tokens: &self.tokens,
            start: self.computed,
            end,
            blocks: &self.blocks,
            draw,
            prompt_logprobs: wanted.filter(|_| self.wants_prompt_logprobs),
            pool: self.pooling.map(|pooling| PoolItem { pooling, sum: &self.pooled }),
        }
    }

    /// Takes what the step computed: indexes blocks that became full, and tells of those that are
    /// the first of their kind.
    pub(super) fn advance(
        &mut self,
        pool: &mut Pool,
        block_size: usize,
        mut indexed: impl FnMut(BlockId, OuterBlock),
    ) {
        let full_before = self.computed / block_size;
        self.computed += std::mem::take(&mut self.chunk);
        let full = self.computed / block_size;
        self.named.first(full, &self.tokens);
        for place in full_before..full {
            if let Some((id, block)) = self.index(place, pool, block_size) {
                indexed(id, block);
            }
        }
    }

    /// Takes logprobs of the prompt, before [`Sequence::advance`]; after a preemption the first
    /// of them come a second time.
    pub(super) fn take_prompt_logprobs(&mut self, logprobs: Vec<TokenLogprobs>) {
        let known = self.prompt_logprobs.len().saturating_sub(self.computed);
        self.prompt_logprobs.extend(logprobs.into_iter().skip(known));
    }

    /// Takes a part of the prompt's vector, after [`Sequence::advance`]; returns what to tell the
    /// client once the vector is complete.
    pub(super) fn take_pooled(&mut self, pooled: Vec<f32>) -> Option<Output> {
        let pooling = self.pooling?;
        self.pooled = pooled;
        if self.remaining() > 0 {
            return None;
        }
        let mut vector = std::mem::take(&mut self.pooled);
        if pooling == Pooling::Mean {
            let count = self.tokens.len() as f32;
            vector.iter_mut().for_each(|value| *value /= count);
        }
        let cached_tokens = self.cached.unwrap_or(0) as u32;
        Some(Output {
            key: self.key(),
            choice: self.choice,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            cached_tokens: Some(cached_tokens),
            pooled: vector,
            finish: Some(Finish {
                reason: FinishReason::Pooled,
                prompt_tokens: self.origin.prompt as u32,
                completion_tokens: 0,
                cached_tokens,
            }),
        })
    }

    /// Appends the token that was drawn; returns what to tell the client.
    pub(super) fn push(
        &mut self,
        token: u32,
        computed: ItemResult,
        model: &ModelInfo,
        context_length: usize,
    ) -> Output {
        // The first output alone says what was cached.
        let first = self.tokens.len() == self.origin.submitted;
        self.tokens.push(token);
        self.rules.advance(token);
        self.decoding = true;
        self.wants_prompt_logprobs = false;
        let reason = self.reason_to_end(token, model, context_length);
        Output {
            key: self.key(),
            choice: self.choice,
            tokens: vec![token],
            logprobs: computed.logprobs.into_iter().collect(),
            prompt_logprobs: std::mem::take(&mut self.prompt_logprobs),
            cached_tokens: first.then_some(self.cached.unwrap_or(0) as u32),
            pooled: Vec::new(),
            finish: reason.map(|reason| Finish {
                reason,
                prompt_tokens: self.origin.prompt as u32,
                completion_tokens: (self.tokens.len() - self.origin.prompt) as u32,
                cached_tokens: self.cached.unwrap_or(0) as u32,
            }),
        }
    }

    fn reason_to_end(
        &self,
        token: u32,
        model: &ModelInfo,
        context_length: usize,
    ) -> Option<FinishReason> {
        let sampling = &self.origin.sampling;
        let generated = self.tokens.len() - self.origin.prompt;
        let eos = model.eos_token_ids.contains(&token);
        if eos && self.rules.guide.is_some() {
            // A form ends with its end: nothing could come behind it.
            return Some(FinishReason::Stop(token));
        }
        let eos = eos && !sampling.ignore_eos;
        let stop = eos || sampling.stop_token_ids.contains(&token);
        if stop && generated >= sampling.min_tokens as usize {
            return Some(FinishReason::Stop(token));
        }
        let full = self.tokens.len() >= context_length;
        let length = full || generated >= sampling.max_tokens as usize;
        length.then_some(FinishReason::Length)
    }
}
