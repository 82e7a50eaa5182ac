//! Blocks of a cache for other agents.

use super::{Client, Progress, TieredCache};
use crate::SlotId;
use crate::store::{LoanTerms, RequestId, SlotContent};
use crate::transfer::{Lender, LentBlock, LentBlocks, LoanWish};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
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
/// Share of host memory that loans may keep from being evicted: one slot in so many.
const PINS_SHARE: usize = 2;

/// Lends what a cache has in host memory and on disk. A loan is a request of a client of its own.
///
/// A loan waits for the disk as long as its reader can, and no longer than the cache's own requests do.
/// Blocks that are not there by then, and blocks in tiers beyond the disk, are not lent. Nor are more at a
/// time than half of host memory has room for: the engines here need the rest.
pub struct CacheLender {
    client: Arc<Client>,
    loans: Arc<Loans>,
}

impl CacheLender {
    /// A lender of this cache's blocks. It lends within a Tokio runtime.
    pub fn new(cache: &Arc<TieredCache>) -> Self {
        let form = cache.form();
        let slots = cache.arena().slots() as usize;
        let (share, pins_max) = ((slots / LOANS_SHARE).max(1), (slots / PINS_SHARE).max(1));
        let loan_max = (LOAN_BYTES_MAX / form.block_bytes).clamp(1, LOAN_READS_MAX).min(share);
        let loans = Arc::new(Loans { loan_max, share, pins_max, state: Mutex::default() });
        let heard = loans.clone();
        let client = cache.connect_lender(Arc::new(move |progress| heard.heard(progress)));
        Self { client: Arc::new(client), loans }
    }
}

