//! A network between an agent and a holder of KV that fails as told.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The fate of the byte at a place of what a holder sends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// One bit of it is another.
    Flip,
    /// The byte never comes, and the connection ends: the holder died.
    Cut,
    /// The byte never comes, and the connection stays: the holder's machine died.
    Stall,
}

/// A way to a holder. Dropping it cuts all its connections.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    _task: JoinSet<()>,
}

impl Relay {
    /// A way on which every connection has this fate at byte `place`. Counts in `met` those that came
    /// so far.
    pub(super) async fn new(holder: &str, fate: Fate, place: usize, met: Arc<AtomicUsize>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (address, holder) = (listener.local_addr().expect("an address"), holder.to_owned());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((reader, _)) = listener.accept().await {
                let (holder, met) = (holder.clone(), met.clone());
                connections.spawn(async move {
                    // Whoever is gone is told nothing.
                    let _ = carry(reader, &holder, (fate, place), &met).await;
                });
            }
        });
        Self { address, _task: task }
    }
}

async fn carry(
    reader: TcpStream,
    holder: &str,
    (fate, place): (Fate, usize),
    met: &AtomicUsize,
) -> io::Result<()> {
    let (mut questions, mut to_reader) = reader.into_split();
    let (mut answers, mut to_holder) = TcpStream::connect(holder).await?.into_split();
    let back = async {
        let (mut sent, mut buffer) = (0, vec![0; 4096]);
        loop {
            let read = answers.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            let at = place.checked_sub(sent).filter(|at| *at < read);
            met.fetch_add(usize::from(at.is_some()), Ordering::Relaxed);
            match (fate, at) {
                (Fate::Cut, Some(at)) => return to_reader.write_all(&buffer[..at]).await,
                (Fate::Stall, Some(at)) => {
                    to_reader.write_all(&buffer[..at]).await?;
                    std::future::pending::<()>().await;
                }
                (Fate::Flip, Some(at)) => buffer[at] ^= 1,
                (_, None) => {}
            }
            to_reader.write_all(&buffer[..read]).await?;
            sent += read;
        }
    };
    tokio::select! {
        ended = back => ended,
        ended = copy(&mut questions, &mut to_holder) => ended.map(drop),
    }
}
