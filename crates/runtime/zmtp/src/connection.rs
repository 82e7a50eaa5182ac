//! One connection: its handshake, and messages in both directions.

use crate::Error;
use crate::endpoint::Halves;
use crate::frame::{FrameDecoder, FrameLimits, Traffic, encode, encode_command};
use crate::handshake::{
    GREETING_BYTES, SocketKind, VERSION_BYTES, check_greeting, check_ready, check_version,
    encode_ready, greeting,
};
use crate::seats::SeatUsage;
use bytes::{Buf, Bytes, BytesMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};

/// Longest wait for a peer to say who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for which a peer may take nothing of what waits for it.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Limits of a peer's messages before it is known.
const HANDSHAKE_LIMITS: FrameLimits = FrameLimits { frames: 1, bytes: 4096 };
/// Room for one read: at first, and of a peer that fills it.
const READ_BYTES: (usize, usize) = (4 << 10, 64 << 10);
/// The longest ping; its answer repeats what it brings.
const PING_BYTES_MAX: usize = 64;

/// A connection whose peer is known.
pub(crate) struct PeerConnection {
    reader: Box<dyn AsyncRead + Send + Sync + Unpin>,
    writer: Box<dyn AsyncWrite + Send + Sync + Unpin>,
    input: BytesMut,
    output: BytesMut,
    decoder: FrameDecoder,
    room: usize,
    minor_version: u8,
    /// Time at which the peer last took bytes, while more wait for it.
    owed_since: Option<Instant>,
    usage: Arc<SeatUsage>,
}

impl PeerConnection {
    /// Shakes hands; afterwards the peer may send as much as `limits` say.
    ///
    /// # Errors
    ///
    /// [`Error`] of any kind but [`Error::Endpoint`].
    pub(crate) async fn open(
        halves: Halves,
        kind: SocketKind,
        limits: FrameLimits,
    ) -> Result<Self, Error> {
        let Halves { reader, writer, .. } = halves;
        let mut connection = Self {
            reader,
            writer,
            input: BytesMut::new(),
            output: BytesMut::new(),
            decoder: FrameDecoder::new(HANDSHAKE_LIMITS),
            room: READ_BYTES.0,
            minor_version: 0,
            owed_since: None,
            usage: Arc::default(),
        };
        match timeout(HANDSHAKE_TIMEOUT, connection.shake_hands(kind)).await {
            Ok(done) => done?,
            Err(_) => {
                let silent = format!("does not say who it is within {HANDSHAKE_TIMEOUT:?}");
                return Err(Error::Unfit(silent));
            }
        }
        // Only now: a stranger gets no more memory than a handshake needs.
        connection.decoder = FrameDecoder::new(limits);
        Ok(connection)
    }

    /// Tells what the connection is good for there from now on.
    pub(crate) fn counted(self, usage: Arc<SeatUsage>) -> Self {
        Self { usage, ..self }
    }

    async fn shake_hands(&mut self, kind: SocketKind) -> Result<(), Error> {
        self.writer.write_all(&greeting()).await?;
        let mut theirs = [0; GREETING_BYTES];
        let (begin, rest) = theirs.split_at_mut(VERSION_BYTES);
        self.reader.read_exact(begin).await?;
        check_version(begin.first_chunk().expect("so long"))?;
        self.reader.read_exact(rest).await?;
        self.minor_version = check_greeting(&theirs)?;
        encode_ready(kind, &mut self.output);
        match self.next().await? {
            Traffic::Command(name, data) => check_ready(kind, &name, data),
            Traffic::Message(_) => Err(Error::Unfit("does not say who it is".into())),
        }
    }

    /// Whether the peer knows commands for subscriptions.
    pub(crate) fn knows_subscriptions(&self) -> bool {
        self.minor_version > 0
    }

    /// Next message or command. Meanwhile, pending output is written, and pings are answered.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Io`] and [`Error::Malformed`]: the connection is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Traffic, Error> {
        loop {
            match self.come()? {
                Some(incoming) => return Ok(incoming),
                None => self.exchange().await?,
            }
        }
    }

    /// As [`PeerConnection::next`], but `None` as soon as there is nothing left to write.
    pub(crate) async fn next_or_written(&mut self) -> Result<Option<Traffic>, Error> {
        loop {
            match self.come()? {
                Some(incoming) => return Ok(Some(incoming)),
                None if self.output.is_empty() => return Ok(None),
                None => self.exchange().await?,
            }
        }
    }

    /// Next message or command that has arrived already.
    fn come(&mut self) -> Result<Option<Traffic>, Error> {
        loop {
            match self.decoder.decode(&mut self.input)? {
                Some(Traffic::Command(name, data)) if name == "PING" => self.pong(&data),
                Some(Traffic::Command(name, _)) if name == "PONG" => {}
                come => return Ok(come),
            }
        }
    }

    /// Reads something or writes something.
    ///
    /// # Errors
    ///
    /// Also when the peer has taken nothing for [`STALL_TIMEOUT`]: what waits for it is memory.
    async fn exchange(&mut self) -> Result<(), Error> {
        self.input.reserve(self.room);
        let owed_since = *self.owed_since.get_or_insert_with(Instant::now);
        if self.output.is_empty() {
            self.owed_since = None;
        } else {
            self.usage.owes(owed_since);
        }
        // Reading goes on while writing stalls, so that two peers cannot block each other.
        tokio::select! {
            read = self.reader.read_buf(&mut self.input) => match read? {
                0 => return Err(Error::Closed),
                read => if read >= self.room {
                    self.room = (self.room * 2).min(READ_BYTES.1);
                },
            },
            written = self.writer.write_buf(&mut self.output), if !self.output.is_empty() => {
                written?;
                self.owed_since = None;
                if self.output.is_empty() {
                    self.usage.served();
                }
            }
            () = sleep_until(owed_since + STALL_TIMEOUT), if self.owed_since.is_some() => {
                return Err(Error::Unfit(format!("takes nothing for {STALL_TIMEOUT:?}")));
            }
        }
        Ok(())
    }

    fn pong(&mut self, ping: &[u8]) {
        // Before its content is a time to live, which tells nothing that a closed socket does not.
        // Who pings without reading the answers gets no more of them.
        if ping.len() <= PING_BYTES_MAX && self.output.len() < READ_BYTES.1 {
            encode_command("PONG", ping.get(2..).unwrap_or_default(), &mut self.output);
        }
    }

    /// Appends a message to what there is to write.
    pub(crate) fn put(&mut self, frames: &[Bytes]) {
        encode(frames, &mut self.output);
    }

    /// Appends a command to what there is to write.
    pub(crate) fn put_command(&mut self, name: &str, data: &[u8]) {
        encode_command(name, data, &mut self.output);
    }

    /// Buffer for encoded messages; empty once all of it is written.
    pub(crate) fn output(&mut self) -> &mut BytesMut {
        &mut self.output
    }

    /// Writes what there is to write.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: the connection is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the rest is written with what comes next.
    pub(crate) async fn flush(&mut self) -> Result<(), Error> {
        while self.output.has_remaining() {
            self.writer.write_buf(&mut self.output).await?;
        }
        Ok(())
    }
}
