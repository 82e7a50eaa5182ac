//! Messages by which the agent copies for an engine between device memory and arena.
//!
//! An engine may leave these copies to the agent: a worker exports its KV memory once, after WELCOME,
//! and then orders copies of pages. Only workers send these messages. An agent that cannot reach the
//! memory says so, and the worker copies by itself, as a worker that never exports does.
//!
//! - EXPORT: the KV memory of a worker on one device, by IPC handle or by a file that comes as
//!   `SCM_RIGHTS`. One per connection. An event is named here if the worker has one that other
//!   processes may open: each copy begins after what the event stood for last when the agent took
//!   the order. A worker without an event orders a copy only when the pages are there.
//! - EXPORTED: whether the agent copies.
//! - COPY: pages and slots to copy, in the order (source, target). No target comes twice, at most
//!   [`COPIES_MAX`] orders are unanswered. From then on until COPIED neither pages nor slots belong to
//!   anybody else.
//! - COPIED: the bytes are there, or the copy failed: the targets hold anything then.
//!
//! **The end of a connection is a promise of the agent**: it says BYE only once no copy of the
//! connection runs any more. A worker that sees the end without BYE waits for the end of the agent's
//! process before it uses pages of orders that were not answered.
//!
//! A *pass* goes from the memory of another engine's worker with the same rank, which has exported it
//! to the same agent, on the same device. Whoever orders it knows from that engine which pages they
//! are and that they stay: a hand-over between the two says so. The pass begins after the event of
//! either side. No connector in this repository orders passes: engines on one device are no pair here.
//! The order is for connectors of others, and `worker-agent/cuda/benches/gpu/agent.py` runs it on a GPU.
//!
//! EXPORT, 232 bytes:
//!
//! | at | field | type | |
//! | --- | --- | --- | --- |
//! | 16 | memory | u32 | 1 by IPC handle, 2 by file |
//! | 20 | event | u32 | 1 if there is one, else 0 |
//! | 24 | device | 16 bytes | the driver's UUID of it |
//! | 40 | bytes | u64 | of the allocation |
//! | 48 | memory's handle | 64 bytes | zeros for a file |
//! | 112 | event's handle | 64 bytes | zeros without event |
//! | 176 | layers, heads, tokens, content | 4 x u32 | sizes of a page; content: bytes of one head of one token |
//! | 192 | pages | u32 | |
//! | 196 | reserved | u32 | 0 |
//! | 200 | first | u64 | offset of page 0 in the allocation |
//! | 208 | layer, page, head, token | 4 x u64 | bytes from one to the next |
//! | 240 | part | u64 | offset of this worker's part in a slot |
//!
//! | type | message | after the header |
//! | --- | --- | --- |
//! | 11 | EXPORT | as above |
//! | 12 | COPY | `way` u32 (0 store: page to slot, 1 load: slot to page, 2 pass: page to page), `length` u32, `count` u32, `length` bytes of UTF-8: the engine that a pass comes from, `count` x (source u32, target u32) |
//! | 73 | EXPORTED | `status` u32 (0 the agent copies, 1 it does not), `length` u32, `length` bytes of UTF-8 |
//! | 74 | COPIED | `status` u32 (0 the bytes are there, 1 failed), `length` u32, `length` bytes of UTF-8 |
//!
//! COPY and COPIED have a number in the header, which the worker uses for no two orders.

/// Orders of a connection that are not answered, at most.
pub const COPIES_MAX: usize = 64;

/// A name that a driver gives to memory or to an event, by which another process opens it.
pub type DeviceHandle = [u8; 64];

/// KV memory of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceExport {
    /// The way in which the memory is exported.
    pub memory: ExportedMemory,
    /// An event that copies wait for.
    pub event: Option<DeviceHandle>,
    /// The driver's UUID of the device.
    pub device: [u8; 16],
    /// Bytes of the allocation.
    pub bytes: u64,
    /// Places of pages in the allocation.
    pub pages: DevicePages,
    /// Offset of the worker's part in a slot.
    pub part: u64,
}

/// The way in which memory is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportedMemory {
    /// By handle.
    Ipc(DeviceHandle),
    /// By a file beside the message.
    File,
}

/// Sizes of pages, and their places in an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePages {
    /// Layers; twice as many where keys and values are apart.
    pub layers: u32,
    /// Heads of a layer.
    pub heads: u32,
    /// Tokens of a page.
    pub tokens: u32,
    /// Bytes of one head of one token in one layer.
    pub content_bytes: u32,
    /// Pages.
    pub count: u32,
    /// Offset of page 0.
    pub first: u64,
    /// Bytes from one layer, page, head and token to the next.
    pub strides: [u64; 4],
}

impl DevicePages {
    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        let sizes = [self.layers, self.heads, self.tokens, self.content_bytes];
        sizes.into_iter().map(u64::from).fold(1, u64::saturating_mul)
    }
}

/// Pages to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOrder {
    /// The worker's number of the order.
    pub number: u64,
    /// Kinds of source and target.
    pub way: CopyOrderWay,
    /// Source and target of each page.
    pub pairs: Vec<(u32, u32)>,
}

/// Kinds of source and target of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyOrderWay {
    /// From the device to the arena.
    Store,
    /// From the arena to the device.
    Load,
    /// From the device memory of this engine.
    Pass(String),
}
