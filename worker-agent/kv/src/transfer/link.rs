//! A connection of two agents, as frames: their order, their tags, and KV between sockets and slots.

use super::keys::{FrameKey, SessionKeys, Tag, are_equal};
use super::slot_part::SlotPart;
use super::wire::{FrameHeader, FrameKind, HEADER_BYTES, TAG_BYTES, WireError};
use rustix::net::{SendFlags, sockopt};
use stator_protos::name::BlockName;
use std::io::{self, ErrorKind};
use std::mem;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Frames of one direction of a connection at most; the next connection has new keys. As these carry
/// at most a mebibyte each, no key tags more than 2^48 blocks of AES.
pub(super) const FRAMES_MAX: u64 = 1 << 32;
/// Bytes of a frame before its payload.
const HEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;
/// Bytes that are read at once and thrown away, of KV that nobody wants any more.
const DISCARD_BYTES: usize = 64 << 10;

/// Time without a word after which the system asks the other side for one, and from then on between
/// two questions.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// Questions without an answer after which a connection has failed.
const PROBES: u32 = 3;
/// Time for which bytes may be on their way unconfirmed.
const UNCONFIRMED_MAX: Duration = Duration::from_secs(4);

/// Has the system end the connection some seconds after the machine at the other end has gone without a
/// word. A process that dies is no such case: its system closes its connections.
fn watch_for_silence(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, UNCONFIRMED_MAX.as_millis() as u32)?;
    Ok(())
}

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// Bytes that are no frame.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A tag that is not of this frame and the fleet's key.
    #[error("a frame of kind {0:?} is forged, damaged or of another secret")]
    Forged(FrameKind),
    /// A frame that has no place in the conversation.
    #[error("a frame of kind {0:?} was not expected")]
    Unexpected(FrameKind),
    /// The other side refuses to exchange KV.
    #[error("refused: {0}")]
    Refused(String),
    /// No store here is for this reader.
    #[error("nothing is lent to this reader")]
    Unknown,
    /// A reader on another machine, where no secret vouches for readers.
    #[error("no fleet secret vouches for this reader")]
    Distrusted,
    /// The other side did not answer in time.
    #[error("no answer in time")]
    Late,
    /// Its keys have tagged as much as they may.
    #[error("the connection's keys are used up")]
    Worn,
}

/// Place that the KV of a frame is read into.
pub(crate) trait Landing {
    /// Lets the frame's part of a slot change. False, without a change, when nobody wants the KV any
    /// more: the slot may belong to another block by now.
    fn with(&self, change: &mut dyn FnMut(&SlotPart<'_>)) -> bool;
}

/// Fate of a frame's KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landed {
    /// The KV is in its slot, and genuine.
    Whole,
    /// The landing was closed. The KV was read and thrown away.
    Discarded,
}

/// KV that a frame carries or vouches for.
pub(crate) struct Cargo<'a> {
    pub(crate) part: SlotPart<'a>,
    pub(crate) name: BlockName,
    /// Place in the lease.
    pub(crate) place: u32,
    /// Number of the lease.
    pub(crate) transfer: u64,
}

/// A frame whose payload is still to be read.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) header: FrameHeader,
    /// The header as it came.
    pub(crate) bytes: [u8; HEADER_BYTES],
    pub(crate) tag: Tag,
    /// Number of the frame, as this side counted it.
    sequence: u64,
}

/// The frames of one direction.
struct Lane {
    key: Option<FrameKey>,
    sequence: u64,
}

/// A connection.
pub(crate) struct Link {
    stream: TcpStream,
    outgoing: Lane,
    incoming: Lane,
    outbox: Vec<u8>,
    /// Bytes of `outbox` that are written.
    written: usize,
    inbox: Vec<u8>,
    /// Bytes of `inbox` that are used.
    used: usize,
    /// Bytes that are read at once before it is known where they belong.
    read_ahead: usize,
}

