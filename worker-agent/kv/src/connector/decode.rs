//! Bytes to messages. Whatever the bytes are, they are a message or a reason why not.

use super::wire::{
    ASK_KEYS_MAX, AgentMessage, AskFrame, AskProgress, BlockTokens, CopyOrder, CopyOrderWay,
    DeviceExport, DevicePages, ENGINE_BYTES_MAX, EngineHint, EngineKey, ExportedMemory,
    FILLED_BYTES, FilledSlot, Hello, KEY_BYTES, KEYS_MAX, NAMESPACE_BYTES_MAX, NamedHolder,
    PROTOCOL, RefusalCode, ShimMessage, ShimPulse, ShimRole, TEXT_BYTES_MAX, TokensFrame, Welcome,
    kind,
};
use crate::SlotId;
use stator_protos::worker::{KV_HOLDER_ADDRESS_MAX_BYTES, KV_HOLDERS_MAX};

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message ends before its fields do.
    #[error("the message is cut short")]
    Short,
    /// There are bytes behind its fields, or the header gives another length.
    #[error("the message is longer than its fields, or its length is wrong")]
    Length,
    /// No message of that side has this type.
    #[error("unknown type {0}")]
    Type(u16),
    /// The message takes no such flags, or no request number.
    #[error("flags or request number where there are none")]
    Header,
    /// More keys, entries, slots or bytes of text than allowed.
    #[error("{what}: {count} is over the limit of {limit}")]
    TooMany {
        /// Field that counts them.
        what: &'static str,
        /// Number of them.
        count: u32,
        /// Largest number allowed.
        limit: usize,
    },
    /// HELLO of another version of the protocol.
    #[error("protocol {0}")]
    Protocol(u32),
    /// A field has a value that it cannot have.
    #[error("{0} has an impossible value")]
    Value(&'static str),
}

impl ShimMessage {
    /// Reads a packet of the shim.
    pub fn decode(packet: &[u8]) -> Result<Self, MessageError> {
        let (header, mut body) = Header::read(packet)?;
        if header.flags != 0 {
            return Err(MessageError::Header);
        }
        let of_request =
            matches!(header.kind, kind::ASK | kind::END | kind::HINT | kind::HOLDERS | kind::COPY);
        if !of_request && header.request != 0 {
            return Err(MessageError::Header);
        }
        let message = match header.kind {
            kind::HELLO => Self::Hello(read_hello(&mut body)?),
            kind::ASK => Self::Ask(read_ask(header.request, &mut body)?),
            kind::END => Self::End { request: header.request },
            kind::FILLED => Self::Filled(read_filled(&mut body)?),
            kind::TOUCH => Self::Touch(body.keys()?),
            kind::RESET => Self::Reset { namespace: body.array()? },
            kind::SHIM_PULSE => Self::Pulse(read_pulse(&mut body)?),
            kind::SHIM_BYE => Self::Bye,
            kind::TOKENS => Self::Tokens(read_tokens(&mut body)?),
            kind::HINT => {
                Self::Hint { request: header.request, hint: EngineHint::Noted(body.u64()?) }
            }
            kind::HOLDERS => {
                let holders = read_holders(&mut body)?;
                Self::Hint { request: header.request, hint: EngineHint::Holders(holders) }
            }
            kind::EXPORT => Self::Export(Box::new(read_export(&mut body)?)),
            kind::COPY => Self::Copy(read_order(header.request, &mut body)?),
            kind => return Err(MessageError::Type(kind)),
        };
        body.end().map(|()| message)
    }
}

impl AgentMessage {
    /// Reads a packet of the agent.
    pub fn decode(packet: &[u8]) -> Result<Self, MessageError> {
        let (header, mut body) = Header::read(packet)?;
        let of_request = matches!(header.kind, kind::FOUND | kind::READY | kind::COPIED);
        if header.flags != 0 || (!of_request && header.request != 0) {
            return Err(MessageError::Header);
        }
        let message = match header.kind {
            kind::WELCOME => Self::Welcome(Welcome {
                boot: body.array()?,
                slots: body.u32()?,
                credit: body.u32()?,
                stride: body.u64()?,
            }),
            kind::REFUSED => read_refused(&mut body)?,
            kind::FOUND => Self::Found(read_progress(header, &mut body)?),
            kind::READY => Self::Ready(read_progress(header, &mut body)?),
            kind::GRANT => Self::Grant(body.slots()?),
            kind::DUPLICATE => Self::Duplicate(body.slots()?),
            kind::AGENT_PULSE => Self::Pulse { boot: body.array()? },
            kind::AGENT_BYE => Self::Bye,
            kind::EXPORTED => Self::Exported(read_result(&mut body)?),
            kind::COPIED => {
                Self::Copied { number: header.request, result: read_result(&mut body)? }
            }
            kind => return Err(MessageError::Type(kind)),
        };
        body.end().map(|()| message)
    }
}

