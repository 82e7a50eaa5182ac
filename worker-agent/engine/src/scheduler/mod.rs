//! Continuous batching: which sequences compute how many tokens in each step.
//!
//! A step first lets every running sequence decode, then spends the rest of its token budget on
//! prompts, in chunks, first come first served. A sequence is admitted when the blocks for all
//! its tokens are there; when a decoding one finds no block, the youngest gives its blocks back,
//! waits at the head of the queue and is recomputed later, which its client does not notice.
//!
//! The oldest running sequence always gets its block, so that every request ends.

#[cfg(test)]
mod forged_tests;
mod kept;
mod outer;
#[cfg(test)]
mod outer_tests;
mod pinned;
#[cfg(test)]
mod pinned_tests;
mod queue;
mod search;
mod sequence;
mod shared;
#[cfg(test)]
mod shared_tests;
#[cfg(test)]
mod tests;

use std::time::Duration;

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use stator_protos::hash::{HashSeed, SequenceHash};
use stator_protos::load::Load;
use stator_protos::name::NameRoot;
use stator_protos::worker::LogitBias;

use self::kept::KeptPrompt;
use self::outer::{ONBOARD_BYTES, OuterKv};
use self::pinned::PinnedPrompts;
use self::queue::{Queue, QueueAdmission};
use self::sequence::Sequence;
use super::compute::{Compute, Item, ItemResult};
use super::named::NamedBlocks;
use super::options::{EngineOptions, InvalidOption, ModelInfo};
use super::pool::Pool;
use super::tiers::OuterTiers;
use super::{Engine, Output, Refusal, Request, RequestKey, Rest, SharedKv, Step};

/// One in this many blocks may be kept for decode workers: the others are for running requests.
const KEPT_SHARE: usize = 2;

/// An engine around anything that computes. No clock, no threads, no I/O.
pub struct Scheduler<C> {
    compute: C,
    model: ModelInfo,
    options: EngineOptions,
    pool: Pool,
    /// In the order of admission: the last is the youngest.
    running: Vec<Sequence>,
    waiting: Queue,
    rest: Rest,
    /// Requests whose blocks stay held when they end, and those that are.
    kept: FxHashMap<RequestKey, KeptPrompt>,
    pinned: PinnedPrompts,
    /// KV outside the engine's memory.
    outer: Option<OuterKv>,
    /// Reused from step to step.
    results: Vec<ItemResult>,
}

impl<C: Compute> Scheduler<C> {
    /// An idle engine. `compute` must have room for the KV of `options.total_blocks` blocks.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] when an option is out of its range.
    pub fn new(
        compute: C,
        model: ModelInfo,
        options: EngineOptions,
    ) -> Result<Self, InvalidOption> {
        options.check()?;
        Ok(Self {
            compute,
            model,
            pool: Pool::new(options.total_blocks, options.block_size),
            running: Vec::new(),
            waiting: Queue::default(),
            rest: Rest::Awake,
            kept: FxHashMap::default(),
            pinned: PinnedPrompts::new(options.pins),
            outer: None,
            results: Vec::new(),
            options,
        })
    }

    /// Keeps blocks outside the engine's memory, too, and looks for them there.
    pub fn with_tiers(mut self, tiers: Box<dyn OuterTiers>) -> Self {
        let EngineOptions { total_blocks, max_running, .. } = self.options;
        self.outer = Some(OuterKv::new(tiers, total_blocks, max_running));
        self
    }

    /// Longest prompt and answer together, in tokens: the least of the model's context length,
    /// the configured one, and what fits the pool.
    pub fn context_length(&self) -> u32 {
        let configured = self.options.context_length.unwrap_or(u32::MAX);
        self.model.context_length.min(configured).min(self.pool_tokens())
    }

    fn pool_tokens(&self) -> u32 {
        self.options.total_blocks.saturating_mul(self.options.block_size)
    }

