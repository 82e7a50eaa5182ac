//! Blocks that other agents read: who may, and until when they stay where they are.

use crate::{Checksum, SlotId};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Leases of one reader at most.
const LOANS_MAX: usize = 64;
/// Time for which leases outlive the last connection of their reader, so that it can come back and
/// read what it lacks.
const GRACE: Duration = Duration::from_millis(400);

/// The store that blocks are lent from.
pub trait Lender: Send + Sync {
    /// A reader has proved that it may read.
    fn welcome(&self) {}

    /// Pins the leading blocks of `names` that are in memory, or soon will be, until
    /// [`Lender::release`] of the same loan. The caller may drop the future, and then releases the
    /// loan too.
    fn lend(&self, loan: u64, names: Vec<BlockName>) -> BoxFuture<'static, Vec<LentBlock>>;

    /// Gives all pins of a loan back, also of one that was never made.
    fn release(&self, loan: u64);
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
    pub(super) deadline: Instant,
}

impl Loan {
    /// Pins the leading blocks of `names` that the lender has.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the pins back.
    pub(super) async fn of(lender: Arc<dyn Lender>, names: Vec<BlockName>, until: Instant) -> Self {
        let number = rand::random();
        let lending = lender.lend(number, names.clone());
        let mut loan = Self { lender, number, names, blocks: Vec::new(), deadline: until };
        loan.blocks = lending.await;
        loan.blocks.truncate(loan.names.len());
        loan
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.lender.release(self.number);
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
        let mut ended = Vec::new();
        self.books.lock().retain(|_, book| {
            ended.extend(book.loans.extract_if(|_, loan| loan.deadline <= now));
            let is_here = book.left.is_none_or(|left| now < left + GRACE);
            if !is_here {
                ended.extend(book.loans.drain());
            }
            is_here
        });
        // Outside the lock, because the lender has locks of its own.
        drop(ended);
    }

    /// Whether no reader is known.
    pub(super) fn is_empty(&self) -> bool {
        self.books.lock().is_empty()
    }
}

impl ReaderTicket {
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
