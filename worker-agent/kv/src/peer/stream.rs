//! One connection to a peer: asks for what the board has, and lets the answers land.

use super::board::{Board, Job, LeaseAnswer, LeaseJob};
use super::common::PeerCommon;
use super::pull::{Pull, PullPart};
use crate::BlockForm;
use crate::transfer::wire::{
    FrameHeader, FrameKind, decode_checksums, encode_names, urgency_number,
};
use crate::transfer::{Incoming, Landed, Link, LinkError, ReaderIdentity, introduce};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Bytes that one connection asks for before they are there.
const WINDOW_BYTES: usize = 4 << 20;
/// Questions that one connection asks before they are answered.
const WINDOW_FRAMES: usize = 64;
/// Longest time for a connection to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The work of one connection to the peer at this address, until there is none.
///
/// A connection that is cut after it was of use is made again.
///
/// # Cancel safety
///
/// Dropping the future gives all work that is not done back to the board.
pub(super) async fn run(
    common: Arc<PeerCommon>,
    board: Arc<Board>,
    peer: SocketAddr,
) -> Result<(), LinkError> {
    loop {
        let link = connect(&common, peer).await?;
        let asked = Asked { board: board.clone(), jobs: VecDeque::new(), bytes: 0 };
        let mut stream = Stream { common: common.clone(), link, asked, answers: 0, ends: 0 };
        match stream.converse().await {
            Err(error @ (LinkError::Io(_) | LinkError::Worn)) if stream.answers > 0 => {
                tracing::debug!(%peer, %error, "connection to a peer was cut");
            }
            end => return end,
        }
    }
}

/// A connection to the peer at this address, whose sides have proved who they are.
pub(super) async fn connect(common: &PeerCommon, peer: SocketAddr) -> Result<Link, LinkError> {
    let link = meet(peer, &common.reader, common.form).await?;
    common.counters.connections.fetch_add(1, Relaxed);
    Ok(link)
}

async fn meet(
    peer: SocketAddr,
    reader: &ReaderIdentity,
    form: BlockForm,
) -> Result<Link, LinkError> {
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(peer));
    let stream = stream.await.map_err(|_| LinkError::Late)??;
    introduce(stream, reader, form).await
}

/// Connects as this reader and hangs up, so that a holder with a prompt for the reader gives it up.
///
/// # Errors
///
/// The holder was not reached, or has nothing for the reader.
pub async fn visit(
    peer: SocketAddr,
    reader: &ReaderIdentity,
    form: BlockForm,
) -> Result<(), LinkError> {
    meet(peer, reader, form).await.map(drop)
}

struct Stream {
    common: Arc<PeerCommon>,
    link: Link,
    asked: Asked,
    answers: u64,
    /// Ends of leases that are queued and not sent yet.
    ends: usize,
}

/// Questions in the order in which they were sent, which is that of the answers.
struct Asked {
    board: Arc<Board>,
    jobs: VecDeque<Question>,
    bytes: usize,
}

enum Question {
    Lease(LeaseJob),
    Part(Arc<Pull>, PullPart),
}

impl Stream {
    async fn converse(&mut self) -> Result<(), LinkError> {
        let mut changes = self.asked.board.watch();
        let patience = self.common.settings.silence;
        let mut heard = Instant::now();
        loop {
            changes.mark_unchanged();
            let was_idle = self.asked.jobs.is_empty();
            self.ask();
            timeout(patience, self.link.flush()).await.map_err(|_| LinkError::Late)??;
            if self.ends > 0 {
                self.asked.board.sent_ends(std::mem::take(&mut self.ends));
            }
            if self.asked.jobs.is_empty() {
                tokio::select! {
                    _ = changes.changed() => continue,
                    // Without a question nothing comes but the end.
                    frame = self.link.next() => return match frame {
                        Ok(frame) => Err(LinkError::Unexpected(frame.header.kind)),
                        Err(LinkError::Io(_)) => Ok(()),
                        Err(error) => Err(error),
                    },
                    () = sleep(self.common.settings.idle) => return Ok(()),
                }
            }
            if was_idle {
                heard = Instant::now();
            }
            let has_room = self.asked.has_room();
            let frame = tokio::select! {
                biased;
                frame = timeout_at(heard + patience, self.link.next()) => frame,
                _ = changes.changed(), if has_room => continue,
            };
            let frame = frame.map_err(|_| LinkError::Late)??;
            let answer = timeout(patience, self.answer(frame));
            answer.await.map_err(|_| LinkError::Late)??;
            heard = Instant::now();
            self.answers += 1;
            self.asked.board.answered();
        }
    }