impl Link {
    /// A connection that reads headers only as far as they go, so that all KV is read right into
    /// its slot.
    pub(crate) fn reader(stream: TcpStream) -> io::Result<Self> {
        Self::new(stream, HEAD_BYTES)
    }

    /// A connection that reads many small frames at once.
    pub(crate) fn holder(stream: TcpStream) -> io::Result<Self> {
        Self::new(stream, 64 * HEAD_BYTES)
    }

    fn new(stream: TcpStream, read_ahead: usize) -> io::Result<Self> {
        // Small frames are answered to at once; large ones fill packets anyway.
        stream.set_nodelay(true)?;
        watch_for_silence(&stream)?;
        let lane = || Lane { key: None, sequence: 0 };
        Ok(Self {
            stream,
            outgoing: lane(),
            incoming: lane(),
            outbox: Vec::new(),
            written: 0,
            inbox: Vec::new(),
            used: 0,
            read_ahead,
        })
    }

    /// Tags and checks all frames from now on; `is_reader` where this side reads blocks.
    pub(crate) fn secure(&mut self, keys: &SessionKeys, is_reader: bool) {
        let (to_holder, to_reader) = (keys.to_holder.clone(), keys.to_reader.clone());
        let (out, back) = if is_reader { (to_holder, to_reader) } else { (to_reader, to_holder) };
        self.outgoing = Lane { key: Some(out), sequence: 0 };
        self.incoming = Lane { key: Some(back), sequence: 0 };
    }

    /// Puts a frame without KV where [`Link::flush`] finds it.
    pub(crate) fn queue(&mut self, header: FrameHeader, payload: &[u8]) {
        let (sequence, bytes) = self.outgoing.number(header, payload.len());
        let key = self.outgoing.key.as_ref();
        if let Some(cipher) = key.and_then(FrameKey::cipher) {
            let mut payload = payload.to_vec();
            let tag = cipher.seal(sequence, &bytes, None, &mut payload);
            return self.queue_tagged(&bytes, &tag, &payload);
        }
        let tag = key.map_or([0; TAG_BYTES], |key| key.tag(sequence, &bytes, payload));
        self.queue_tagged(&bytes, &tag, payload);
    }

    /// Puts a frame that vouches for KV where [`Link::flush`] finds it. The KV travels another way.
    pub(crate) fn queue_vouched(&mut self, cargo: &Cargo<'_>) {
        let part = &cargo.part;
        let header = FrameHeader {
            place: cargo.place,
            transfer: cargo.transfer,
            offset: part.range.start as u32,
            count: part.len() as u32,
            ..FrameHeader::new(FrameKind::Vouched)
        };
        let (sequence, header) = self.outgoing.number(header, 0);
        let key = self.outgoing.key.as_ref();
        let tag = key.map_or([0; TAG_BYTES], |key| key.tag_kv(sequence, &header, cargo.name, part));
        self.queue_tagged(&header, &tag, &[]);
    }

    /// Puts a frame of the handshake where [`Link::flush`] finds it.
    pub(crate) fn queue_tagged(&mut self, header: &[u8; HEADER_BYTES], tag: &Tag, payload: &[u8]) {
        self.outbox.extend_from_slice(header);
        self.outbox.extend_from_slice(tag);
        self.outbox.extend_from_slice(payload);
    }

    /// Sends all frames that were put down.
    ///
    /// # Cancel safety
    ///
    /// The next call sends the rest.
    pub(crate) async fn flush(&mut self) -> Result<(), LinkError> {
        self.flush_with(SendFlags::empty()).await
    }

    async fn flush_with(&mut self, flags: SendFlags) -> Result<(), LinkError> {
        if self.outgoing.sequence > FRAMES_MAX {
            return Err(LinkError::Worn);
        }
        while self.written < self.outbox.len() {
            self.stream.writable().await?;
            let rest = &self.outbox[self.written..];
            let flags = flags | SendFlags::NOSIGNAL;
            let result = self
                .stream
                .try_io(Interest::WRITABLE, || Ok(rustix::net::send(&self.stream, rest, flags)?));
            self.written += moved(result)?;
        }
        self.outbox.clear();
        self.written = 0;
        Ok(())
    }