fn read_hello(body: &mut Body<'_>) -> Result<Hello, MessageError> {
    // What follows is known of this version alone.
    let protocol = body.u32()?;
    if protocol != PROTOCOL {
        return Err(MessageError::Protocol(protocol));
    }
    let role = match body.u32()? {
        0 => ShimRole::Scheduler,
        1 => ShimRole::Worker,
        _ => return Err(MessageError::Value("role")),
    };
    let (rank, world) = (body.u32()?, body.u32()?);
    let (block_tokens, prefill_us) = (body.u32()?, body.u32()?);
    let (row_bytes, fingerprint, incarnation) = (body.u64()?, body.array()?, body.array()?);
    let engine_bytes = body.count("engine length", ENGINE_BYTES_MAX)?;
    let form_bytes = body.count("form length", TEXT_BYTES_MAX)?;
    let engine = body.text(engine_bytes)?;
    let form = body.text(form_bytes)?;
    let possible = [
        ("rank", rank < world.max(1)),
        ("block tokens", block_tokens > 0),
        ("row bytes", row_bytes > 0),
        ("engine", !engine.is_empty()),
    ];
    if let Some((what, _)) = possible.into_iter().find(|(_, possible)| !possible) {
        return Err(MessageError::Value(what));
    }
    Ok(Hello {
        role,
        rank,
        world,
        block_tokens,
        prefill_us,
        row_bytes,
        fingerprint,
        incarnation,
        engine,
        form,
    })
}

fn read_ask(request: u64, body: &mut Body<'_>) -> Result<AskFrame, MessageError> {
    let prefill_us = body.u32()?;
    let total = body.count("keys of the request", ASK_KEYS_MAX)? as u32;
    let first = body.u32()?;
    let keys = body.keys()?;
    // A frame without keys brings nothing, unless the request has none at all.
    let in_order = first.checked_add(keys.len() as u32).is_some_and(|end| end <= total);
    if !in_order || (keys.is_empty() && total > 0) {
        return Err(MessageError::Value("first or count"));
    }
    Ok(AskFrame { request, prefill_us, total, first, keys })
}

fn read_filled(body: &mut Body<'_>) -> Result<Vec<FilledSlot>, MessageError> {
    let count = body.count("entries", KEYS_MAX)?;
    let (entries, _) = body.take(count * FILLED_BYTES)?.as_chunks::<FILLED_BYTES>();
    let read = |entry: &[u8; FILLED_BYTES]| {
        let mut fields = Body(entry);
        let key = EngineKey(fields.array()?);
        Ok(FilledSlot { key, slot: SlotId(fields.u32()?), depth: fields.u32()? })
    };
    entries.iter().map(read).collect()
}

fn read_tokens(body: &mut Body<'_>) -> Result<TokensFrame, MessageError> {
    let block_tokens = body.u32()? as usize;
    let lora_bytes = body.count("adapter length", NAMESPACE_BYTES_MAX)?;
    let salt_bytes = body.count("salt length", NAMESPACE_BYTES_MAX)?;
    let count = body.count("blocks", KEYS_MAX)?;
    let (lora, salt) = (body.text(lora_bytes)?, body.text(salt_bytes)?);
    // A frame without blocks or tokens tells nothing.
    if count == 0 || block_tokens == 0 {
        return Err(MessageError::Value("count or block tokens"));
    }
    let read = |_| {
        let (key, before) = (EngineKey(body.array()?), body.array()?);
        let bytes = block_tokens.checked_mul(4).ok_or(MessageError::Short)?;
        let (tokens, _) = body.take(bytes)?.as_chunks::<4>();
        let tokens = tokens.iter().map(|token| u32::from_le_bytes(*token)).collect();
        Ok(BlockTokens { key, before, tokens })
    };
    let blocks = (0..count).map(read).collect::<Result<_, _>>()?;
    Ok(TokensFrame { lora, salt, blocks })
}

fn read_holders(body: &mut Body<'_>) -> Result<Vec<NamedHolder>, MessageError> {
    let count = body.count("holders", KV_HOLDERS_MAX)?;
    let read = |_| {
        let blocks = body.u32()?;
        let length = body.count("address length", KV_HOLDER_ADDRESS_MAX_BYTES)?;
        let address = body.text(length)?;
        match blocks > 0 && !address.is_empty() {
            true => Ok(NamedHolder { address, blocks }),
            false => Err(MessageError::Value("holder")),
        }
    };
    (0..count).map(read).collect()
}

fn read_pulse(body: &mut Body<'_>) -> Result<ShimPulse, MessageError> {
    Ok(ShimPulse {
        boot: body.array()?,
        prefill_us: body.u32()?,
        load_us: body.u32()?,
        loaded: body.u64()?,
        stored: body.u64()?,
        asks_late: body.u64()?,
        loads_late: body.u64()?,
        faults: body.u64()?,
    })
}

