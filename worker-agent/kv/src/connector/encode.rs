//! Messages to bytes.

use super::wire::{
    AgentMessage, AskFrame, AskProgress, BlockTokens, CopyOrder, CopyOrderWay, DeviceExport,
    EngineHint, EngineKey, ExportedMemory, FilledSlot, HEADER_BYTES, Hello, NamedHolder, PROTOCOL,
    RefusalCode, ShimMessage, ShimPulse, ShimRole, TEXT_BYTES_MAX, TokensFrame, Welcome, kind,
};
use crate::SlotId;

impl ShimMessage {
    /// The message as one packet.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => encode_hello(hello),
            Self::Ask(ask) => encode_ask(ask),
            Self::End { request } => Packet::new(kind::END, *request).end(),
            Self::Filled(filled) => encode_filled(filled),
            Self::Touch(keys) => {
                Packet::new(kind::TOUCH, 0).u32(keys.len() as u32).keys(keys).end()
            }
            Self::Reset { namespace } => Packet::new(kind::RESET, 0).bytes(namespace).end(),
            Self::Pulse(pulse) => encode_pulse(pulse),
            Self::Bye => Packet::new(kind::SHIM_BYE, 0).end(),
            Self::Tokens(tokens) => encode_tokens(tokens),
            Self::Hint { request, hint: EngineHint::Noted(number) } => {
                Packet::new(kind::HINT, *request).u64(*number).end()
            }
            Self::Hint { request, hint: EngineHint::Holders(holders) } => {
                encode_holders(*request, holders)
            }
            Self::Export(export) => encode_export(export),
            Self::Copy(order) => encode_order(order),
        }
    }
}

impl AgentMessage {
    /// The message as one packet; the file of WELCOME goes beside it.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome(Welcome { boot, slots, credit, stride }) => {
                let packet = Packet::new(kind::WELCOME, 0).bytes(boot);
                packet.u32(*slots).u32(*credit).u64(*stride).end()
            }
            Self::Refused { reason, text } => encode_refused(*reason, text),
            Self::Found(progress) => encode_progress(kind::FOUND, progress),
            Self::Ready(progress) => encode_progress(kind::READY, progress),
            Self::Grant(slots) => Packet::new(kind::GRANT, 0).slots(slots).end(),
            Self::Duplicate(slots) => Packet::new(kind::DUPLICATE, 0).slots(slots).end(),
            Self::Pulse { boot } => Packet::new(kind::AGENT_PULSE, 0).bytes(boot).end(),
            Self::Bye => Packet::new(kind::AGENT_BYE, 0).end(),
            Self::Exported(result) => encode_result(Packet::new(kind::EXPORTED, 0), result),
            Self::Copied { number, result } => {
                encode_result(Packet::new(kind::COPIED, *number), result)
            }
        }
    }
}

fn encode_hello(hello: &Hello) -> Vec<u8> {
    let role = match hello.role {
        ShimRole::Scheduler => 0,
        ShimRole::Worker => 1,
    };
    Packet::new(kind::HELLO, 0)
        .u32(PROTOCOL)
        .u32(role)
        .u32(hello.rank)
        .u32(hello.world)
        .u32(hello.block_tokens)
        .u32(hello.prefill_us)
        .u64(hello.row_bytes)
        .bytes(&hello.fingerprint)
        .bytes(&hello.incarnation)
        .u32(hello.engine.len() as u32)
        .u32(hello.form.len() as u32)
        .bytes(hello.engine.as_bytes())
        .bytes(hello.form.as_bytes())
        .end()
}

fn encode_ask(ask: &AskFrame) -> Vec<u8> {
    let packet = Packet::new(kind::ASK, ask.request).u32(ask.prefill_us).u32(ask.total);
    packet.u32(ask.first).u32(ask.keys.len() as u32).keys(&ask.keys).end()
}

fn encode_filled(filled: &[FilledSlot]) -> Vec<u8> {
    let packet = Packet::new(kind::FILLED, 0).u32(filled.len() as u32);
    let add = |packet: Packet, entry: &FilledSlot| {
        packet.bytes(&entry.key.0).u32(entry.slot.0).u32(entry.depth)
    };
    filled.iter().fold(packet, add).end()
}

