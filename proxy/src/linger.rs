//! Closing a connection whose client still sends.
//!
//! A system that closes a connection with unread bytes resets it, and a reset makes the client's
//! system forget an answer that the client has not read yet. So the answer is followed by an end of
//! its own, and what the client goes on sending is read for a while and dropped.

use pingora::protocols::http::ServerSession;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Most bytes that are read and dropped: twice the largest body by default. Many clients look at an
/// answer only when they have sent everything.
const LINGER_MAX_BYTES: usize = 64 << 20;

/// Longest time for that.
const LINGER_TIME: Duration = Duration::from_secs(10);

/// Longest wait for more of it, or for the client's end.
const LINGER_PAUSE: Duration = Duration::from_secs(2);

/// Ends a connection after an answer, so that a client that is still sending can read it.
pub(crate) async fn linger(session: ServerSession) {
    let ServerSession::H1(session) = session else { return };
    let mut stream = session.into_inner();
    let dropping = async {
        AsyncWriteExt::shutdown(&mut stream).await?;
        let (mut dropped, mut buffer) = (0, vec![0; 16 << 10]);
        while dropped < LINGER_MAX_BYTES {
            match timeout(LINGER_PAUSE, stream.read(&mut buffer)).await {
                Ok(Ok(count)) if count > 0 => dropped += count,
                _ => break,
            }
        }
        std::io::Result::Ok(())
    };
    // Whatever it comes to, the connection is over.
    let _ = timeout(LINGER_TIME, dropping).await;
}
