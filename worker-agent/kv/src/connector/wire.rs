//! Messages between an engine's shim and the agent.
//!
//! The shim is a file of Python inside the engine; the agent owns the host arena. They talk over a
//! Unix socket of type `SOCK_SEQPACKET`, mode 0600, in the agent's run directory. A message is one
//! packet. All numbers are little endian, without padding between fields. No KV is in a message.
//!
//! # Life of a connection
//!
//! 1. The shim connects and sends HELLO. The scheduler process has one connection; each worker
//!    process that maps the arena has one more. Only the scheduler sends anything but HELLO, PULSE
//!    and BYE, and but EXPORT and COPY, which are the workers' ([`device`]).
//! 2. The agent answers WELCOME, with the arena's memfd as `SCM_RIGHTS`, or REFUSED and closes. The
//!    shim sends nothing more before. Slot `n` of the memfd is at `n * stride` and holds `row_bytes`
//!    bytes. A worker maps it and then sends PULSE. A scheduler hears WELCOME only once all `world`
//!    workers of its engine have done so: no job names an arena that a worker does not know.
//! 3. The agent sends GRANT: free slots that the engine may fill. It tops the grant up unasked.
//! 4. For each request the shim sends ASK, gets FOUND and then zero or more READY, and sends END
//!    when the request needs its slots no more. The slots of FOUND and READY are pinned until END.
//! 5. When all ranks have filled a granted slot, the shim sends FILLED. The slot is the agent's
//!    from then on, unless DUP gives it back: the agent had the block already. A worker that could
//!    not fill a slot has closed its connection before; the agent then takes no more of FILLED.
//!    Where the shim knows the tokens of the blocks it sends TOKENS before FILLED: the agent can tell
//!    routers of these blocks then.
//! 6. Once a second the shim sends PULSE, and the agent answers PULSE.
//!
//! **HELLO is a promise**: no copy that began under an earlier connection of this engine touches
//! the arena any more. Until that promise, or the death of all the engine's processes, the agent
//! uses none of the slots that the lost engine held. A shim that lost its connection thus waits for
//! its copies before it says HELLO again. It forgets all slots and requests of the connection
//! before. A `boot` other than before means another arena: the shim maps the new memfd.
//!
//! A message that breaks a rule below closes the connection.
//!
//! # Header, 16 bytes
//!
//! | at | field | type | |
//! | --- | --- | --- | --- |
//! | 0 | type | u16 | below |
//! | 2 | flags | u16 | 0 |
//! | 4 | length | u32 | bytes after the header |
//! | 8 | request | u64 | number of the request in ASK, END, HINT, FOUND and READY, of the order in COPY and COPIED; 0 elsewhere |
//!
//! The shim chooses request numbers and uses none twice in a connection. A request is the keys of
//! one prompt and one group.
//!
//! # From the shim
//!
//! `key` is 36 bytes as vLLM has them: 32 bytes of block hash and 4 bytes of group, big endian.
//!
//! | type | message | after the header |
//! | --- | --- | --- |
//! | 1 | HELLO | see below |
//! | 2 | ASK | `prefill_us` u32, `total` u32, `first` u32, `count` u32, `count` x key |
//! | 3 | END | nothing |
//! | 4 | FILLED | `count` u32, `count` x (key, `slot` u32, `depth` u32) |
//! | 5 | TOUCH | `count` u32, `count` x key |
//! | 6 | RESET | `namespace` 16 bytes |
//! | 7 | PULSE | see below |
//! | 8 | BYE | nothing |
//! | 9 | TOKENS | see below |
//! | 10 | HINT | `hint` u64 |
//! | 11, 12 | EXPORT, COPY | see [`device`] |
//! | 13 | HOLDERS | `count` u32, `count` x (`blocks` u32, `length` u32, `length` bytes of UTF-8) |
//!
//! - HINT: comes before the ASK of its request, if the engine was given a hint with the request
//!   (`stator_hint` of `kv_transfer_params`): the agent knows by this number where else blocks of
//!   the request may be, and whose trace is to tell what it gets.
//! - HOLDERS: instead of HINT, where the engine was given addresses of other agents (`stator_holders`
//!   of `kv_transfer_params`), each with the number of the request's leading blocks that it lends.
//! - ASK: keys of a request from its first block on. `total` is the number of keys of the request,
//!   at most [`ASK_KEYS_MAX`]; `first` is how many came in frames before. Frames of a request
//!   follow one another with no other ASK between; FOUND answers the last. `prefill_us` is the
//!   engine's time to compute one block in µs, 0 for the time in the last HELLO or PULSE.
//! - FILLED: `depth` is the number of blocks before this one in its sequence.
//! - TOUCH: blocks that the engine found on its device, so that the agent keeps them too.
//! - RESET: the engine's KV has another meaning from here on, for example after new weights. The
//!   agent finds nothing for keys of before, and keeps what comes under `namespace`. Engines with
//!   the same namespace share blocks; HELLO begins with 16 zeros. Blocks filled before RESET must
//!   not be sent as FILLED after it: their slots are still granted and are filled anew.
//! - BYE: the engine ends and no copy touches the arena any more.
//!
//! HELLO, 88 bytes and two texts in UTF-8:
//!
//! | at | field | type | |
//! | --- | --- | --- | --- |
//! | 16 | protocol | u32 | 3 ([`PROTOCOL`]) |
//! | 20 | role | u32 | 0 scheduler, 1 worker |
//! | 24 | rank | u32 | rank of the worker; 0 for the scheduler |
//! | 28 | world | u32 | number of workers; 0 for a scheduler that copies by itself |
//! | 32 | block tokens | u32 | tokens of a block (of a chunk, where chunks are offloaded) |
//! | 36 | prefill µs | u32 | time to compute one block, 0 if not known |
//! | 40 | row bytes | u64 | bytes of a block with the parts of all workers |
//! | 48 | fingerprint | 32 bytes | covers all that decides the bytes of a row |
//! | 80 | incarnation | 16 bytes | random, one for each start of the process |
//! | 96 | engine length | u32 | 1 to 256 |
//! | 100 | form length | u32 | 0 to 1,024 |
//! | 104 | engine | text | id of the engine, the same for its scheduler and workers |
//! | | form | text | what the fingerprint covers, in words, for refusals and the log |
//!
//! TOKENS, 16 bytes, two texts in UTF-8 and `count` entries; of the blocks of the next FILLED, at most
//! [`KEYS_MAX`] in all messages before it:
//!
//! | at | field | type | |
//! | --- | --- | --- | --- |
//! | 16 | block tokens | u32 | as in HELLO |
//! | 20 | adapter length | u32 | 0 to 256 |
//! | 24 | salt length | u32 | 0 to 256 |
//! | 28 | count | u32 | at least 1 |
//! | 32 | adapter, salt | text | name of the LoRA adapter and cache salt of the sequence; empty: none |
//! | | entries | | key, 32 bytes of the hash of the block before (zeros for the first block), tokens u32 |
//!
//! PULSE of the shim, 64 bytes; counts are since the connection began:
//!
//! | at | field | type | |
//! | --- | --- | --- | --- |
//! | 16 | boot | 16 bytes | as in WELCOME |
//! | 32 | prefill µs | u32 | measured time to compute one block, 0 if not known |
//! | 36 | load µs | u32 | measured time from the start of a load of host memory until the request goes on, 0 if not known |
//! | 40 | loaded | u64 | blocks copied from the arena to the device |
//! | 48 | stored | u64 | blocks copied from the device to the arena |
//! | 56 | asks late | u64 | requests that did not wait for FOUND any longer |
//! | 64 | loads late | u64 | requests that did not wait for READY any longer |
//! | 72 | faults | u64 | exceptions that the shim caught |
//!
//! # From the agent
//!
//! | type | message | after the header |
//! | --- | --- | --- |
//! | 65 | WELCOME | `boot` 16 bytes, `slots` u32, `credit` u32, `stride` u64; one fd: the arena |
//! | 66 | REFUSED | `reason` u32, `length` u32, `length` bytes of UTF-8 |
//! | 67 | FOUND | `pending` u32, `count` u32, `count` x `slot` u32 |
//! | 68 | READY | `pending` u32, `count` u32, `count` x `slot` u32 |
//! | 69 | GRANT | `count` u32, `count` x `slot` u32 |
//! | 70 | DUP | `count` u32, `count` x `slot` u32 |
//! | 71 | PULSE | `boot` 16 bytes |
//! | 72 | BYE | nothing |
//! | 73, 74 | EXPORTED, COPIED | see [`device`] |
//!
//! - WELCOME: `boot` is random, one for each start of the agent. `credit` is the
//!   most slots that the agent grants in advance; it begins with 64 and doubles the grant while the
//!   engine uses up more than half of it between two FILLED.
//! - REFUSED: `reason` is 1 protocol version, 2 form (fingerprint or row bytes), 3 the agent has no
//!   cache for it, 4 too many connections.
//! - FOUND: the slots of the leading blocks that are ready, in order. `pending` more blocks behind
//!   them are on their way: from a tier, to their checksum, or in the next message.
//! - READY: further slots behind those sent before, in order, and how many are still on their way.
//!   With `pending` 0 no READY follows: the blocks behind are misses. READY comes only after FOUND
//!   with `pending` above 0. After END the shim ignores a READY that was under way.
//! - GRANT: more slots for the engine to fill. They come on top of those it has.
//! - DUP: slots of FILLED whose blocks the agent had already; they count as granted again.
//! - BYE: the agent ends. The mapping stays valid; the shim joins the next agent.
//!
//! No message has more than [`KEYS_MAX`] keys, entries or slots.

