//! The agent that holds blocks: answers those that read them.

use super::handshake::{Reader, receive};
use super::link::{Cargo, Incoming, Link, LinkError};
use super::loans::{Loan, LoanWish, ReaderTicket, Readers};
use super::send_order::SendOrder;
use super::slot_part::SlotPart;
use super::stores::{LendingStore, LendingStores};
use super::wire::{
    FrameHeader, FrameKind, decode_names, encode_checksums, encode_slots, urgency_of,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};

/// Connections at once; others are closed.
const CONNECTIONS_MAX: usize = 1024;
/// Longest time of a lease, whatever the reader wants.
const LEASE_MAX: Duration = Duration::from_secs(10);
/// Longest time that a reader waits for the answer to its wish for a lease. A reader that hears
/// nothing for longer takes the holder to be dead, so a holder that needs longer says that it is busy.
/// Other questions of the connection wait meanwhile, also for the disk.
const LENDING_MAX: Duration = Duration::from_millis(100);
/// Time after which a silent connection is closed.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// Time between two searches for leases that have ended.
pub(super) const REAP_EVERY: Duration = Duration::from_millis(100);
/// Pause after a failed `accept`, which fails again at once while there are no file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Lends blocks to other agents of the fleet and sends their KV.
#[derive(Clone)]
pub struct TransferServer {
    stores: Arc<dyn LendingStores>,
    order: Arc<SendOrder>,
}

/// Says in which slots the blocks of a lease are.
fn locate(link: &mut Link, transfer: u64, reader: &ReaderTicket) {
    match reader.live(transfer) {
        Some(loan) => {
            let header = FrameHeader { transfer, ..FrameHeader::new(FrameKind::Located) };
            link.queue(header, &encode_slots(loan.blocks.iter().map(|block| block.slot)));
        }
        None => gone(link, transfer),
    }
}

impl TransferServer {
    /// Lends from these stores.
    pub fn new(stores: Arc<dyn LendingStores>) -> Self {
        Self { stores, order: Arc::default() }
    }

