//! Blocks of a cache for other agents.

use super::{Client, TieredCache};
use crate::store::{RequestId, SlotContent};
use crate::transfer::{Lender, LentBlock};
use futures::future::BoxFuture;
use stator_protos::name::BlockName;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

/// Lends what a cache has in host memory. A loan is a request of a client of its own.
///
/// Blocks in lower tiers are not waited for; the cache starts to read them, so that they may be
/// there for the next reader.
pub struct CacheLender(Arc<Client>);

impl CacheLender {
    /// A lender of this cache's blocks. It lends within a Tokio runtime.
    pub fn new(cache: &Arc<TieredCache>) -> Self {
        Self(Arc::new(cache.connect(Arc::new(|_| {}))))
    }
}

impl Lender for CacheLender {
    fn lend(&self, loan: u64, names: Vec<BlockName>) -> BoxFuture<'static, Vec<LentBlock>> {
        let client = self.0.clone();
        let (answer, answered) = oneshot::channel();
        // Beside the connections: comparing blocks with their checksums reads all their bytes.
        spawn_blocking(move || {
            let lent = client.lend(RequestId(loan), &names);
            let block = |of: SlotContent| LentBlock { slot: of.slot, checksum: of.checksum };
            // Who asked may have gone, and released the loan before there was one.
            if answer.send(lent.into_iter().map(block).collect()).is_err() {
                client.end(RequestId(loan));
            }
        });
        Box::pin(async move { answered.await.unwrap_or_default() })
    }

    fn release(&self, loan: u64) {
        self.0.end(RequestId(loan));
    }
}