    fn block_size(&self) -> usize {
        self.options.block_size as usize
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let invalid = |message| Err(Refusal::Invalid(message));
        let (length, limit) = (request.tokens.len(), self.context_length());
        if request.resumed >= length {
            return invalid("the prompt has no tokens".into());
        }
        let pooled = request.sampling.pooled;
        if length > limit as usize || (length == limit as usize && !pooled) {
            return invalid(self.too_long(length, limit));
        }
        if pooled && (request.choices > 1 || request.resumed > 0) {
            let (choices, resumed) = (request.choices, request.resumed);
            let had = format!("{choices} choices and {resumed} resumed tokens");
            return invalid(format!("pooled: {had}, a vector is made of one prompt"));
        }
        // The proxy checks ids too, for its clients' sake; here an id out of range, whoever sent it,
        // would end the engine.
        let vocab = self.model.vocab_size;
        if let Some(token) = request.tokens.iter().find(|token| **token >= vocab) {
            return invalid(format!("token id {token} is not below the vocabulary size {vocab}"));
        }
        let mut biased = request.sampling.logit_bias.iter();
        if let Some(LogitBias { token_id: token, .. }) =
            biased.find(|entry| entry.token_id >= vocab)
        {
            return invalid(format!(
                "logit_bias: token id {token} is not below the vocabulary size {vocab}"
            ));
        }
        let (choices, most) = (request.choices, self.options.max_waiting);
        if !(1..=most).contains(&choices) || request.first_choice.checked_add(choices).is_none() {
            return invalid(format!("number of choices: {choices} is not in 1..={most}"));
        }
        let max_tokens = request.sampling.max_tokens;
        if request.resumed >= max_tokens as usize {
            return invalid(format!(
                "max_tokens: {max_tokens} is not above the {} tokens generated already",
                request.resumed
            ));
        }
        Ok(())
    }

    /// Checks that a request has the rules that it asks for.
    fn check_rules(&self, request: &Request) -> Result<(), Refusal> {
        let (sampling, rules) = (&request.sampling, &request.rules);
        if let Some(form) = sampling.form().filter(|_| rules.guide.is_none()) {
            let name = form.name();
            let message = format!("guide: the engine here has no guided decoding ({name})");
            return Err(Refusal::Invalid(message));
        }
        let Some(limit) = &sampling.thought_limit else { return Ok(()) };
        if rules.thoughts.is_none() {
            let message = "thought_limit: the engine here does not bound thoughts";
            return Err(Refusal::Invalid(message.into()));
        }
        let vocab = self.model.vocab_size;
        match limit.end_tokens.iter().find(|token| **token >= vocab) {
            None => Ok(()),
            Some(token) => Err(Refusal::Invalid(format!(
                "thought_limit: token id {token} is not below the vocabulary size {vocab}"
            ))),
        }
    }

    fn too_long(&self, length: usize, limit: u32) -> String {
        if limit == self.pool_tokens() {
            let (blocks, size) = (self.options.total_blocks, self.options.block_size);
            return format!(
                "prompt of {length} tokens and an answer do not fit the KV pool of {blocks} blocks \
                 of {size} tokens"
            );
        }
        format!("prompt of {length} tokens leaves no room for an answer in a context of {limit}")
    }

    /// Blocks that may be kept beside those that are.
    fn room_to_keep(&self) -> usize {
        let kept: usize = self.kept.values().map(|kept| kept.blocks.len()).sum();
        (self.options.total_blocks as usize / KEPT_SHARE).saturating_sub(kept)
    }

    /// A request's blocks, none of which has a name yet.
    fn unnamed(&self, request: &Request) -> NamedBlocks {
        let (salt, model) = (request.cache_salt.as_deref(), SharedKv::form(self).fingerprint);
        let root = NameRoot::new(&self.options.name_key, model, None, salt);
        NamedBlocks::new(root, HashSeed::new(None, salt), self.block_size())
    }

    /// Choices that wait, including those that wait for the first of their request.
    fn waiting(&self) -> usize {
        let siblings: usize = self.running.iter().map(|s| s.siblings as usize).sum();
        self.waiting.choices() + siblings
    }

    /// Decides what the next step computes; true if anything.
    fn plan(&mut self) -> bool {
        let mut budget = self.options.step_tokens();
        let preempted = self.plan_decode(&mut budget);
        for sequence in self.running.iter_mut().filter(|sequence| sequence.chunk == 0) {
            if sequence.remaining() > 1 && budget > 0 {
                budget -= sequence.plan(budget);
            }
        }
        // What a preemption freed is for those that still run.
        if !preempted {
            self.admit(budget);
        }
        self.running.iter().any(|sequence| sequence.chunk > 0)
    }