    /// Answers readers that connect to `listener`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes all connections and ends all leases.
    pub async fn run(self, listener: TcpListener) {
        let server = Arc::new(self);
        let readers = Arc::new(Readers::default());
        let mut connections = JoinSet::new();
        let mut reap = interval(REAP_EVERY);
        reap.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                // From now on there may be leases that end.
                () = readers.entered() => continue,
                now = reap.tick(), if !readers.is_empty() => {
                    readers.reap(now);
                    continue;
                }
            };
            match accepted {
                Ok((_, from)) if connections.len() >= CONNECTIONS_MAX => {
                    tracing::warn!(%from, limit = CONNECTIONS_MAX, "too many readers");
                }
                Ok((stream, from)) => {
                    let (server, readers) = (server.clone(), readers.clone());
                    connections.spawn(async move {
                        match server.serve(stream, from, &readers).await {
                            Err(error @ LinkError::Distrusted) => {
                                tracing::warn!(%from, %error, "reader refused");
                            }
                            Err(error) => tracing::debug!(%from, %error, "reader has gone"),
                            Ok(()) => {}
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept readers of KV");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn serve(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        readers: &Arc<Readers>,
    ) -> Result<(), LinkError> {
        let received = receive(stream, from.ip(), &*self.stores).await?;
        let Reader { mut link, instance, store } = received;
        store.lender.welcome();
        let reader = readers.enter(instance);
        loop {
            // Answers go out together where questions came together.
            if !link.has_next() {
                link.flush().await?;
            }
            let frame = timeout(IDLE_MAX, link.next()).await.map_err(|_| LinkError::Late)??;
            // A tag is checked with the payload, so every frame is read whole before it is heeded.
            let payload = link.payload(&frame).await?;
            match frame.header.kind {
                FrameKind::Lease => {
                    let loan = loan(&store, &frame, &payload, &reader).await;
                    lend(&mut link, loan, &reader);
                }
                FrameKind::Read => {
                    let loan = reader.live(frame.header.transfer);
                    self.send(&store, &mut link, &frame, loan).await?;
                }
                FrameKind::Vouch => vouch(&store, &mut link, &frame, &reader)?,
                FrameKind::End => reader.end(frame.header.transfer),
                FrameKind::Describe => {
                    let words = store.direct.as_ref().map_or(&[][..], |way| way.description());
                    link.queue(FrameHeader::new(FrameKind::Described), words);
                }
                FrameKind::Locate => locate(&mut link, frame.header.transfer, &reader),
                kind => return Err(LinkError::Unexpected(kind)),
            }
        }
    }

    /// Sends the part of a block that the reader has room for, when it is the part's turn.
    async fn send(
        &self,
        store: &LendingStore,
        link: &mut Link,
        frame: &Incoming,
        loan: Option<Arc<Loan>>,
    ) -> Result<(), LinkError> {
        let Some(loan) = loan else {
            gone(link, frame.header.transfer);
            return Ok(());
        };
        let cargo = cargo(store, &loan, frame)?;
        let sent = async {
            let _turn = self.order.turn(loan.urgency).await;
            link.send_kv(&cargo).await
        };
        // The pins last as long as this loan, so the slot must not be read after its deadline. A
        // frame that is cut there ends the connection, and the reader comes back.
        timeout_at(loan.deadline, sent).await.map_err(|_| LinkError::Late)?
    }
}

/// The leading blocks that a reader asks for, as far as they are here; `None` if that takes too long. The
/// lender goes on then, and the reader finds the blocks when it asks again: a lender that began anew each
/// time would never end on a busy machine.
async fn loan(
    store: &LendingStore,
    frame: &Incoming,
    payload: &[u8],
    reader: &ReaderTicket,
) -> Option<Arc<Loan>> {
    let now = Instant::now();
    let wanted = Duration::from_millis(u64::from(frame.header.count)).min(LEASE_MAX);
    // Half of the time is for the way: what is in memory comes in time, whatever the disk does.
    let (wait, urgency) = (wanted / 2, urgency_of(&frame.header));
    let wish = LoanWish { names: decode_names(payload), wait, urgency };
    let lending = reader.begin(&store.lender, wish, now + wanted);
    match lending.wait(now + wanted.min(LENDING_MAX), now + wanted).await {
        Ok(loan) => Some(Arc::new(loan)),
        Err(slow) => {
            reader.put_off(slow);
            None
        }
    }
}

/// Answers with a lease of the blocks of a loan.
fn lend(link: &mut Link, loan: Option<Arc<Loan>>, reader: &ReaderTicket) {
    // An empty loan is none: there is nothing to read and nothing to end.
    let (number, blocks, waited) = match &loan {
        Some(loan) if loan.blocks.is_empty() => (0, &[][..], loan.waited),
        Some(loan) if reader.keep(loan.clone()) => (loan.number, &loan.blocks[..], loan.waited),
        Some(_) | None => return link.queue(FrameHeader::new(FrameKind::Busy), &[]),
    };
    let count = u32::try_from(waited.as_micros()).unwrap_or(u32::MAX);
    let header = FrameHeader { transfer: number, count, ..FrameHeader::new(FrameKind::Leased) };
    link.queue(header, &encode_checksums(blocks.iter().map(|block| block.checksum)));
}

/// Vouches for the part of a block that the reader read by itself.
fn vouch(
    store: &LendingStore,
    link: &mut Link,
    frame: &Incoming,
    reader: &ReaderTicket,
) -> Result<(), LinkError> {
    match reader.live(frame.header.transfer) {
        Some(loan) => link.queue_vouched(&cargo(store, &loan, frame)?),
        None => gone(link, frame.header.transfer),
    }
    Ok(())
}

/// The part of a block of a lease that a frame asks for.
fn cargo<'a>(
    store: &'a LendingStore,
    loan: &Loan,
    frame: &Incoming,
) -> Result<Cargo<'a>, LinkError> {
    let FrameHeader { kind, place, transfer, offset, count, .. } = frame.header;
    let range = offset as usize..offset as usize + count as usize;
    let block = loan.blocks.get(place as usize);
    let block = block.filter(|_| range.end <= store.form.block_bytes);
    let block = block.ok_or(LinkError::Unexpected(kind))?;
    let part = SlotPart { arena: &store.arena, slot: block.slot, range };
    Ok(Cargo { part, name: loan.names[place as usize], place, transfer })
}

/// Says that there is no such lease, or no more.
fn gone(link: &mut Link, transfer: u64) {
    link.queue(FrameHeader { transfer, ..FrameHeader::new(FrameKind::Gone) }, &[]);
}
