//! A connection that speaks HTTP/2: each of its streams is answered like a request of HTTP/1.1.
//!
//! The connection is driven here, its streams run as tasks of their own. It ends when its client
//! wants so, when nothing has run for as long as a connection may be idle, when the proxy ends, or
//! when its client resets most of what it asks.

use crate::door::Visitor;
use h2::Reason;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{H2Accept, H2Options, HttpSession, handshake};
use pingora::protocols::{Digest, Stream};
use stator_runtime::Shutdown;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// Bytes of one stream's body that a client may send before they are read.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Window of all streams of a connection, in bytes.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// Bytes of one answer that wait for their connection; the rest waits where it is made.
const ANSWER_BUFFER_BYTES: usize = 64 << 10;
/// Bytes that RFC 9113, section 6.5.2, counts for each header beyond its name and value, for as many
/// as HTTP/1.1 may have. Heads within that are refused in words, see `Exchange::check_headers`.
const HEADERS_OVERHEAD_BYTES: usize = 256 * 32;
/// Streams with a head that is none, after which a connection is closed.
const MALFORMED_MAX: u32 = 32;
/// Time for which the last words of a connection wait for their client.
const FAREWELL: Duration = Duration::from_millis(500);

/// Limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Streams that are open at once.
    pub streams: u32,
    /// Most bytes of a head, as the door counts them.
    pub header_bytes: usize,
    /// Longest time without a stream.
    pub idle: Duration,
    /// The same once the proxy refuses requests.
    pub last_request: Duration,
}

/// The end of the proxy, as its connections hear of it.
#[derive(Clone)]
pub(crate) struct EndOfService {
    /// Set when clients should use another proxy.
    pub leaving: Shutdown,
    /// True once requests are refused.
    pub closed: watch::Receiver<bool>,
}

impl ConnectionLimits {
    fn options(&self, probes_only: bool) -> H2Options {
        let header_bytes = self.header_bytes.saturating_mul(2) + HEADERS_OVERHEAD_BYTES;
        let mut options = H2Options::new();
        options
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buffer_size(ANSWER_BUFFER_BYTES)
            .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX))
            // One at a time in the reserve, so that its connections end.
            .max_concurrent_streams(if probes_only { 1 } else { self.streams });
        options
    }
}

/// Serves a connection whose client has sent the preface, until it ends. `answer` answers one
/// request.
pub(crate) async fn serve<F: Future<Output = ()> + Send + 'static>(
    stream: Stream,
    limits: ConnectionLimits,
    end: EndOfService,
    client: &Visitor,
    answer: impl Fn(ServerSession) -> F,
) {
    let EndOfService { leaving, mut closed } = end;
    let probes_only = client.probes_only.is_some();
    let Ok(mut connection) = handshake(stream, Some(limits.options(probes_only))).await else {
        return;
    };
    let (digest, mut streams) = (Arc::new(Digest::default()), JoinSet::new());
    let (mut opened, mut malformed) = (0_u32, 0);
    let (mut told, mut idle, mut quiet_since) = (false, limits.idle, Instant::now());
    // Without a reason its client has ended it.
    let reason = loop {
        tokio::select! {
            accepted = HttpSession::from_h2_conn(&mut connection, digest.clone()) => match accepted {
                Ok(Some(H2Accept::Session(session))) => {
                    opened = opened.saturating_add(1);
                    streams.spawn(answer(ServerSession::new_http2(session)));
                }
                Ok(Some(H2Accept::Rejected)) => malformed += 1,
                Ok(None) | Err(_) => break None,
            },
            Some(_) = streams.join_next() => quiet_since = Instant::now(),
            () = leaving.wait(), if !told => {
                // Its client hears of it before a request of its would be refused.
                connection.graceful_shutdown();
                told = true;
            }
            _ = closed.wait_for(|closed| *closed), if idle != limits.last_request => {
                idle = limits.last_request;
                quiet_since = Instant::now();
            }
            () = sleep_until(quiet_since + idle), if streams.is_empty() => {
                break Some(Reason::NO_ERROR);
            }
        }
        if malformed >= MALFORMED_MAX || client.resets_too_much(opened) {
            break Some(Reason::ENHANCE_YOUR_CALM);
        }
        if probes_only && opened > 0 && streams.is_empty() {
            break Some(Reason::NO_ERROR);
        }
    };
    if let Some(reason) = reason {
        connection.abrupt_shutdown(reason);
        // A client that does not read misses them.
        let _ = timeout(FAREWELL, poll_fn(|context| connection.poll_closed(context))).await;
    }
    // Streams that still run find that their client has gone.
    drop(connection);
    while streams.join_next().await.is_some() {}
}
