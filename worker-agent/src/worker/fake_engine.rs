//! An engine that computes nothing: tokens that count up, and blocks of one byte.

use stator_engine::transfer::{ArrivedBlocks, KvForm};
use stator_engine::{
    Engine, Finish, FinishReason, Output, Refusal, Request, RequestKey, Rest, Reusable, SharedKv,
    Step,
};
use stator_pins::{Now, PinOutcome};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Stored};
use stator_protos::load::Load;
use stator_protos::name::BlockName;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A prompt that makes the fake engine fail in its next step.
pub(super) const POISON: u32 = 666;
/// A prompt whose KV comes in two blocks.
pub(super) const PAIRED: u32 = 5;
/// A prompt whose KV comes in [`CHUNKS`] blocks, one a step.
pub(super) const CHUNKED: u32 = 6;
pub(super) const CHUNKS: u32 = 8;

/// Gives every request one token a step, counting up, and stores one block a step.
#[derive(Default)]
pub(super) struct Fake {
    running: Vec<(Request, u32)>,
    blocks: Vec<SequenceHash>,
    step_time: Duration,
    rest: Rest,
    /// Last blocks of prompts that come in blocks which are not computed for now.
    held_back: Arc<AtomicU32>,
    /// Prompts that are kept, and how many blocks they have.
    kept: Vec<(RequestKey, usize)>,
}

/// Blocks of a prompt.
fn blocks_of(request: &Request) -> usize {
    match request.tokens[0] {
        PAIRED => 2,
        CHUNKED => CHUNKS as usize,
        _ => 0,
    }
}

impl Fake {
    /// One whose steps take this long, and which computes all blocks but those that are held back.
    pub(super) fn new(step_time: Duration, held_back: Arc<AtomicU32>) -> Self {
        Self { step_time, held_back, ..Self::default() }
    }
}

impl Engine for Fake {
    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        if request.tokens[0] == 0 {
            return Err(Refusal::QueueFull { waiting: 1, limit: 1 });
        }
        self.running.push((request, 0));
        Ok(())
    }

    fn cancel(&mut self, key: RequestKey) {
        self.running.retain(|(request, _)| request.key != key);
        self.kept.retain(|(kept, _)| *kept != key);
    }

    fn step(&mut self, step: &mut Step) {
        assert!(!self.running.iter().any(|(request, _)| request.tokens[0] == POISON), "poisoned");
        let held_back = self.held_back.load(Relaxed);
        let is_halted = |request: &Request, generated: u32| {
            request.tokens[0] == CHUNKED && generated + held_back >= CHUNKS
        };
        let mut running = self.running.iter();
        if running.all(|(it, generated)| is_halted(it, *generated)) || self.rest != Rest::Awake {
            return;
        }
        (step.ran, step.duration) = (true, self.step_time);
        let hash = self.blocks.len() as u64;
        let parent = self.blocks.last().map(|hash| hash.0);
        self.blocks.push(SequenceHash(hash));
        step.events.push(KvEvent::Stored(Stored {
            hashes: vec![hash],
            parent,
            tokens: vec![1],
            block_size: 1,
            medium: Medium::Device,
            lora_name: None,
        }));
        self.running.retain_mut(|(request, generated)| {
            if is_halted(request, *generated) {
                return true;
            }
            *generated += 1;
            let is_chunked = request.tokens[0] == CHUNKED;
            if is_chunked && *generated < CHUNKS {
                return true;
            }
            let last = is_chunked || *generated == request.sampling.max_tokens;
            let finish = last.then_some(Finish {
                reason: FinishReason::Length,
                prompt_tokens: 1,
                completion_tokens: *generated,
                cached_tokens: 0,
            });
            for choice in 0..request.choices {
                step.outputs.push(Output {
                    key: request.key,
                    choice,
                    tokens: vec![*generated],
                    logprobs: vec![],
                    prompt_logprobs: vec![],
                    cached_tokens: None,
                    pooled: vec![],
                    finish,
                });
            }
            !last
        });
    }

    fn load(&self) -> Load {
        Load { running: self.running.len() as u32, ..Load::default() }
    }

    fn blocks(&self) -> Vec<SequenceHash> {
        self.blocks.clone()
    }

    fn reset_cache(&mut self) {
        self.blocks.clear();
        let running = &mut self.running;
        self.kept.retain(|(key, _)| running.iter().any(|(request, _)| request.key == *key));
        running.iter_mut().for_each(|(_, generated)| *generated = 0);
    }

    fn rest(&mut self, rest: Rest) {
        self.rest = rest;
    }

    fn kv(&mut self) -> &mut dyn SharedKv {
        self
    }
}

/// Blocks of a byte each, which is their place.
impl SharedKv for Fake {
    fn form(&self) -> KvForm {
        KvForm { fingerprint: 1, block_bytes: 1 }
    }

    fn keep(&mut self, key: RequestKey) {
        let mut requests = self.running.iter().map(|(request, _)| request);
        let request = requests.find(|request| request.key == key).expect("it was just submitted");
        self.kept.push((key, blocks_of(request)));
    }

    fn kept(&self, key: RequestKey) -> usize {
        let blocks =
            self.kept.iter().find(|(kept, _)| *kept == key).map_or(0, |(_, blocks)| *blocks);
        let running = self.running.iter().find(|(request, _)| request.key == key);
        running.map_or(blocks, |(_, generated)| blocks.min(*generated as usize))
    }

    fn export(&self, key: RequestKey, block: usize) -> Option<&[u8]> {
        const KV: [u8; CHUNKS as usize] = [0, 1, 2, 3, 4, 5, 6, 7];
        KV[..self.kept(key)].chunks(1).nth(block)
    }

    fn reusable(&self, request: &mut Request) -> Reusable {
        let names = (0..blocks_of(request) as u128).map(BlockName).collect();
        Reusable { held: 0, names }
    }

    fn pin(&mut self, request: &mut Request, _: Duration, _: Now) -> PinOutcome {
        PinOutcome { pinned: self.reusable(request).names.len(), refused: 0 }
    }

    fn unpin(&mut self, _: Now) {}

    fn import(&mut self, _: &Request, first: usize, blocks: &mut dyn ArrivedBlocks) -> usize {
        let is_right = |block: &usize| {
            let (place, mut kv) = (first + block, [9]);
            let is_named = blocks.name(*block) == Some(BlockName(place as u128));
            is_named && blocks.load(*block, &mut kv) && kv == [place as u8]
        };
        (0..).take_while(is_right).count()
    }
}