pub mod device;

use crate::SlotId;
pub use device::{CopyOrder, CopyOrderWay, DeviceExport, DevicePages, ExportedMemory};
#[cfg(doc)]
use stator_protos::worker::KV_HOLDER_ADDRESS_MAX_BYTES;

/// Version of the protocol.
pub const PROTOCOL: u32 = 3;
/// Most keys, entries or slots of a message.
pub const KEYS_MAX: usize = 4096;
/// Most keys of a request.
pub const ASK_KEYS_MAX: usize = 65_536;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the longest message: FILLED with all its entries.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + 4 + KEYS_MAX * FILLED_BYTES;
/// Most bytes of an engine's id.
pub const ENGINE_BYTES_MAX: usize = 256;
/// Most bytes of the name of an adapter, and of a cache salt.
pub const NAMESPACE_BYTES_MAX: usize = 256;
/// Most bytes of the words for a form, and of a refusal.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 36;
/// Bytes of an entry of FILLED.
pub(super) const FILLED_BYTES: usize = KEY_BYTES + 8;

/// Numbers of the messages.
pub(super) mod kind {
    pub(crate) const HELLO: u16 = 1;
    pub(crate) const ASK: u16 = 2;
    pub(crate) const END: u16 = 3;
    pub(crate) const FILLED: u16 = 4;
    pub(crate) const TOUCH: u16 = 5;
    pub(crate) const RESET: u16 = 6;
    pub(crate) const SHIM_PULSE: u16 = 7;
    pub(crate) const SHIM_BYE: u16 = 8;
    pub(crate) const TOKENS: u16 = 9;
    pub(crate) const HINT: u16 = 10;
    pub(crate) const EXPORT: u16 = 11;
    pub(crate) const COPY: u16 = 12;
    pub(crate) const HOLDERS: u16 = 13;
    pub(crate) const WELCOME: u16 = 65;
    pub(crate) const REFUSED: u16 = 66;
    pub(crate) const FOUND: u16 = 67;
    pub(crate) const READY: u16 = 68;
    pub(crate) const GRANT: u16 = 69;
    pub(crate) const DUPLICATE: u16 = 70;
    pub(crate) const AGENT_PULSE: u16 = 71;
    pub(crate) const AGENT_BYE: u16 = 72;
    pub(crate) const EXPORTED: u16 = 73;
    pub(crate) const COPIED: u16 = 74;
}