impl Lender for CacheLender {
    fn lend(&self, loan: u64, mut wish: LoanWish) -> BoxFuture<'static, LentBlocks> {
        let (client, loans) = (self.client.clone(), self.loans.clone());
        let LoanRoom { blocks, reads: reads_max, progress } =
            self.loans.begin(loan, wish.names.len());
        wish.names.truncate(blocks);
        let terms = LoanTerms { wait: wish.wait, reads_max, urgency: wish.urgency };
        let (answer, answered) = oneshot::channel();
        // Beside the connections: comparing blocks with their checksums reads all their bytes.
        spawn_blocking(move || {
            let (lent, pending) = client.lend(RequestId(loan), &wish.names, terms);
            loans.lent(loan, &lent, pending);
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

/// Loans that are not released, the slots that they hold, and those that the disk fills for them.
struct Loans {
    /// Reads for one loan, at most.
    loan_max: usize,
    /// Reads for all of them, at most.
    share: usize,
    /// Slots that all of them hold, at most.
    pins_max: usize,
    state: Mutex<LoanState>,
}

#[derive(Default)]
struct LoanState {
    open: FxHashMap<u64, OpenLoan>,
    /// How many loans hold a slot.
    held: FxHashMap<SlotId, usize>,
}

struct OpenLoan {
    /// Blocks that may be read, or are, or were, from disk.
    reads: usize,
    /// Blocks that it may still get.
    awaited: usize,
    slots: Vec<SlotId>,
    /// Hears of blocks that have come. Bounded by the loan's blocks.
    progress: UnboundedSender<Progress>,
}

/// Room for a loan.
struct LoanRoom {
    /// Blocks that may be lent.
    blocks: usize,
    /// Blocks among them that may be read from disk.
    reads: usize,
    progress: UnboundedReceiver<Progress>,
}

impl Loans {
    /// A loan of so many blocks begins.
    fn begin(&self, loan: u64, blocks: usize) -> LoanRoom {
        let (progress, heard) = unbounded_channel();
        let mut state = self.state.lock();
        let awaited: usize = state.open.values().map(|other| other.awaited).sum();
        let blocks = self.pins_max.saturating_sub(state.held.len() + awaited).min(blocks);
        let read: usize = state.open.values().map(|other| other.reads).sum();
        let reads = self.share.saturating_sub(read).min(self.loan_max).min(blocks);
        state.open.insert(loan, OpenLoan { reads, awaited: blocks, slots: Vec::new(), progress });
        LoanRoom { blocks, reads, progress: heard }
    }

    /// A loan that is not over already has these blocks, and gets so many more at most from disk.
    fn lent(&self, loan: u64, lent: &[SlotContent], pending: usize) {
        let mut state = self.state.lock();
        if let Some(of) = state.open.get_mut(&loan) {
            of.reads = of.reads.min(pending);
        }
        state.hold(loan, lent.iter().map(|of| of.slot), pending);
    }

    fn heard(&self, progress: Progress) {
        let mut state = self.state.lock();
        let loan = progress.request.0;
        state.hold(loan, progress.slots.iter().copied(), progress.pending);
        if let Some(of) = state.open.get(&loan) {
            // The lender may have stopped waiting.
            let _ = of.progress.send(progress);
        }
    }

    fn end(&self, loan: u64) {
        self.state.lock().end(loan);
    }
}

impl LoanState {
    /// A loan that is not over holds these slots too, and gets so many more at most.
    fn hold(&mut self, loan: u64, slots: impl Iterator<Item = SlotId>, awaited: usize) {
        let Some(of) = self.open.get_mut(&loan) else { return };
        of.awaited = of.awaited.min(awaited);
        for slot in slots {
            of.slots.push(slot);
            *self.held.entry(slot).or_default() += 1;
        }
    }

    fn end(&mut self, loan: u64) {
        for slot in self.open.remove(&loan).into_iter().flat_map(|of| of.slots) {
            if let Entry::Occupied(mut held) = self.held.entry(slot) {
                *held.get_mut() -= 1;
                if *held.get() == 0 {
                    held.remove();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_for_loans_are_bounded_for_each_and_for_all_until_their_ends() {
        let loans = Loans { loan_max: 4, share: 6, pins_max: 100, state: Mutex::default() };
        let begin = |loan, blocks| loans.begin(loan, blocks).reads;
        assert_eq!([begin(1, 9), begin(2, 9), begin(3, 9)], [4, 2, 0]);
        loans.lent(1, &[], 1);
        assert_eq!(begin(4, 2), 2);
        loans.end(2);
        assert_eq!(begin(5, 9), 3);
        // News of a loan that is over changes nothing.
        loans.lent(2, &[], 3);
        assert_eq!(begin(6, 9), 0);
    }

    #[test]
    fn loans_hold_so_many_slots_at_most_and_a_slot_counts_once() {
        let loans = Loans { loan_max: 4, share: 4, pins_max: 6, state: Mutex::default() };
        let begin = |loan, blocks| loans.begin(loan, blocks).blocks;
        let slots = |slots: std::ops::Range<u32>| slots.map(SlotId).collect::<Vec<_>>();
        let lent = |loan, of: std::ops::Range<u32>, pending| {
            let checksum = crate::Checksum(0);
            let name = stator_protos::name::BlockName(0);
            let of = slots(of).into_iter().map(|slot| SlotContent { slot, name, checksum });
            loans.lent(loan, &of.collect::<Vec<_>>(), pending);
        };
        assert_eq!([begin(1, 4), begin(2, 4), begin(3, 4)], [4, 2, 0]);
        lent(1, 0..3, 0);
        assert_eq!(begin(4, 9), 1);
        // The second has the same blocks, and one on its way.
        lent(2, 0..1, 1);
        lent(4, 0..0, 0);
        assert_eq!(begin(5, 9), 2);
        lent(5, 0..0, 0);
        let request = RequestId(2);
        loans.heard(Progress { request, slots: slots(3..4), pending: 0 });
        assert_eq!(begin(6, 9), 2);
        loans.end(1);
        lent(6, 0..0, 0);
        // Of the first three slots the second loan still has one.
        assert_eq!(begin(7, 9), 4);
        (2..8).for_each(|loan| loans.end(loan));
        assert!(loans.state.lock().held.is_empty());
        assert_eq!(begin(8, 9), 6);
    }
}
