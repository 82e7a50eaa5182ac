//! The engine by way of the relay: the same HTTP, of all streams on one socket.

use crate::Failure;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex as AsyncMutex, mpsc};

/// Pieces of an answer that may wait to be read.
const PIECES_MAX: usize = 4096;

/// The socket to the relay. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Relay {
    writer: Arc<AsyncMutex<OwnedWriteHalf>>,
    streams: Streams,
}

type Streams = Arc<Mutex<HashMap<u32, mpsc::Sender<Vec<u8>>>>>;

impl Relay {
    pub(crate) async fn connect(path: &Path) -> Result<Self, Failure> {
        let (reader, writer) = UnixStream::connect(path).await?.into_split();
        let streams = Streams::default();
        // Its end shows in the requests that it cuts off.
        tokio::spawn(read(reader, streams.clone()));
        Ok(Self { writer: Arc::new(AsyncMutex::new(writer)), streams })
    }

    /// The bytes that come for a stream from now on.
    pub(crate) fn open(&self, stream: u32) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::channel(PIECES_MAX);
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).insert(stream, sender);
        receiver
    }

    pub(crate) async fn send(&self, stream: u32, bytes: &[u8]) -> Result<(), Failure> {
        let mut frame = Vec::with_capacity(bytes.len() + 8);
        frame.extend_from_slice(&stream.to_le_bytes());
        frame.extend_from_slice(&u32::try_from(bytes.len())?.to_le_bytes());
        frame.extend_from_slice(bytes);
        Ok(self.writer.lock().await.write_all(&frame).await?)
    }
}

async fn read(reader: OwnedReadHalf, streams: Streams) -> Result<(), Failure> {
    let mut reader = BufReader::with_capacity(1 << 20, reader);
    loop {
        let stream = reader.read_u32_le().await?;
        let mut bytes = vec![0; reader.read_u32_le().await? as usize];
        reader.read_exact(&mut bytes).await?;
        let streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = streams.get(&stream) {
            sender.try_send(bytes)?;
        }
    }
}