    /// Plans one token for every sequence that needs only one, oldest first; returns whether one
    /// was preempted for it.
    fn plan_decode(&mut self, budget: &mut usize) -> bool {
        let block_size = self.block_size();
        let before = self.running.len();
        let mut next = 0;
        while next < self.running.len() && *budget > 0 {
            let sequence = &mut self.running[next];
            if sequence.remaining() > 1 {
                next += 1;
            } else if sequence.grow(&mut self.pool, block_size) {
                *budget -= sequence.plan(1);
                next += 1;
            } else if self.running.len() > 1 || !self.pinned.give_up(&mut self.pool) {
                self.preempt_youngest();
            }
        }
        self.running.len() < before
    }

    fn preempt_youngest(&mut self) {
        if let Some(mut youngest) = self.running.pop() {
            youngest.release(&mut self.pool);
            self.waiting.push_front(youngest);
        }
    }

    fn admit(&mut self, mut budget: usize) {
        let (block_size, most) = (self.block_size(), self.options.max_running as usize);
        let block_bytes = self.compute.form().block_bytes;
        let (pool, outer) = (&mut self.pool, &mut self.outer);
        if let Some(outer) = outer {
            outer.look_ahead(&mut self.waiting, pool, block_size);
        }
        let (mut onboarded, mut is_full) = (0, false);
        while budget > 0 && self.running.len() < most && onboarded < ONBOARD_BYTES {
            // One spare block for each that runs: otherwise the newcomer would soon be preempted.
            let spare = self.running.len();
            let admitted = self.waiting.pop(most, |sequence| {
                let settled = |outer: &mut OuterKv| outer.is_settled(sequence, pool, block_size);
                if !outer.as_mut().is_none_or(settled) {
                    return QueueAdmission::AwaitsKv;
                }
                is_full = !sequence.admit(pool, block_size, spare);
                match is_full {
                    false => QueueAdmission::Admitted,
                    true => QueueAdmission::NoRoom,
                }
            });
            let Some(mut sequence) = admitted else {
                // Nobody who runs will make room.
                if std::mem::take(&mut is_full) && spare == 0 && self.pinned.give_up(pool) {
                    continue;
                }
                return;
            };
            if let Some(outer) = outer
                && let Some(coming) = sequence.onboard(pool, block_size)
            {
                onboarded += coming.blocks.len() * block_bytes;
                outer.expect(coming);
            }
            sequence.begin();
            budget -= sequence.plan(budget);
            self.running.push(sequence);
        }
    }

    /// Computes what was planned.
    fn compute(&mut self) -> Duration {
        let planned = self.running.iter().filter(|sequence| sequence.chunk > 0);
        let items: Vec<Item<'_>> = planned.map(|sequence| sequence.item(&self.model)).collect();
        self.results.clear();
        let guides: Vec<_> =
            items.iter().filter_map(|item| item.draw.and_then(|draw| draw.guide)).collect();
        let (compute, results) = (&mut self.compute, &mut self.results);
        let block_bytes = compute.form().block_bytes;
        let copies = self.outer.as_mut().map(|outer| outer.copies(&self.pool, block_bytes));
        let copies = copies.unwrap_or_default();
        let duration = match guides.is_empty() {
            true => compute.run(&items, copies, results),
            // Beside the arithmetic; a mask that is not there when its token is drawn is computed
            // then.
            false => {
                let masks = || {
                    guides.par_iter().for_each(|guide| {
                        guide.mask();
                    })
                };
                rayon::join(|| compute.run(&items, copies, results), masks).0
            }
        };
        assert_eq!(items.len(), self.results.len(), "one result per item");
        duration
    }

