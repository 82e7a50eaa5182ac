//! Closing a connection whose client still sends.
//!
//! A system that closes a connection with unread bytes resets it, and a reset makes the client's
//! system forget an answer that the client has not read yet. So the answer is followed by an end of
//! its own, and what the client goes on sending is read for a while and dropped.

use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v1::server::HttpSession as Http1;
use pingora::protocols::http::v2::server::HttpSession as Stream;
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

/// Ends a connection, or a stream of HTTP/2, after an answer, so that a client that is still sending
/// can read it.
pub(crate) async fn linger(session: ServerSession) {
    // Whatever it comes to, it is over.
    let _ = match session {
        ServerSession::H1(session) => timeout(LINGER_TIME, drop_connection(session)).await.is_ok(),
        ServerSession::H2(stream) => timeout(LINGER_TIME, drop_body(stream)).await.is_ok(),
        _ => return,
    };
}

async fn drop_connection(session: Http1) {
    let mut stream = session.into_inner();
    if AsyncWriteExt::shutdown(&mut stream).await.is_err() {
        return;
    }
    let (mut dropped, mut buffer) = (0, vec![0; 16 << 10]);
    while dropped < LINGER_MAX_BYTES {
        match timeout(LINGER_PAUSE, stream.read(&mut buffer)).await {
            Ok(Ok(count)) if count > 0 => dropped += count,
            _ => return,
        }
    }
}

/// Takes the rest of a body. A stream that ends before is reset without an error, which clients
/// should not mind (RFC 9113, section 8.1), and many do.
async fn drop_body(mut stream: Stream) {
    let mut dropped = 0;
    while dropped < LINGER_MAX_BYTES {
        match timeout(LINGER_PAUSE, stream.read_body_bytes()).await {
            Ok(Ok(Some(part))) => dropped += part.len(),
            _ => return,
        }
    }
}
