//! The KV index: which worker holds which KV block, written by events, read without locks.
//!
//! Never: does I/O, reads a clock, or lets a reader wait for a writer. Start reading at
//! [`Index`]; [`Closure`] makes what an engine publishes fit for it.
//!
//! # What it is told
//!
//! Blocks are named by sequence hashes, into which adapter, salt and all else that separates
//! blocks are folded already; one index serves one model and one block size.
//!
//! Events have to be *closed*: what a worker holds of a sequence has no gap from its start, and a
//! block counts as on the farthest medium of the nearest copies from the start up to it, so that
//! media only get farther along a sequence. `Stored` says that blocks are held on a medium now,
//! wherever they were; `Removed` says that they are no longer held, if they are on that medium;
//! saying either again changes nothing. To move a block, its producer says `Stored` for the new
//! medium and then `Removed` for the old one. The pools of our own agents tell events like that;
//! for the feed of any engine there is [`Closure`]. Events that are not closed make overlaps
//! wrong for their worker, and harm nothing else.
//!
//! # How it works
//!
//! One flat hash table from block to the *set* of its holders. Sets are stored once each (few
//! differ), so that a block takes 16 bytes however many hold it. Since events are closed, a
//! lookup needs to look at a few places of a prompt only ([`Index::overlap`]). A worker's
//! elements in sets carry the number of its present state, its *slot*; a state ends by masking
//! the slot, and [`Index::maintain`] takes the remains out in the background.
// `tests/models` sets `stator_loom`, to model the lock-free parts.
// (`loom` itself would switch dependencies to loom too, which do not build so.)
#![allow(unexpected_cfgs)]

mod arena;
mod cell;
mod chains;
mod closure;
mod elements;
mod guesses;
mod index;
mod lane;
mod layout;
mod listing;
mod lookup;
#[cfg(all(target_os = "linux", not(stator_loom)))]
mod mapping;
// Not even where atomics are loom's: zeros are none of those.
#[cfg(not(all(target_os = "linux", not(stator_loom))))]
#[path = "mapping/elsewhere.rs"]
mod mapping;
mod overlap;
mod pages;
mod predictions;
mod prefetch;
mod scatter;
mod sets;
mod settings;
mod snapshot;
mod stats;
mod sweep;
mod sync;
mod table;
mod tenancy;
mod time;
mod transitions;
mod upkeep;
mod view;

pub use chains::common_prefix;
pub use closure::Closure;
pub use index::Index;
pub use listing::WorkerHoldings;
pub use lookup::Overlaps;
pub use overlap::Overlap;
pub use settings::{IndexSettings, PredictionPolicy};
pub use stats::IndexStats;
pub use tenancy::EventEffect;
pub use time::Time;
#[cfg(all(test, not(stator_loom)))]
mod testkit;
