//! The agent that holds blocks: answers those that read them.

use super::direct::DirectWay;
use super::handshake::{Reader, receive};
use super::keys::FleetKey;
use super::link::{Cargo, Incoming, Link, LinkError};
use super::loans::{Lender, Loan, ReaderTicket, Readers};
use super::slot_part::SlotPart;
use super::wire::{FrameHeader, FrameKind, decode_names, encode_checksums, encode_slots};
use crate::BlockForm;
use crate::arena::Arena;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};

/// Connections at once; others are closed.
const CONNECTIONS_MAX: usize = 256;
/// Longest time of a lease, whatever the reader wants.
const LEASE_MAX: Duration = Duration::from_secs(10);
/// Time after which a silent connection is closed.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// Time between two searches for leases that have ended.
const REAP_EVERY: Duration = Duration::from_millis(100);
/// Pause after a failed `accept`, which fails again at once while there are no file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Lends blocks to other agents of the fleet and sends their KV.
#[derive(Clone)]
pub struct TransferServer {
    /// Memory of the blocks.
    pub arena: Arc<Arena>,
    /// The store that knows which block is where, and keeps it there.
    pub lender: Arc<dyn Lender>,
    /// Form of the blocks.
    pub form: BlockForm,
    /// Key of the fleet. Without a secret only readers on this machine are answered.
    pub key: FleetKey,
    /// The way in which readers may read the arena by themselves, if there is one.
    pub direct: Option<Arc<dyn DirectWay>>,
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
                Ok((_, from)) if !server.key.covers(from.ip()) => {
                    tracing::warn!(%from, "reader refused: no fleet secret vouches for it");
                }
                Ok((_, from)) if connections.len() >= CONNECTIONS_MAX => {
                    tracing::warn!(%from, limit = CONNECTIONS_MAX, "too many readers");
                }
                Ok((stream, from)) => {
                    let (server, readers) = (server.clone(), readers.clone());
                    connections.spawn(async move {
                        if let Err(error) = server.serve(stream, &readers).await {
                            tracing::debug!(%from, %error, "reader has gone");
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

    async fn serve(&self, stream: TcpStream, readers: &Arc<Readers>) -> Result<(), LinkError> {
        let Reader { mut link, instance } = receive(stream, &self.key, self.form).await?;
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
                FrameKind::Lease => self.lend(&mut link, &frame, &payload, &reader).await?,
                FrameKind::Read => self.send(&mut link, &frame, &reader).await?,
                FrameKind::Vouch => self.vouch(&mut link, &frame, &reader)?,
                FrameKind::End => reader.end(frame.header.transfer),
                FrameKind::Describe => {
                    let words = self.direct.as_ref().map_or(&[][..], |way| way.description());
                    link.queue(FrameHeader::new(FrameKind::Described), words);
                }
                FrameKind::Locate => locate(&mut link, frame.header.transfer, &reader),
                kind => return Err(LinkError::Unexpected(kind)),
            }
        }
    }

    /// Leases the leading blocks that are here.
    async fn lend(
        &self,
        link: &mut Link,
        frame: &Incoming,
        payload: &[u8],
        reader: &ReaderTicket,
    ) -> Result<(), LinkError> {
        let wanted = Duration::from_millis(u64::from(frame.header.count)).min(LEASE_MAX);
        let until = Instant::now() + wanted;
        let lending = Loan::of(self.lender.clone(), decode_names(payload), until);
        let loan = timeout_at(until, lending).await.ok().map(Arc::new);
        // An empty loan is none: there is nothing to read and nothing to end.
        let (number, blocks) = match &loan {
            Some(loan) if loan.blocks.is_empty() => (0, &[][..]),
            Some(loan) if reader.keep(loan.clone()) => (loan.number, &loan.blocks[..]),
            Some(_) | None => {
                link.queue(FrameHeader::new(FrameKind::Busy), &[]);
                return Ok(());
            }
        };
        let header = FrameHeader { transfer: number, ..FrameHeader::new(FrameKind::Leased) };
        link.queue(header, &encode_checksums(blocks.iter().map(|block| block.checksum)));
        Ok(())
    }

    /// Sends the part of a block that the reader has room for.
    async fn send(
        &self,
        link: &mut Link,
        frame: &Incoming,
        reader: &ReaderTicket,
    ) -> Result<(), LinkError> {
        let Some(loan) = reader.live(frame.header.transfer) else {
            gone(link, frame.header.transfer);
            return Ok(());
        };
        let cargo = self.cargo(&loan, frame)?;
        // The pins last as long as this loan, so the slot must not be read after its deadline. A
        // frame that is cut there ends the connection, and the reader comes back.
        timeout_at(loan.deadline, link.send_kv(&cargo)).await.map_err(|_| LinkError::Late)?
    }

    /// Vouches for the part of a block that the reader read by itself.
    fn vouch(
        &self,
        link: &mut Link,
        frame: &Incoming,
        reader: &ReaderTicket,
    ) -> Result<(), LinkError> {
        match reader.live(frame.header.transfer) {
            Some(loan) => link.queue_vouched(&self.cargo(&loan, frame)?),
            None => gone(link, frame.header.transfer),
        }
        Ok(())
    }

    /// The part of a block of a lease that a frame asks for.
    fn cargo(&self, loan: &Loan, frame: &Incoming) -> Result<Cargo<'_>, LinkError> {
        let FrameHeader { kind, place, transfer, offset, count, .. } = frame.header;
        let range = offset as usize..offset as usize + count as usize;
        let block = loan.blocks.get(place as usize);
        let block = block.filter(|_| range.end <= self.form.block_bytes);
        let block = block.ok_or(LinkError::Unexpected(kind))?;
        let part = SlotPart { arena: &self.arena, slot: block.slot, range };
        Ok(Cargo { part, name: loan.names[place as usize], place, transfer })
    }
}

/// Says that there is no such lease, or no more.
fn gone(link: &mut Link, transfer: u64) {
    link.queue(FrameHeader { transfer, ..FrameHeader::new(FrameKind::Gone) }, &[]);
}
