//! Batches that are read straight from a peer's arena.
//!
//! A connection of their own asks for the description of the arena, once, and for the slots of each
//! lease. The bytes come by [`DirectArena::read`], on a thread that may block, into memory that is not
//! a slot's. From there they are copied to their slots, whose owner may have given them up meanwhile.
//! With a fleet secret the peer then vouches for each part over that connection.

use super::board::Board;
use super::common::{DirectReads, PeerCommon};
use super::path::PathChoice;
use super::pull::{Pull, PullPart};
use super::stream::connect;
use crate::SlotId;
use crate::transfer::direct::{DirectArena, DirectError, READ_BYTES_MAX};
use crate::transfer::wire::{FrameHeader, FrameKind, decode_slots};
use crate::transfer::{Landed, Landing, Link, LinkError};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

/// Time after which an arena that nobody reads is closed.
const IDLE: Duration = Duration::from_secs(30);
/// Leases whose slots are remembered.
const LEASES_MAX: usize = 64;

/// End of direct reads from a peer.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectEnd {
    /// The connection failed, or brought what it must not.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The arena cannot be read.
    #[error(transparent)]
    Read(#[from] DirectError),
    /// The peer offers nothing to read.
    #[error("the peer's arena cannot be read directly")]
    NotOffered,
}

/// Reads of the arena of the peer at this address, until there is nothing to read.
///
/// # Cancel safety
///
/// Dropping the future gives all work that is not done back to the board.
pub(super) async fn run(
    common: Arc<PeerCommon>,
    board: Arc<Board>,
    peer: SocketAddr,
    choice: Arc<Mutex<PathChoice>>,
) -> Result<(), DirectEnd> {
    let Some(DirectReads { way, bytes }) = common.direct.get().cloned() else {
        return Err(DirectEnd::NotOffered);
    };
    let mut link = connect(&common, peer).await?;
    let patience = common.settings.silence;
    let question = FrameHeader::new(FrameKind::Describe);
    let (_, description) = ask(&mut link, question, FrameKind::Described, patience).await?;
    if description.is_empty() {
        return Err(DirectEnd::NotOffered);
    }
    let opening = spawn_blocking(move || way.open(&description));
    let arena = opening.await.map_err(|error| DirectError(error.to_string()))??;
    tracing::info!(%peer, "the host memory of a peer can be read directly");
    choice.lock().opened();
    let _closing = ClosingPath { choice: &choice, board: &board };
    let (board, slots) = (board.clone(), FxHashMap::default());
    let reader = DirectReader { common, board, link, slots, bytes };
    reader.read(arena).await
}

/// Lets connections do what is left.
struct ClosingPath<'a> {
    choice: &'a Mutex<PathChoice>,
    board: &'a Board,
}

impl Drop for ClosingPath<'_> {
    fn drop(&mut self) {
        self.choice.lock().idle();
        self.board.leave_direct();
    }
}

struct DirectReader {
    common: Arc<PeerCommon>,
    board: Arc<Board>,
    link: Link,
    /// By lease, the slots of its blocks.
    slots: FxHashMap<u64, Vec<SlotId>>,
    /// Counts bytes that were read.
    bytes: Counter,
}

/// Frames to read. Dropping them gives back those that have not landed.
struct DirectParts {
    board: Arc<Board>,
    parts: Vec<(Arc<Pull>, PullPart)>,
    ranges: Vec<Range<u64>>,
}

impl DirectReader {
    async fn read(mut self, mut arena: Box<dyn DirectArena>) -> Result<(), DirectEnd> {
        let mut changes = self.board.watch();
        let within = self.common.settings.silence;
        loop {
            changes.mark_unchanged();
            let parts = self.board.take_direct(READ_BYTES_MAX);
            if parts.is_empty() {
                match timeout(IDLE, changes.changed()).await {
                    Ok(_) => continue,
                    Err(_) => return Ok(()),
                }
            }
            let mut parts = DirectParts { board: self.board.clone(), parts, ranges: Vec::new() };
            self.locate(&mut parts).await?;
            if parts.ranges.is_empty() {
                continue;
            }
            let frames = parts.ranges.len() as u64;
            let bytes = parts.ranges.iter().map(|range| range.end - range.start).sum();
            let reading = spawn_blocking(move || {
                let landed = parts.read(&mut *arena, within);
                (arena, parts, landed)
            });
            let (back, parts, landed) =
                reading.await.map_err(|error| DirectError(error.to_string()))?;
            let mut landed = landed?;
            arena = back;
            if self.common.reader.key.is_secret() {
                self.vouch(&parts, &mut landed).await?;
            }
            parts.report(&landed);
            self.common.counters.direct.fetch_add(frames, Relaxed);
            self.bytes.inc_by(bytes);
            self.board.answered();
        }
    }

