//! Blocks that other agents read: who may, and until when they stay where they are.

use crate::tier::Urgency;
use crate::{Checksum, SlotId};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Leases of one reader at most.
const LOANS_MAX: usize = 64;
/// Time for which leases outlive the last connection of their reader, so that it can come back and
/// read what it lacks.
const GRACE: Duration = Duration::from_millis(400);

/// The store that blocks are lent from.
pub trait Lender: Send + Sync {
    /// A reader has proved that it may read.
    fn welcome(&self) {}

    /// Pins the leading blocks of a wish that are in memory, or soon will be, until
    /// [`Lender::release`] of the same loan. The caller may drop the future, and then releases the
    /// loan too.
    fn lend(&self, loan: u64, wish: LoanWish) -> BoxFuture<'static, LentBlocks>;

    /// Gives all pins of a loan back, also of one that was never made.
    fn release(&self, loan: u64);
}

/// Blocks that a reader asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoanWish {
    /// Names of the blocks, in the order of their sequence.
    pub names: Vec<BlockName>,
    /// Longest time for which the blocks may be waited for.
    pub wait: Duration,
    /// Whether a request of the reader waits for them.
    pub urgency: Urgency,
}

/// A wish for blocks that are in memory now, for which a request waits.
impl From<Vec<BlockName>> for LoanWish {
    fn from(names: Vec<BlockName>) -> Self {
        Self { names, wait: Duration::ZERO, urgency: Urgency::Demand }
    }
}

/// Blocks that stay where they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LentBlocks {
    /// The leading blocks of those that were asked for.
    pub blocks: Vec<LentBlock>,
    /// Time until the blocks were in memory, as far as they had to be read from a disk.
    pub waited: Duration,
}

/// Blocks that were in memory.
impl From<Vec<LentBlock>> for LentBlocks {
    fn from(blocks: Vec<LentBlock>) -> Self {
        Self { blocks, waited: Duration::ZERO }
    }
}

/// A block that stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentBlock {
    /// Slot of the block.
    pub slot: SlotId,
    /// Checksum of its KV, taken when the block was registered.
    pub checksum: Checksum,
}

/// Blocks lent to a reader. Dropping the last reference gives the pins back.
pub(super) struct Loan {
    lender: Arc<dyn Lender>,
    /// Number of the lease: no other lease of this process has it, and none before a restart.
    pub(super) number: u64,
    pub(super) names: Vec<BlockName>,
    pub(super) blocks: Vec<LentBlock>,
    /// [`LentBlocks::waited`].
    pub(super) waited: Duration,
    pub(super) urgency: Urgency,
    pub(super) deadline: Instant,
}

impl Loan {
    /// Pins the leading blocks of a wish that the lender has.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the pins back.
    async fn of(lender: Arc<dyn Lender>, wish: LoanWish, until: Instant) -> Self {
        let (number, names, urgency) = (rand::random(), wish.names.clone(), wish.urgency);
        let lending = lender.lend(number, wish);
        let (blocks, waited) = (Vec::new(), Duration::ZERO);
        let mut loan = Self { lender, number, names, blocks, waited, urgency, deadline: until };
        LentBlocks { blocks: loan.blocks, waited: loan.waited } = lending.await;
        loan.blocks.truncate(loan.names.len());
        loan
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.lender.release(self.number);
    }
}

/// A loan that takes its time: the lender is at work, whether or not anybody waits. Dropping it gives
/// the pins back.
pub(super) struct PendingLoan {
    names: Vec<BlockName>,
    until: Instant,
    work: BoxFuture<'static, Loan>,
}

impl PendingLoan {
    /// Waits for the loan until `limit`; gives it back where that is too short. The loan lasts until
    /// `until`, whatever was wanted when the lender began.
    pub(super) async fn wait(mut self, limit: Instant, until: Instant) -> Result<Loan, Self> {
        self.until = until;
        match timeout_at(limit, &mut self.work).await {
            Ok(mut loan) => {
                loan.deadline = until;
                Ok(loan)
            }
            Err(_) => Err(self),
        }
    }
}

/// The readers of this agent's blocks. Connections of one reader share its leases.
#[derive(Default)]
pub(super) struct Readers {
    books: Mutex<FxHashMap<[u8; 16], LoanBook>>,
    /// Rung when a reader has come.
    bell: Notify,
}

#[derive(Default)]
struct LoanBook {
    connections: usize,
    /// The time at which the last connection ended.
    left: Option<Instant>,
    loans: FxHashMap<u64, Arc<Loan>>,
    /// Loans that the reader is to ask for again.
    pending: Vec<PendingLoan>,
}

/// A connection of a reader, counted for as long as this lives.
pub(super) struct ReaderTicket {
    readers: Arc<Readers>,
    instance: [u8; 16],
}

impl Readers {
    /// Counts a connection of this reader.
    pub(super) fn enter(self: &Arc<Self>, instance: [u8; 16]) -> ReaderTicket {
        let mut readers = self.books.lock();
        let book = readers.entry(instance).or_default();
        book.connections += 1;
        book.left = None;
        self.bell.notify_one();
        ReaderTicket { readers: self.clone(), instance }
    }

    /// Waits until a reader has come.
    pub(super) async fn entered(&self) {
        self.bell.notified().await;
    }

