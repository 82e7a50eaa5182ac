//! KV between agents over TCP, from arena to arena.
//!
//! One agent holds blocks and the other reads them. The holder runs a [`TransferServer`]; the reader
//! is [`crate::peer::PeerTier`]. A reader asks for blocks by name and gets a *lease*: the holder
//! keeps the leading blocks that it has where they are, until the reader has read them or a deadline
//! passes. What it has on disk it reads first, within half of that time. Then the reader asks for parts of blocks of at most a mebibyte, over several
//! connections. Each question is a credit: the holder sends nothing that has no place to land.
//! A part that was lost with its connection is asked for again on another one, under the same
//! lease.
//!
//! A reader reads from the tiers of the holder, or a prompt that the holder's engine has computed for
//! it (a *hand-over*, [`ReaderPurpose`]). Both ways are the same but for the store and the key.
//!
//! Neither side copies KV but to and from its sockets. Start reading at [`wire`].

pub mod assembly;
pub mod direct;
mod handshake;
mod keys;
mod link;
mod loans;
mod purpose;
mod send_order;
mod server;
mod slot_part;
mod stores;
pub mod wire;

pub use keys::FleetKey;
pub use link::LinkError;
pub use loans::{Lender, LentBlock, LentBlocks, LoanWish};
pub use purpose::ReaderPurpose;
pub use server::TransferServer;
pub use stores::{LendingStore, LendingStores};

pub use handshake::ReaderIdentity;
pub(crate) use handshake::introduce;
pub(crate) use link::{Incoming, Landed, Landing, Link};
pub(crate) use slot_part::SlotPart;