    /// Compares the frames that have landed with the tags that the peer has for them. Frames of
    /// leases that ended have not landed.
    async fn vouch(&mut self, parts: &DirectParts, landed: &mut [bool]) -> Result<(), LinkError> {
        let asked: Vec<_> = (0..landed.len()).filter(|at| landed[*at]).collect();
        for at in &asked {
            self.link.queue(parts.question(*at), &[]);
        }
        let until = Instant::now() + self.common.settings.silence;
        let late = |_| LinkError::Late;
        timeout_at(until, self.link.flush()).await.map_err(late)??;
        for at in asked {
            let frame = timeout_at(until, self.link.next()).await.map_err(late)??;
            let (pull, part) = &parts.parts[at];
            let kind = frame.header.kind;
            let expected = FrameHeader {
                kind: FrameKind::Vouched,
                sequence: frame.header.sequence,
                ..parts.question(at)
            };
            landed[at] = if frame.header == expected {
                let landing = pull.landing(part.range);
                self.link.check_kv(&frame, part.name, &landing)? == Landed::Whole
            } else if kind == FrameKind::Gone && frame.header.transfer == part.lease {
                self.link.payload(&frame).await?;
                pull.lease_gone(part.lease);
                false
            } else {
                return Err(LinkError::Unexpected(kind));
            };
        }
        Ok(())
    }

    /// Finds where in the peer's arena the frames are. Those of leases that ended are given back.
    async fn locate(&mut self, parts: &mut DirectParts) -> Result<(), DirectEnd> {
        if self.slots.len() >= LEASES_MAX {
            self.slots.clear();
        }
        let leases: BTreeSet<u64> = parts.parts.iter().map(|(_, part)| part.lease).collect();
        for lease in leases {
            self.ask_for_slots(lease).await?;
        }
        // Nothing waits from here on, so no frame can get lost on its way between the lists.
        let stride = self.common.arena.stride() as u64;
        for (pull, part) in std::mem::take(&mut parts.parts) {
            let slots = self.slots.get(&part.lease);
            let Some(slot) = slots.and_then(|slots| slots.get(part.place as usize)) else {
                pull.lease_gone(part.lease);
                pull.lost(part.range);
                continue;
            };
            let start = u64::from(slot.0) * stride + u64::from(part.range.offset);
            parts.ranges.push(start..start + u64::from(part.range.len));
            parts.parts.push((pull, part));
        }
        Ok(())
    }

    /// Learns the slots of a lease, unless the peer does not know it any more.
    async fn ask_for_slots(&mut self, lease: u64) -> Result<(), LinkError> {
        if self.slots.contains_key(&lease) {
            return Ok(());
        }
        let question = FrameHeader { transfer: lease, ..FrameHeader::new(FrameKind::Locate) };
        let patience = self.common.settings.silence;
        let (header, payload) = ask(&mut self.link, question, FrameKind::Located, patience).await?;
        if header.kind == FrameKind::Located {
            self.slots.insert(lease, decode_slots(&payload));
        }
        Ok(())
    }
}

impl DirectParts {
    /// Reads all frames into their slots; says which have landed, which is not to be genuine.
    fn read(
        &mut self,
        arena: &mut dyn DirectArena,
        within: Duration,
    ) -> Result<Vec<bool>, DirectError> {
        let ranges = std::mem::take(&mut self.ranges);
        let parts = &self.parts;
        let mut has_landed = vec![false; parts.len()];
        arena.read(&ranges, within, &mut |at, bytes| {
            let Some((pull, part)) = parts.get(at) else { return };
            let landing = pull.landing(part.range);
            let mut is_whole = false;
            let is_open = landing.with(&mut |slot| {
                is_whole = bytes.len() == slot.len();
                if is_whole {
                    slot.write_start(bytes);
                }
            });
            has_landed[at] = is_open && is_whole;
        })?;
        Ok(has_landed)
    }

    /// The question for the tag of a frame.
    fn question(&self, at: usize) -> FrameHeader {
        let (_, PullPart { range, lease, place, .. }) = &self.parts[at];
        FrameHeader {
            place: *place,
            transfer: *lease,
            offset: range.offset,
            count: range.len,
            ..FrameHeader::new(FrameKind::Vouch)
        }
    }

    /// Reports the frames that have landed; blocks that are whole with them are checked. The others
    /// are given back.
    fn report(mut self, landed: &[bool]) {
        let parts = std::mem::take(&mut self.parts);
        for ((pull, part), has_landed) in parts.into_iter().zip(landed) {
            if *has_landed { pull.arrived(part.range) } else { pull.lost(part.range) }
        }
    }
}

impl Drop for DirectParts {
    fn drop(&mut self) {
        for (pull, part) in self.parts.drain(..) {
            pull.lost(part.range);
        }
        self.board.stir();
    }
}

/// Asks the peer, and returns its answer: of this kind, or [`FrameKind::Gone`].
async fn ask(
    link: &mut Link,
    question: FrameHeader,
    kind: FrameKind,
    patience: Duration,
) -> Result<(FrameHeader, Vec<u8>), LinkError> {
    let until = Instant::now() + patience;
    let answering = async {
        link.queue(question, &[]);
        link.flush().await?;
        let frame = link.next().await?;
        let payload = link.payload(&frame).await?;
        let is_answer = frame.header.kind == kind || frame.header.kind == FrameKind::Gone;
        match is_answer && frame.header.transfer == question.transfer {
            true => Ok((frame.header, payload)),
            false => Err(LinkError::Unexpected(frame.header.kind)),
        }
    };
    timeout_at(until, answering).await.map_err(|_| LinkError::Late)?
}