/// A block as the engine names it: 32 bytes of hash, 4 bytes of group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineKey(pub [u8; KEY_BYTES]);

/// A message of the shim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShimMessage {
    /// The first message of a connection.
    Hello(Hello),
    /// A part of a request's keys.
    Ask(AskFrame),
    /// The request needs its slots no more.
    End {
        /// Number of the request.
        request: u64,
    },
    /// Slots that hold blocks now.
    Filled(Vec<FilledSlot>),
    /// Blocks that the engine found on its device.
    Touch(Vec<EngineKey>),
    /// Keys have another meaning from here on.
    Reset {
        /// Distinguishes the meaning.
        namespace: [u8; 16],
    },
    /// A sign of life.
    Pulse(ShimPulse),
    /// The engine ends.
    Bye,
    /// The tokens of blocks that the next [`ShimMessage::Filled`] has.
    Tokens(TokensFrame),
    /// The next request was given a hint.
    Hint {
        /// Number of the request.
        request: u64,
        /// The hint.
        hint: EngineHint,
    },
    /// A worker's device memory, from which the agent may copy.
    Export(Box<DeviceExport>),
    /// Pages that the agent is to copy.
    Copy(CopyOrder),
}

/// A word on where else blocks of a request may be, as the engine was given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineHint {
    /// The number under which the agent noted it.
    Noted(u64),
    /// Agents that lend blocks.
    Holders(Vec<NamedHolder>),
}

/// An agent that lends the leading blocks of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedHolder {
    /// `host:port` where it lends them, 1 to [`KV_HOLDER_ADDRESS_MAX_BYTES`] bytes.
    pub address: String,
    /// Number of the blocks.
    pub blocks: u32,
}