    /// Takes the results in: full blocks are indexed, tokens appended and reported. True if any
    /// sequence ended.
    fn apply(&mut self, outputs: &mut Vec<Output>) -> bool {
        let block_size = self.options.block_size as usize;
        let context_length = self.context_length() as usize;
        // Counted once: prompts that end in the same step share the room.
        let mut room = self.room_to_keep();
        let mut results = self.results.drain(..);
        let (mut finished, mut came) = (false, Vec::new());
        for sequence in self.running.iter_mut().filter(|sequence| sequence.chunk > 0) {
            let mut computed = results.next().expect("one result per planned sequence");
            let prompt_logprobs = std::mem::take(&mut computed.prompt_logprobs);
            sequence.take_prompt_logprobs(prompt_logprobs);
            let wants_pins = !self.pinned.is_empty();
            sequence.advance(&mut self.pool, block_size, |id, block| {
                if wants_pins {
                    came.push((block.key.name, id));
                }
                if let Some(outer) = &mut self.outer {
                    outer.offer(id, block);
                }
            });
            for (name, id) in came.drain(..) {
                self.pinned.came(name, id, &mut self.pool);
            }
            let output = match computed.token {
                Some(token) => {
                    for sibling in sequence.take_siblings().into_iter().rev() {
                        self.waiting.push_front(sibling);
                    }
                    sequence.push(token, computed, &self.model, context_length)
                }
                None => match sequence.take_pooled(computed.pooled) {
                    Some(output) => output,
                    None => continue,
                },
            };
            if output.finish.is_some() {
                if let Some(kept) = self.kept.get_mut(&output.key) {
                    *kept = sequence.keep(&mut self.pool, block_size, room);
                    room -= kept.blocks.len();
                }
                sequence.release(&mut self.pool);
                sequence.ended = true;
                finished = true;
            }
            outputs.push(output);
        }
        if finished {
            self.running.retain(|sequence| !sequence.ended);
        }
        finished
    }
}

impl<C: Compute> Engine for Scheduler<C> {
    fn submit(&mut self, mut request: Request) -> Result<(), Refusal> {
        self.check(&request)?;
        let (waiting, limit) = (self.waiting(), self.options.max_waiting);
        if waiting + request.choices as usize > limit as usize {
            return Err(Refusal::QueueFull { waiting: waiting as u32, limit });
        }
        self.check_rules(&request)?;
        let named = request.named.take().unwrap_or_else(|| self.unnamed(&request));
        let pooling = request.sampling.pooled.then_some(self.options.pooling);
        let sequence = Sequence::new(request, named).pooled_by(pooling);
        self.waiting.push_back(sequence);
        Ok(())
    }

    fn cancel(&mut self, key: RequestKey) {
        self.waiting.remove(key);
        let pool = &mut self.pool;
        if let Some(kept) = self.kept.remove(&key) {
            kept.release(pool);
        }
        self.running.retain_mut(|sequence| {
            let keep = sequence.key() != key;
            if !keep {
                sequence.release(pool);
            }
            keep
        });
    }

    fn reset_cache(&mut self) {
        while !self.running.is_empty() {
            self.preempt_youngest();
        }
        for kept in self.kept.values_mut() {
            std::mem::take(kept).release(&mut self.pool);
        }
        self.pinned.give_up(&mut self.pool);
        self.pool.clear();
        if let Some(outer) = &mut self.outer {
            outer.reset(&mut self.waiting);
        }
    }

    fn rest(&mut self, rest: Rest) {
        if rest == Rest::Asleep {
            self.reset_cache();
            self.compute.release();
        }
        self.rest = rest;
    }

    fn step(&mut self, step: &mut Step) {
        step.ran = self.rest == Rest::Awake && self.plan();
        let mut copies_later = false;
        if step.ran {
            let chunks = self.running.iter().map(|sequence| sequence.chunk);
            step.prefill_tokens = chunks.filter(|chunk| *chunk > 1).sum::<usize>() as u32;
            step.duration = self.compute();
            copies_later = !self.apply(&mut step.outputs);
        }
        if let Some(outer) = &mut self.outer {
            // Blocks of those that still run are copied while the next step computes. Those of one
            // that ended may be another's by then.
            if !copies_later {
                outer.offload(&self.pool, &self.compute);
            }
            // What is left is a reason for another step.
            step.ran |= outer.has_offers();
        }
        self.pool.drain_events(&mut step.events);
    }

    fn kv(&mut self) -> &mut dyn SharedKv {
        self
    }

    fn load(&self) -> Load {
        let prefilling = self.running.iter().filter(|sequence| !sequence.decoding);
        let remaining: usize = prefilling.map(Sequence::remaining).sum();
        Load {
            running: self.running.len() as u32,
            waiting: self.waiting() as u32,
            used_blocks: self.pool.used() as u32,
            cached_blocks: self.pool.idle() as u32,
            total_blocks: self.options.total_blocks,
            pending_prefill_tokens: (self.waiting.tokens() + remaining) as u64,
            ..Load::default()
        }
    }

    fn blocks(&self) -> Vec<SequenceHash> {
        self.pool.hashes()
    }
}