    /// Ends leases whose time is over and those of readers that have gone.
    pub(super) fn reap(&self, now: Instant) {
        let (mut ended, mut given_up) = (Vec::new(), Vec::new());
        self.books.lock().retain(|_, book| {
            ended.extend(book.loans.extract_if(|_, loan| loan.deadline <= now));
            given_up.extend(book.pending.extract_if(.., |loan| loan.until <= now));
            let is_here = book.left.is_none_or(|left| now < left + GRACE);
            if !is_here {
                ended.extend(book.loans.drain());
                given_up.append(&mut book.pending);
            }
            is_here
        });
        // Outside the lock, because the lender has locks of its own.
        drop((ended, given_up));
    }

    /// Whether no reader is known.
    pub(super) fn is_empty(&self) -> bool {
        self.books.lock().is_empty()
    }
}

impl ReaderTicket {
    /// A loan of the leading blocks of a wish: the one that the reader was to ask for again, or another.
    pub(super) fn begin(
        &self,
        lender: &Arc<dyn Lender>,
        wish: LoanWish,
        until: Instant,
    ) -> PendingLoan {
        let mut readers = self.readers.books.lock();
        let pending = readers.get_mut(&self.instance).and_then(|book| {
            let known = book.pending.iter().position(|loan| loan.names == wish.names)?;
            Some(book.pending.swap_remove(known))
        });
        drop(readers);
        pending.unwrap_or_else(|| PendingLoan {
            names: wish.names.clone(),
            until,
            work: Box::pin(Loan::of(lender.clone(), wish, until)),
        })
    }

    /// Keeps a loan that took too long for the time when the reader asks again.
    pub(super) fn put_off(&self, loan: PendingLoan) {
        let mut readers = self.readers.books.lock();
        let book = readers.get_mut(&self.instance);
        if let Some(book) = book.filter(|book| book.pending.len() < LOANS_MAX) {
            book.pending.push(loan);
        }
    }

    /// Keeps a loan until its deadline. False when the reader has too many.
    pub(super) fn keep(&self, loan: Arc<Loan>) -> bool {
        let mut readers = self.readers.books.lock();
        let Some(book) = readers.get_mut(&self.instance) else { return false };
        if book.loans.len() >= LOANS_MAX {
            return false;
        }
        book.loans.insert(loan.number, loan);
        true
    }

    /// The reader's loan of this number, before its deadline.
    pub(super) fn live(&self, number: u64) -> Option<Arc<Loan>> {
        let loan = self.readers.books.lock().get(&self.instance)?.loans.get(&number).cloned();
        loan.filter(|loan| Instant::now() < loan.deadline)
    }

    /// Ends a loan; its pins go with whoever still sends from it.
    pub(super) fn end(&self, number: u64) {
        let mut readers = self.readers.books.lock();
        let ended = readers.get_mut(&self.instance).and_then(|book| book.loans.remove(&number));
        drop(readers);
        drop(ended);
    }
}

impl Drop for ReaderTicket {
    fn drop(&mut self) {
        if let Some(book) = self.readers.books.lock().get_mut(&self.instance) {
            book.connections -= 1;
            book.left = (book.connections == 0).then(Instant::now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::server::REAP_EVERY;
    use futures::FutureExt;
    use futures::future::{pending, ready};
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    /// Lends one block, at once or never.
    #[derive(Default)]
    struct Counted {
        is_stuck: bool,
        released: AtomicUsize,
    }

    impl Lender for Counted {
        fn lend(&self, _: u64, _: LoanWish) -> BoxFuture<'static, LentBlocks> {
            let block = LentBlock { slot: SlotId(0), checksum: Checksum(0) };
            match self.is_stuck {
                true => pending().boxed(),
                false => ready(vec![block].into()).boxed(),
            }
        }

        fn release(&self, _: u64) {
            self.released.fetch_add(1, SeqCst);
        }
    }

    /// A reader whose connection is closed, as that of a killed process is, has no lease a second later:
    /// the server looks for such readers ten times a second.
    #[tokio::test(start_paused = true)]
    async fn leases_of_a_dead_reader_end_within_a_second() {
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(10));
        let readers = Arc::new(Readers::default());
        let lenders = [false, true].map(|is_stuck| Counted { is_stuck, ..Counted::default() });
        let lenders = lenders.map(Arc::new);
        let reader = readers.enter([1; 16]);
        for lender in &lenders {
            let lender: Arc<dyn Lender> = lender.clone();
            let lending = reader.begin(&lender, vec![BlockName(1)].into(), later);
            match lending.wait(now, later).await {
                Ok(loan) => assert!(reader.keep(Arc::new(loan))),
                Err(slow) => reader.put_off(slow),
            }
        }
        drop(reader);
        let released = || lenders.each_ref().map(|lender| lender.released.load(SeqCst));
        // The loan may come back at once.
        readers.reap(now);
        assert_eq!(released(), [0, 0]);
        readers.reap(now + Duration::from_secs(1) - REAP_EVERY);
        assert_eq!(released(), [1, 1]);
        assert!(readers.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loan_that_is_not_asked_for_again_is_given_up_at_its_deadline() {
        let (now, until) = (Instant::now(), Instant::now() + Duration::from_secs(2));
        let readers = Arc::new(Readers::default());
        let counted = Arc::new(Counted { is_stuck: true, ..Counted::default() });
        let lender: Arc<dyn Lender> = counted.clone();
        let reader = readers.enter([1; 16]);
        let slow = reader.begin(&lender, vec![BlockName(1)].into(), until).wait(now, until).await;
        reader.put_off(slow.err().expect("it is stuck"));
        readers.reap(until - Duration::from_millis(1));
        assert_eq!(counted.released.load(SeqCst), 0);
        readers.reap(until);
        assert_eq!(counted.released.load(SeqCst), 1);
    }
}