/// The process that connects, and the form of its KV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Role of the process in its engine.
    pub role: ShimRole,
    /// Rank of the worker; 0 for the scheduler.
    pub rank: u32,
    /// Number of workers.
    pub world: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Time to compute one block, in µs; 0 if not known.
    pub prefill_us: u32,
    /// Bytes of a block with the parts of all workers.
    pub row_bytes: u64,
    /// Covers all that decides the bytes of a row.
    pub fingerprint: [u8; 32],
    /// Random, one for each start of the process.
    pub incarnation: [u8; 16],
    /// Id of the engine, the same for its scheduler and workers.
    pub engine: String,
    /// The fingerprint's content, in words.
    pub form: String,
}

/// Role of a process in its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShimRole {
    /// The scheduler asks, and reports filled slots.
    Scheduler,
    /// A worker copies between device and arena.
    Worker,
}

/// A part of a request's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskFrame {
    /// Number of the request.
    pub request: u64,
    /// Time to compute one block, in µs; 0 for the time that HELLO or PULSE gave.
    pub prefill_us: u32,
    /// Number of keys in all frames of the request.
    pub total: u32,
    /// Number of keys in the frames before.
    pub first: u32,
    /// Keys of this frame.
    pub keys: Vec<EngineKey>,
}

/// A slot that holds a block now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilledSlot {
    /// The block.
    pub key: EngineKey,
    /// The slot, which was granted.
    pub slot: SlotId,
    /// Blocks before it in its sequence.
    pub depth: u32,
}

/// Tokens of blocks of one sequence, by which routers name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokensFrame {
    /// Name of the LoRA adapter; empty for none.
    pub lora: String,
    /// Cache salt; empty for none.
    pub salt: String,
    /// The blocks, which have equally many tokens.
    pub blocks: Vec<BlockTokens>,
}

/// Tokens of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTokens {
    /// The block.
    pub key: EngineKey,
    /// Hash of the block before it; zeros for the first one.
    pub before: [u8; 32],
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// A sign of life with counts since the connection began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShimPulse {
    /// The agent's start that the shim knows.
    pub boot: [u8; 16],
    /// Measured time to compute one block, in µs; 0 if not known.
    pub prefill_us: u32,
    /// Measured time from the start of a load of host memory until the request goes on, in µs; 0 if
    /// not known.
    pub load_us: u32,
    /// Blocks copied from the arena to the device.
    pub loaded: u64,
    /// Blocks copied from the device to the arena.
    pub stored: u64,
    /// Requests that did not wait for FOUND any longer.
    pub asks_late: u64,
    /// Requests that did not wait for READY any longer.
    pub loads_late: u64,
    /// Exceptions that the shim caught.
    pub faults: u64,
}

/// A message of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentMessage {
    /// The engine may use the arena, whose memfd comes with the message.
    Welcome(Welcome),
    /// The engine may not.
    Refused {
        /// Why, for programs.
        reason: RefusalCode,
        /// Why, for people; cut at [`TEXT_BYTES_MAX`].
        text: String,
    },
    /// The answer to an ask.
    Found(AskProgress),
    /// More of a request's blocks are ready.
    Ready(AskProgress),
    /// Slots that the engine may fill.
    Grant(Vec<SlotId>),
    /// Slots whose blocks the agent had already; they are granted again.
    Duplicate(Vec<SlotId>),
    /// A sign of life.
    Pulse {
        /// The agent's start.
        boot: [u8; 16],
    },
    /// The agent ends.
    Bye,
    /// Whether the agent copies from and to a worker's device memory; if not, the reason.
    Exported(Result<(), String>),
    /// An order of copies has ended.
    Copied {
        /// The worker's number of the order.
        number: u64,
        /// Whether the bytes are there; if not, the reason.
        result: Result<(), String>,
    },
}

/// The arena that the engine may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Random, one for each start of the agent.
    pub boot: [u8; 16],
    /// Slots of the arena.
    pub slots: u32,
    /// Most slots that the agent grants in advance.
    pub credit: u32,
    /// Bytes from one slot to the next.
    pub stride: u64,
}

/// Why an engine is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The agent speaks another version of the protocol.
    Protocol,
    /// The agent's cache holds KV of another form.
    Form,
    /// The agent cannot open a cache for the form.
    NoCache,
    /// The agent has too many connections.
    Crowded,
}

/// Progress of a request's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskProgress {
    /// Number of the request.
    pub request: u64,
    /// Blocks that are on their way, behind the slots.
    pub pending: u32,
    /// Slots of blocks that are ready, behind those of the messages before.
    pub slots: Vec<SlotId>,
}

#[cfg(test)]
mod tests;