fn read_export(body: &mut Body<'_>) -> Result<DeviceExport, MessageError> {
    let (memory, has_event) = (body.u32()?, body.u32()?);
    let (device, bytes, handle, event) = (body.array()?, body.u64()?, body.array()?, body.array()?);
    let pages = DevicePages {
        layers: body.u32()?,
        heads: body.u32()?,
        tokens: body.u32()?,
        content_bytes: body.u32()?,
        count: body.u32()?,
        ..DevicePages::default()
    };
    let reserved = body.u32()?;
    let first = body.u64()?;
    let strides = [body.u64()?, body.u64()?, body.u64()?, body.u64()?];
    let pages = DevicePages { first, strides, ..pages };
    let memory = match memory {
        1 => ExportedMemory::Ipc(handle),
        2 if handle == [0; 64] => ExportedMemory::File,
        _ => return Err(MessageError::Value("memory")),
    };
    let event = match has_event {
        1 => Some(event),
        0 if event == [0; 64] => None,
        _ => return Err(MessageError::Value("event")),
    };
    if reserved != 0 {
        return Err(MessageError::Value("reserved"));
    }
    Ok(DeviceExport { memory, event, device, bytes, pages, part: body.u64()? })
}

fn read_order(number: u64, body: &mut Body<'_>) -> Result<CopyOrder, MessageError> {
    let way = body.u32()?;
    let length = body.count("engine length", ENGINE_BYTES_MAX)?;
    let count = body.count("pages", KEYS_MAX)?;
    let engine = body.text(length)?;
    let way = match (way, engine.is_empty()) {
        (0, true) => CopyOrderWay::Store,
        (1, true) => CopyOrderWay::Load,
        (2, false) => CopyOrderWay::Pass(engine),
        _ => return Err(MessageError::Value("way or engine")),
    };
    let pair = |_| Ok((body.u32()?, body.u32()?));
    Ok(CopyOrder { number, way, pairs: (0..count).map(pair).collect::<Result<_, _>>()? })
}

fn read_result(body: &mut Body<'_>) -> Result<Result<(), String>, MessageError> {
    let status = body.u32()?;
    let length = body.count("length", TEXT_BYTES_MAX)?;
    let text = body.text(length)?;
    match (status, text.is_empty()) {
        (0, true) => Ok(Ok(())),
        (1, _) => Ok(Err(text)),
        _ => Err(MessageError::Value("status")),
    }
}

fn read_refused(body: &mut Body<'_>) -> Result<AgentMessage, MessageError> {
    let reason = match body.u32()? {
        1 => RefusalCode::Protocol,
        2 => RefusalCode::Form,
        3 => RefusalCode::NoCache,
        4 => RefusalCode::Crowded,
        _ => return Err(MessageError::Value("reason")),
    };
    let length = body.count("length", TEXT_BYTES_MAX)?;
    Ok(AgentMessage::Refused { reason, text: body.text(length)? })
}

fn read_progress(header: Header, body: &mut Body<'_>) -> Result<AskProgress, MessageError> {
    let pending = body.u32()?;
    Ok(AskProgress { request: header.request, pending, slots: body.slots()? })
}

struct Header {
    kind: u16,
    flags: u16,
    request: u64,
}

impl Header {
    fn read(packet: &[u8]) -> Result<(Self, Body<'_>), MessageError> {
        let mut body = Body(packet);
        let header = |body: &mut Body<'_>| Ok((body.u16()?, body.u16()?, body.u32()?, body.u64()?));
        let (kind, flags, length, request) = header(&mut body)?;
        if body.0.len() as u64 != u64::from(length) {
            return Err(MessageError::Length);
        }
        Ok((Self { kind, flags, request }, body))
    }
}

/// The unread rest of a message.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], MessageError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(MessageError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(MessageError::Short)?;
        self.0 = rest;
        Ok(*array)
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of things that follow.
    fn count(&mut self, what: &'static str, limit: usize) -> Result<usize, MessageError> {
        let count = self.u32()?;
        if count as usize > limit {
            return Err(MessageError::TooMany { what, count, limit });
        }
        Ok(count as usize)
    }

    fn text(&mut self, bytes: usize) -> Result<String, MessageError> {
        let text = std::str::from_utf8(self.take(bytes)?);
        text.map(str::to_owned).map_err(|_| MessageError::Value("text"))
    }

    fn keys(&mut self) -> Result<Vec<EngineKey>, MessageError> {
        let count = self.count("keys", KEYS_MAX)?;
        let (keys, _) = self.take(count * KEY_BYTES)?.as_chunks::<KEY_BYTES>();
        Ok(keys.iter().map(|key| EngineKey(*key)).collect())
    }

    fn slots(&mut self) -> Result<Vec<SlotId>, MessageError> {
        let count = self.count("slots", KEYS_MAX)?;
        let (slots, _) = self.take(count * 4)?.as_chunks::<4>();
        Ok(slots.iter().map(|slot| SlotId(u32::from_le_bytes(*slot))).collect())
    }

    fn end(self) -> Result<(), MessageError> {
        if self.0.is_empty() { Ok(()) } else { Err(MessageError::Length) }
    }
}