    /// Sends KV right from its slot.
    ///
    /// # Cancel safety
    ///
    /// None: the connection is of no use where a frame was cut.
    pub(crate) async fn send_kv(&mut self, cargo: &Cargo<'_>) -> Result<(), LinkError> {
        self.flush().await?;
        let part = &cargo.part;
        let header = FrameHeader {
            place: cargo.place,
            transfer: cargo.transfer,
            offset: part.range.start as u32,
            ..FrameHeader::new(FrameKind::Data)
        };
        let (sequence, header) = self.outgoing.number(header, part.len());
        let key = self.outgoing.key.as_ref().ok_or(LinkError::Unexpected(FrameKind::Data))?;
        if let Some(cipher) = key.cipher() {
            // Encrypted where it is sent from, so that there is one copy.
            let start = self.outbox.len() + HEAD_BYTES;
            self.outbox.extend_from_slice(&header);
            self.outbox.resize(start + part.len(), 0);
            let (head, kv) = self.outbox.split_at_mut(start);
            part.read(kv);
            let tag = cipher.seal(sequence, &header, Some(cargo.name), kv);
            head[start - TAG_BYTES..].copy_from_slice(&tag);
            return self.flush().await;
        }
        let tag = key.tag_kv(sequence, &header, cargo.name, part);
        self.queue_tagged(&header, &tag, &[]);
        self.flush_with(SendFlags::MORE).await?;
        let mut sent = 0;
        while sent < part.len() {
            self.stream.writable().await?;
            sent += moved(part.try_send(sent, &self.stream))?;
        }
        Ok(())
    }

    /// The header and the tag of the next frame.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call goes on.
    pub(crate) async fn next(&mut self) -> Result<Incoming, LinkError> {
        self.fill(HEAD_BYTES).await?;
        let head = &self.inbox[self.used..][..HEAD_BYTES];
        let bytes = *head.first_chunk().expect("a head begins with a header");
        let tag = *head.last_chunk().expect("a head ends with a tag");
        let header = FrameHeader::decode(&bytes)?;
        self.used += HEAD_BYTES;
        let sequence = self.incoming.sequence;
        if header.sequence != sequence {
            return Err(LinkError::Unexpected(header.kind));
        }
        if sequence == FRAMES_MAX {
            return Err(LinkError::Worn);
        }
        self.incoming.sequence += u64::from(self.incoming.key.is_some());
        Ok(Incoming { header, bytes, tag, sequence })
    }

    /// Whether the next frame's header has been read already.
    pub(crate) fn has_next(&self) -> bool {
        self.inbox.len() - self.used >= HEAD_BYTES
    }

    /// The payload of a frame without KV. Its kind bounds its length.
    pub(crate) async fn payload(&mut self, frame: &Incoming) -> Result<Vec<u8>, LinkError> {
        if matches!(frame.header.kind, FrameKind::Data | FrameKind::Vouched) {
            return Err(LinkError::Unexpected(frame.header.kind));
        }
        let length = frame.header.length as usize;
        self.fill(length).await?;
        let mut payload = self.inbox[self.used..][..length].to_vec();
        self.used += length;
        let Incoming { header, bytes, tag, sequence } = frame;
        let is_genuine = self.incoming.key.as_ref().is_none_or(|key| match key.cipher() {
            Some(cipher) => cipher.open(*sequence, bytes, None, tag, &mut payload),
            None => are_equal(tag, &key.tag(*sequence, bytes, &payload)),
        });
        is_genuine.then_some(payload).ok_or(LinkError::Forged(header.kind))
    }

