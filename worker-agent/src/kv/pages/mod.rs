//! SGLang's pages: the keys under which it stores them, and the blocks that routers know them as.
//!
//! SGLang hands a storage the hash of a page and none of its tokens. Both meet here: [`key`] computes
//! the hashes from tokens, [`book`] names the pages whose tokens the engine's KV events have told.

mod book;
mod key;

pub(crate) use book::PageBook;
pub(crate) use key::{PageKey, prompt_keys};
