//! The conversation with the scheduler of an engine, after HELLO.

use super::filler::{FilledBlock, Filler};
use super::names::KeyNames;
use super::outbox::EngineOutbox;
use super::presence::Presence;
use super::settings::{AskHint, HintTaker};
use super::uses::AskUses;
use super::wire::{
    AgentMessage, AskFrame, AskProgress, EngineHint, EngineKey, FilledSlot, Hello, ShimMessage,
    ShimPulse, TokensFrame,
};
use super::words::ToldWords;
use crate::Block;
use crate::cache::Client;
use crate::cost::EnginePace;
use crate::store::RequestId;
use rustc_hash::FxHashSet;
use stator_protos::name::BlockName;
use std::sync::Arc;
use std::time::Duration;

/// Requests that an engine has open at most; further ones find nothing.
const REQUESTS_MAX: usize = 16_384;

/// Why a connection is closed: its shim broke a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ShimFault {
    #[error("{0} is out of place")]
    Misplaced(&'static str),
    #[error("request {0} is open already")]
    OpenAlready(u64),
    #[error("the frames of request {0} do not follow one another")]
    Frames(u64),
    #[error("more slots are filled than there are, or slot {0} does not exist")]
    Slot(u32),
    #[error("more blocks have tokens than a FILLED has entries")]
    Words,
    #[error("TOKENS gives a block {0} tokens, HELLO said {1}")]
    BlockTokens(usize, u32),
    #[error("PULSE is for another start of the agent")]
    Boot,
}

/// The state of a conversation.
pub(super) struct SchedulerSession {
    pub(super) client: Arc<Client>,
    pub(super) outbox: Arc<EngineOutbox>,
    pub(super) filler: Filler,
    pub(super) presence: Presence,
    /// Tokens of blocks that are to be filled.
    pub(super) told: ToldWords,
    pub(super) hints: Arc<HintTaker>,
    pub(super) uses: Arc<AskUses>,
    /// Slots of the arena.
    pub(super) slots: u32,
    pub(super) engine: EngineView,
}

/// The agent's view of the engine.
#[derive(Debug)]
pub(super) struct EngineView {
    fingerprint: [u8; 32],
    block_tokens: u32,
    names: KeyNames,
    pace: EnginePace,
    asking: Option<PartialAsk>,
    /// A request that was given a hint, and the hint.
    hinted: Option<(u64, EngineHint)>,
    open: FxHashSet<u64>,
}

/// A request whose frames are not all there.
#[derive(Debug)]
struct PartialAsk {
    request: u64,
    total: u32,
    first_key: Option<EngineKey>,
    names: Vec<BlockName>,
}

impl EngineView {
    pub(super) fn new(hello: &Hello) -> Self {
        Self {
            fingerprint: hello.fingerprint,
            block_tokens: hello.block_tokens,
            names: KeyNames::new(&hello.fingerprint, &[0; 16]),
            pace: Duration::from_micros(hello.prefill_us.into()).into(),
            asking: None,
            hinted: None,
            open: FxHashSet::default(),
        }
    }

    /// Adds a frame; the request when all frames are there.
    fn add(&mut self, ask: &AskFrame) -> Result<Option<PartialAsk>, ShimFault> {
        let fault = ShimFault::Frames(ask.request);
        let mut partial = match self.asking.take() {
            None if ask.first == 0 => PartialAsk {
                request: ask.request,
                total: ask.total,
                first_key: ask.keys.first().copied(),
                names: Vec::new(),
            },
            Some(partial) if partial.request == ask.request => partial,
            _ => return Err(fault),
        };
        if partial.total != ask.total || partial.names.len() != ask.first as usize {
            return Err(fault);
        }
        partial.names.extend(ask.keys.iter().map(|key| self.names.name(key)));
        if partial.names.len() == ask.total as usize {
            return Ok(Some(partial));
        }
        self.asking = Some(partial);
        Ok(None)
    }
}