    /// Reads KV right into its slot and checks that it is genuine.
    ///
    /// # Cancel safety
    ///
    /// None: the connection is of no use where a frame was cut.
    pub(crate) async fn land(
        &mut self,
        frame: &Incoming,
        name: BlockName,
        landing: &(dyn Landing + Sync),
    ) -> Result<Landed, LinkError> {
        let length = frame.header.length as usize;
        let (mut at, mut is_open) = self.land_read_ahead(length, landing);
        while at < length {
            self.stream.readable().await?;
            let mut result = Ok(0);
            is_open = is_open
                && landing.with(&mut |part| result = received(part.try_receive(at, &self.stream)));
            if !is_open {
                let mut discarded = vec![0; (length - at).min(DISCARD_BYTES)];
                result = received(self.stream.try_read(&mut discarded));
            }
            at += result?;
        }
        if is_open { self.check_kv(frame, name, landing) } else { Ok(Landed::Discarded) }
    }

    /// Checks KV that a [`FrameKind::Data`] brought or a [`FrameKind::Vouched`] vouches for.
    pub(crate) fn check_kv(
        &self,
        frame: &Incoming,
        name: BlockName,
        landing: &(dyn Landing + Sync),
    ) -> Result<Landed, LinkError> {
        let header = &frame.header;
        let key = self.incoming.key.as_ref().ok_or(LinkError::Unexpected(header.kind))?;
        let mut is_genuine = false;
        let is_open = landing.with(&mut |part| is_genuine = is_genuine_kv(key, frame, name, part));
        match (is_open, is_genuine) {
            (true, true) => Ok(Landed::Whole),
            (true, false) => Err(LinkError::Forged(header.kind)),
            (false, _) => Ok(Landed::Discarded),
        }
    }

    /// Copies what was read ahead of a payload. Says how many bytes these were, and whether the
    /// landing is open.
    fn land_read_ahead(&mut self, length: usize, landing: &dyn Landing) -> (usize, bool) {
        let ahead = &self.inbox[self.used..];
        let ahead = &ahead[..ahead.len().min(length)];
        self.used += ahead.len();
        let is_open = landing.with(&mut |part| part.write_start(ahead));
        (ahead.len(), is_open)
    }

    /// Reads until `wanted` unused bytes are there.
    async fn fill(&mut self, wanted: usize) -> Result<(), LinkError> {
        if self.inbox.len() - self.used >= wanted {
            return Ok(());
        }
        // What was used goes first, so that the buffer is bounded.
        self.inbox.drain(..mem::take(&mut self.used));
        while self.inbox.len() < wanted {
            self.stream.readable().await?;
            let there = self.inbox.len();
            self.inbox.resize(wanted.max(self.read_ahead), 0);
            let result = received(self.stream.try_read(&mut self.inbox[there..]));
            self.inbox.truncate(there + *result.as_ref().unwrap_or(&0));
            result?;
        }
        Ok(())
    }
}

impl Lane {
    /// The next number, and the header as bytes with its length and that number.
    fn number(&mut self, header: FrameHeader, length: usize) -> (u64, [u8; HEADER_BYTES]) {
        let sequence = self.sequence;
        let header = FrameHeader { length: length as u32, sequence, ..header };
        // Before the handshake is over nothing is numbered.
        self.sequence += u64::from(self.key.is_some());
        (sequence, header.encode())
    }
}

/// Whether KV in its slot is what was sent. KV that came encrypted is decrypted there.
fn is_genuine_kv(key: &FrameKey, frame: &Incoming, name: BlockName, part: &SlotPart<'_>) -> bool {
    let Incoming { header, bytes, tag, sequence } = frame;
    // What a frame vouches for came another way, in the clear.
    let Some(cipher) = key.cipher().filter(|_| header.kind == FrameKind::Data) else {
        return are_equal(tag, &key.tag_kv(*sequence, bytes, name, part));
    };
    let mut kv = vec![0; part.len()];
    part.read(&mut kv);
    let is_genuine = cipher.open(*sequence, bytes, Some(name), tag, &mut kv);
    if is_genuine {
        part.write_start(&kv);
    }
    is_genuine
}

/// Bytes that a call has moved, 0 where it would have to wait.
fn moved(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}

/// The result of [`moved`], where 0 bytes are the end of the connection.
fn received(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        result => moved(result),
    }
}

#[cfg(test)]
mod tests;