    /// Asks for as much as there is room for.
    fn ask(&mut self) {
        if !self.asked.has_room() {
            return;
        }
        while self.asked.bytes < WINDOW_BYTES && self.asked.jobs.len() < WINDOW_FRAMES {
            let Some(job) = self.asked.board.take() else { return };
            match job {
                Job::End(transfer) => {
                    let header = FrameHeader { transfer, ..FrameHeader::new(FrameKind::End) };
                    self.link.queue(header, &[]);
                    self.ends += 1;
                }
                Job::Lease(lease) => {
                    let count = u32::try_from(lease.time.as_millis()).unwrap_or(u32::MAX);
                    let place = urgency_number(lease.urgency);
                    let header = FrameHeader { count, place, ..FrameHeader::new(FrameKind::Lease) };
                    self.link.queue(header, &encode_names(&lease.names));
                    self.asked.jobs.push_back(Question::Lease(lease));
                }
                Job::Part(pull, part) => {
                    let header = FrameHeader {
                        place: part.place,
                        transfer: part.lease,
                        offset: part.range.offset,
                        count: part.range.len,
                        ..FrameHeader::new(FrameKind::Read)
                    };
                    self.link.queue(header, &[]);
                    self.asked.bytes += part.range.len as usize;
                    self.asked.jobs.push_back(Question::Part(pull, part));
                }
            }
        }
    }

    /// Takes the answer to the oldest question.
    async fn answer(&mut self, frame: Incoming) -> Result<(), LinkError> {
        let header = frame.header;
        let unexpected = Err(LinkError::Unexpected(header.kind));
        match (self.asked.jobs.front(), header.kind) {
            (Some(Question::Part(pull, part)), FrameKind::Data) => {
                let range = part.range;
                let is_answer = header.transfer == part.lease
                    && header.place == part.place
                    && header.offset == range.offset
                    && header.length == range.len;
                if !is_answer {
                    return unexpected;
                }
                let landed = self.link.land(&frame, part.name, &pull.landing(range)).await?;
                if landed == Landed::Whole {
                    pull.arrived(range);
                    self.asked.answered();
                } else {
                    self.asked.lost();
                }
            }
            (Some(Question::Part(pull, part)), FrameKind::Gone)
                if header.transfer == part.lease =>
            {
                self.link.payload(&frame).await?;
                pull.lease_gone(part.lease);
                self.asked.lost();
            }
            (Some(Question::Lease(_)), FrameKind::Leased | FrameKind::Busy) => {
                let checksums = decode_checksums(&self.link.payload(&frame).await?);
                let answer = match header.kind {
                    FrameKind::Busy => LeaseAnswer::Busy,
                    _ => {
                        let waited = Duration::from_micros(header.count.into());
                        LeaseAnswer::Leased { number: header.transfer, checksums, waited }
                    }
                };
                if let Some(Question::Lease(lease)) = self.asked.answered()
                    && let Err(LeaseAnswer::Leased { number, .. }) = lease.answer.send(answer)
                {
                    // Nobody waits any more: the peer may forget the lease.
                    let end = FrameHeader { transfer: number, ..FrameHeader::new(FrameKind::End) };
                    self.link.queue(end, &[]);
                }
            }
            _ => return unexpected,
        }
        Ok(())
    }
}

impl Asked {
    /// Whether it is time to ask for more: many questions go out together.
    fn has_room(&self) -> bool {
        self.bytes <= WINDOW_BYTES / 2 && self.jobs.len() <= WINDOW_FRAMES / 2
    }

    fn answered(&mut self) -> Option<Question> {
        let question = self.jobs.pop_front();
        if let Some(Question::Part(_, part)) = &question {
            self.bytes -= part.range.len as usize;
        }
        question
    }

    /// The oldest question is asked again, by this connection or another.
    fn lost(&mut self) {
        if let Some(Question::Part(pull, part)) = self.answered() {
            pull.lost(part.range);
            self.board.stir();
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        while !self.jobs.is_empty() {
            self.lost();
        }
    }
}