fn encode_tokens(frame: &TokensFrame) -> Vec<u8> {
    let TokensFrame { lora, salt, blocks } = frame;
    let block_tokens = blocks.first().map_or(0, |block| block.tokens.len());
    let packet = Packet::new(kind::TOKENS, 0).u32(block_tokens as u32).u32(lora.len() as u32);
    let packet = packet.u32(salt.len() as u32).u32(blocks.len() as u32);
    let packet = packet.bytes(lora.as_bytes()).bytes(salt.as_bytes());
    let add = |packet: Packet, block: &BlockTokens| {
        let packet = packet.bytes(&block.key.0).bytes(&block.before);
        block.tokens.iter().fold(packet, |packet, token| packet.u32(*token))
    };
    blocks.iter().fold(packet, add).end()
}

fn encode_holders(request: u64, holders: &[NamedHolder]) -> Vec<u8> {
    let packet = Packet::new(kind::HOLDERS, request).u32(holders.len() as u32);
    let add = |packet: Packet, NamedHolder { address, blocks }: &NamedHolder| {
        packet.u32(*blocks).u32(address.len() as u32).bytes(address.as_bytes())
    };
    holders.iter().fold(packet, add).end()
}

fn encode_pulse(pulse: &ShimPulse) -> Vec<u8> {
    let ShimPulse { boot, prefill_us, load_us, loaded, stored, asks_late, loads_late, faults } =
        pulse;
    let packet = Packet::new(kind::SHIM_PULSE, 0).bytes(boot).u32(*prefill_us).u32(*load_us);
    let packet = packet.u64(*loaded).u64(*stored).u64(*asks_late);
    packet.u64(*loads_late).u64(*faults).end()
}

fn encode_export(export: &DeviceExport) -> Vec<u8> {
    let DeviceExport { memory, event, device, bytes, pages, part } = export;
    let (memory, handle) = match memory {
        ExportedMemory::Ipc(handle) => (1, *handle),
        ExportedMemory::File => (2, [0; 64]),
    };
    let packet = Packet::new(kind::EXPORT, 0).u32(memory).u32(event.is_some().into());
    let packet = packet.bytes(device).u64(*bytes).bytes(&handle).bytes(&event.unwrap_or([0; 64]));
    let packet = packet.u32(pages.layers).u32(pages.heads).u32(pages.tokens);
    let packet = packet.u32(pages.content_bytes).u32(pages.count).u32(0).u64(pages.first);
    pages.strides.iter().fold(packet, |packet, stride| packet.u64(*stride)).u64(*part).end()
}

fn encode_order(order: &CopyOrder) -> Vec<u8> {
    let (way, engine) = match &order.way {
        CopyOrderWay::Store => (0, ""),
        CopyOrderWay::Load => (1, ""),
        CopyOrderWay::Pass(engine) => (2, engine.as_str()),
    };
    let packet = Packet::new(kind::COPY, order.number).u32(way).u32(engine.len() as u32);
    let packet = packet.u32(order.pairs.len() as u32).bytes(engine.as_bytes());
    order.pairs.iter().fold(packet, |packet, (from, to)| packet.u32(*from).u32(*to)).end()
}

fn encode_result(packet: Packet, result: &Result<(), String>) -> Vec<u8> {
    let text = result.as_ref().err().map_or("", String::as_str);
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    let packet = packet.u32(result.is_err().into()).u32(text.len() as u32);
    packet.bytes(text.as_bytes()).end()
}

fn encode_refused(reason: RefusalCode, text: &str) -> Vec<u8> {
    let reason = match reason {
        RefusalCode::Protocol => 1,
        RefusalCode::Form => 2,
        RefusalCode::NoCache => 3,
        RefusalCode::Crowded => 4,
    };
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    let packet = Packet::new(kind::REFUSED, 0).u32(reason).u32(text.len() as u32);
    packet.bytes(text.as_bytes()).end()
}

fn encode_progress(kind: u16, progress: &AskProgress) -> Vec<u8> {
    let packet = Packet::new(kind, progress.request);
    packet.u32(progress.pending).slots(&progress.slots).end()
}

/// A message that is being written.
struct Packet(Vec<u8>);

impl Packet {
    fn new(kind: u16, request: u64) -> Self {
        let mut header = vec![0; HEADER_BYTES];
        header[..2].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&request.to_le_bytes());
        Self(header)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, number: u32) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    fn u64(self, number: u64) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    fn keys(self, keys: &[EngineKey]) -> Self {
        keys.iter().fold(self, |packet, key| packet.bytes(&key.0))
    }

    fn slots(self, slots: &[SlotId]) -> Self {
        let packet = self.u32(slots.len() as u32);
        slots.iter().fold(packet, |packet, slot| packet.u32(slot.0))
    }

    /// Writes the length.
    fn end(mut self) -> Vec<u8> {
        let length = (self.0.len() - HEADER_BYTES) as u32;
        self.0[4..8].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}
