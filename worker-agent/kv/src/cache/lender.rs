//! Blocks of a cache for other agents.

use super::{Client, Progress, TieredCache};
use crate::store::{LoanTerms, RequestId, SlotContent};
use crate::transfer::{Lender, LentBlock, LentBlocks, LoanWish};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

/// Blocks that are read from disk for one loan, at most.
const LOAN_READS_MAX: usize = 256;
/// Bytes that are read from disk for one loan, at most.
const LOAN_BYTES_MAX: usize = 256 << 20;
/// Share of host memory that may hold what was read for loans while they last: one slot in so many.
const LOANS_SHARE: usize = 4;

/// Lends what a cache has in host memory and on disk. A loan is a request of a client of its own.
///
/// A loan waits for the disk as long as its reader can, and no longer than the cache's own requests do.
/// Blocks that are not there by then, and blocks in tiers beyond the disk, are not lent.
pub struct CacheLender {
    client: Arc<Client>,
    loans: Arc<Loans>,
}

impl CacheLender {
    /// A lender of this cache's blocks. It lends within a Tokio runtime.
    pub fn new(cache: &Arc<TieredCache>) -> Self {
        let form = cache.form();
        let share = (cache.arena().slots() as usize / LOANS_SHARE).max(1);
        let loan_max = (LOAN_BYTES_MAX / form.block_bytes).clamp(1, LOAN_READS_MAX).min(share);
        let loans = Arc::new(Loans { loan_max, share, open: Mutex::default() });
        let heard = loans.clone();
        let client = cache.connect_lender(Arc::new(move |progress| heard.heard(progress)));
        Self { client: Arc::new(client), loans }
    }
}

impl Lender for CacheLender {
    fn lend(&self, loan: u64, wish: LoanWish) -> BoxFuture<'static, LentBlocks> {
        let (client, loans) = (self.client.clone(), self.loans.clone());
        let (reads_max, progress) = self.loans.begin(loan, wish.names.len());
        let terms = LoanTerms { wait: wish.wait, reads_max, urgency: wish.urgency };
        let (answer, answered) = oneshot::channel();
        // Beside the connections: comparing blocks with their checksums reads all their bytes.
        spawn_blocking(move || {
            let (lent, pending) = client.lend(RequestId(loan), &wish.names, terms);
            loans.read(loan, pending);
            // Who asked may have gone, and released the loan before there was one.
            if answer.send((lent, pending)).is_err() {
                client.end(RequestId(loan));
            }
        });
        Box::pin(collect(self.client.clone(), answered, progress))
    }

    fn release(&self, loan: u64) {
        self.loans.end(loan);
        self.client.end(RequestId(loan));
    }
}

/// The blocks of a loan: those that are there at once, and those that its client hears of.
async fn collect(
    client: Arc<Client>,
    answered: oneshot::Receiver<(Vec<SlotContent>, usize)>,
    mut progress: UnboundedReceiver<Progress>,
) -> LentBlocks {
    let block = |of: SlotContent| LentBlock { slot: of.slot, checksum: of.checksum };
    let (lent, mut pending) = answered.await.unwrap_or_default();
    let mut blocks: Vec<_> = lent.into_iter().map(block).collect();
    if pending == 0 {
        return blocks.into();
    }
    let since = Instant::now();
    // The cache tells the end of every wait, in time.
    while pending > 0 {
        let Some(more) = progress.recv().await else { break };
        blocks.extend(client.contents(&more.slots).into_iter().map(block));
        pending = more.pending;
    }
    LentBlocks { blocks, waited: since.elapsed() }
}

/// Loans that are not released, and the slots that the disk fills for them.
struct Loans {
    /// Reads for one loan, at most.
    loan_max: usize,
    /// Reads for all of them, at most.
    share: usize,
    open: Mutex<FxHashMap<u64, OpenLoan>>,
}

struct OpenLoan {
    /// Blocks that may be read, or are, or were, from disk.
    reads: usize,
    /// Hears of blocks that have come. Bounded by the loan's blocks.
    progress: UnboundedSender<Progress>,
}

impl Loans {
    /// A loan of so many blocks begins. Returns how many of them may be read from disk.
    fn begin(&self, loan: u64, blocks: usize) -> (usize, UnboundedReceiver<Progress>) {
        let (progress, heard) = unbounded_channel();
        let mut open = self.open.lock();
        let taken: usize = open.values().map(|other| other.reads).sum();
        let reads = self.share.saturating_sub(taken).min(self.loan_max).min(blocks);
        open.insert(loan, OpenLoan { reads, progress });
        (reads, heard)
    }

    /// So many blocks at most are read from disk for a loan, if it is not over already.
    fn read(&self, loan: u64, reads: usize) {
        if let Some(of) = self.open.lock().get_mut(&loan) {
            of.reads = of.reads.min(reads);
        }
    }

    fn heard(&self, progress: Progress) {
        if let Some(of) = self.open.lock().get(&progress.request.0) {
            // The lender may have stopped waiting.
            let _ = of.progress.send(progress);
        }
    }

    fn end(&self, loan: u64) {
        self.open.lock().remove(&loan);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_for_loans_are_bounded_for_each_and_for_all_until_their_ends() {
        let loans = Loans { loan_max: 4, share: 6, open: Mutex::default() };
        let begin = |loan, blocks| loans.begin(loan, blocks).0;
        assert_eq!([begin(1, 9), begin(2, 9), begin(3, 9)], [4, 2, 0]);
        loans.read(1, 1);
        assert_eq!(begin(4, 2), 2);
        loans.end(2);
        assert_eq!(begin(5, 9), 3);
        // News of a loan that is over changes nothing.
        loans.read(2, 3);
        assert_eq!(begin(6, 9), 0);
    }
}