impl SchedulerSession {
    /// Does what a message says. BYE and PULSE are the connection's.
    pub(super) fn on(&mut self, message: ShimMessage) -> Result<(), ShimFault> {
        match message {
            ShimMessage::Ask(ask) => return self.ask(&ask),
            ShimMessage::End { request } => {
                if self.engine.open.remove(&request) {
                    self.client.end(RequestId(request));
                    self.uses.end(request);
                    self.filler.top_up();
                }
            }
            ShimMessage::Tokens(frame) => return self.tokens(&frame),
            ShimMessage::Filled(filled) => return self.filled(&filled),
            ShimMessage::Touch(keys) => {
                let names: Vec<_> = keys.iter().map(|key| self.engine.names.name(key)).collect();
                self.client.touch(&names);
            }
            ShimMessage::Reset { namespace } => {
                self.engine.names = KeyNames::new(&self.engine.fingerprint, &namespace);
                self.told.clear();
                self.presence.reset();
                // The rest of a request would come under other names than its beginning.
                if self.engine.asking.is_some() {
                    return Err(ShimFault::Misplaced("RESET within a request"));
                }
            }
            ShimMessage::Hint { request, hint } => self.engine.hinted = Some((request, hint)),
            ShimMessage::Hello(_) => return Err(ShimFault::Misplaced("HELLO")),
            ShimMessage::Export(_) | ShimMessage::Copy(_) => {
                return Err(ShimFault::Misplaced("a worker's message"));
            }
            ShimMessage::Pulse(_) | ShimMessage::Bye => {}
        }
        Ok(())
    }

    /// Takes what a sign of life tells.
    pub(super) fn pulse(&mut self, pulse: &ShimPulse) {
        if pulse.prefill_us > 0 {
            self.engine.pace.block_prefill = Duration::from_micros(pulse.prefill_us.into());
            self.presence.paced(self.engine.pace.block_prefill);
        }
        self.engine.pace.load = Duration::from_micros(pulse.load_us.into());
        // Other engines may have left room since the last grant.
        self.filler.top_up();
    }

    fn ask(&mut self, ask: &AskFrame) -> Result<(), ShimFault> {
        let request = ask.request;
        if self.engine.open.contains(&request) {
            return Err(ShimFault::OpenAlready(request));
        }
        let Some(PartialAsk { first_key, names, .. }) = self.engine.add(ask)? else {
            return Ok(());
        };
        let nothing = AskProgress { request, pending: 0, slots: Vec::new() };
        if self.engine.open.len() == REQUESTS_MAX {
            self.outbox.send(&AgentMessage::Found(nothing));
            return Ok(());
        }
        let mut pace = self.engine.pace;
        if ask.prefill_us > 0 {
            pace.block_prefill = Duration::from_micros(ask.prefill_us.into());
        }
        self.engine.open.insert(request);
        self.outbox.asking(request);
        self.hint(request, first_key, &names);
        let found = self.client.ask(RequestId(request), &names, pace);
        self.uses.found(request, found.ready.len());
        let pending = found.pending as u32;
        self.outbox.found(&AskProgress { pending, slots: found.ready, ..nothing });
        Ok(())
    }

    fn tokens(&mut self, frame: &TokensFrame) -> Result<(), ShimFault> {
        let told = frame.blocks.first().map_or(0, |block| block.tokens.len());
        if told != self.engine.block_tokens as usize {
            return Err(ShimFault::BlockTokens(told, self.engine.block_tokens));
        }
        // After a reset the same tokens have other KV, of which routers hear nothing.
        let is_taken = self.presence.is_reset() || self.told.add(frame, &self.engine.names);
        if is_taken { Ok(()) } else { Err(ShimFault::Words) }
    }

    /// Passes on the hint of a request, or what may be one.
    fn hint(&mut self, request: u64, first_key: Option<EngineKey>, names: &[BlockName]) {
        let given = self.engine.hinted.take_if(|(of, _)| *of == request);
        let given = given.map(|(_, hint)| AskHint::Given(hint));
        let Some(hint) = given.or(first_key.map(AskHint::FirstKey)) else { return };
        let block = |(depth, name): (u32, &BlockName)| Block {
            name: *name,
            hash: None,
            parent: None,
            depth,
            tenant: crate::TenantKey::default(),
        };
        let noted = (self.hints)(hint, &(0..).zip(names).map(block).collect::<Vec<_>>());
        if let Some(place) = noted {
            self.uses.begin(request, place, names.len());
        }
    }

    fn filled(&mut self, filled: &[FilledSlot]) -> Result<(), ShimFault> {
        if let Some(entry) = filled.iter().find(|entry| entry.slot.0 >= self.slots) {
            return Err(ShimFault::Slot(entry.slot.0));
        }
        if self.filler.backlog() + filled.len() > self.slots as usize {
            return Err(ShimFault::Slot(self.slots));
        }
        self.filler.fill(filled.iter().map(|entry| {
            let name = self.engine.names.name(&entry.key);
            let words = self.told.of(name);
            let tenant = words.map_or_else(Default::default, |words| words.tenant);
            let block = Block { name, hash: None, parent: None, depth: entry.depth, tenant };
            FilledBlock { slot: entry.slot, key: entry.key, block, words }
        }));
        self.told.clear();
        Ok(())
    }
}
