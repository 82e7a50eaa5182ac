//! Blocks of a cache for other agents.

use super::{Client, TieredCache};
use crate::store::RequestId;
use crate::transfer::{Lender, LentBlock};
use futures::future::{BoxFuture, ready};
use stator_protos::name::BlockName;
use std::sync::Arc;
use std::time::Duration;

/// Lends what a cache has in host memory. A loan is a request of a client of its own.
///
/// Blocks in lower tiers are not waited for; the cache starts to read them, so that they may be
/// there for the next reader.
pub struct CacheLender {
    cache: Arc<TieredCache>,
    client: Client,
}

impl CacheLender {
    /// A lender of this cache's blocks.
    pub fn new(cache: Arc<TieredCache>) -> Self {
        let client = cache.connect(Arc::new(|_| {}));
        Self { cache, client }
    }
}

impl Lender for CacheLender {
    fn lend(&self, loan: u64, names: Vec<BlockName>) -> BoxFuture<'static, Vec<LentBlock>> {
        let found = self.client.ask(RequestId(loan), &names, Duration::ZERO);
        let arena = self.cache.arena();
        let lent = found.ready.iter().zip(&names);
        let lent = lent
            .map(|(slot, name)| LentBlock { slot: *slot, checksum: arena.checksum(*slot, *name) });
        Box::pin(ready(lent.collect()))
    }

    fn release(&self, loan: u64) {
        self.client.end(RequestId(loan));
    }
}
