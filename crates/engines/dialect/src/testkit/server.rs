//! A server of canned answers, on a port of its own.

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

/// What the server answers at one path.
#[derive(Clone)]
pub(crate) enum Reply {
    /// A status and a body, in pieces of this many bytes.
    Canned(u16, Bytes, usize),
    /// The head and these bytes, and then nothing until the client is gone.
    Hangs(Bytes),
    /// These bytes, and a broken connection once the test says so.
    Breaks(Bytes, Arc<Notify>),
    /// Not even a head.
    Silent,
}

impl Reply {
    pub(crate) fn recorded(status: u16, body: impl Into<Bytes>) -> Self {
        Self::Canned(status, body.into(), usize::MAX)
    }

    pub(crate) fn ok(body: impl Into<Bytes>) -> Self {
        Self::recorded(200, body)
    }
}

/// A request that came.
#[derive(Debug)]
pub(crate) struct Seen {
    /// `POST /generate?a=b`.
    pub(crate) line: String,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

/// Answers requests until it is dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) seen: mpsc::UnboundedReceiver<Seen>,
    /// One for each answer that nobody reads any more.
    pub(crate) gone: mpsc::UnboundedReceiver<()>,
    pub(crate) connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Shared {
    replies: HashMap<String, Reply>,
    seen: mpsc::UnboundedSender<Seen>,
    gone: mpsc::UnboundedSender<()>,
}

impl Server {
    /// A server that answers `METHOD /path` with a reply, and others as an engine does what it
    /// has no route for.
    pub(crate) async fn start(replies: impl IntoIterator<Item = (&str, Reply)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (seen_sender, seen) = mpsc::unbounded_channel();
        let (gone_sender, gone) = mpsc::unbounded_channel();
        let replies = replies.into_iter().map(|(line, reply)| (line.to_owned(), reply)).collect();
        let shared = Arc::new(Shared { replies, seen: seen_sender, gone: gone_sender });
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        let task = tokio::spawn(async move {
            let mut serving = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let shared = shared.clone();
                serving.spawn(async move {
                    let service = service_fn(move |request| answer(shared.clone(), request));
                    // A connection that breaks is what some tests are about.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { url, seen, gone, connections, task }
    }
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, std::io::Error>;

/// Tells that the answer is no longer wanted.
struct Watch(mpsc::UnboundedSender<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

async fn answer(
    shared: Arc<Shared>,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let line = format!("{} {}", head.method, head.uri);
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let reply = shared.replies.get(&line).cloned();
    let _ = shared.seen.send(Seen { line, headers: head.headers, body });
    let missing = Reply::recorded(404, r#"{"detail":"Not Found"}"#);
    let (status, pieces, end) = match reply.unwrap_or(missing) {
        Reply::Canned(status, body, piece) => {
            let pieces = body.chunks(piece.min(body.len()).max(1));
            (status, pieces.map(Bytes::copy_from_slice).collect(), End::Ends)
        }
        Reply::Hangs(body) => (200, vec![body], End::Hangs(Watch(shared.gone.clone()))),
        Reply::Breaks(body, now) => (200, vec![body], End::Breaks(now)),
        Reply::Silent => {
            let _watch = Watch(shared.gone.clone());
            std::future::pending().await
        }
    };
    let pieces = futures::stream::iter(pieces.into_iter().map(|piece| Ok(Frame::data(piece))));
    let tail = futures::stream::once(async move {
        match end {
            End::Ends => None,
            End::Breaks(now) => {
                now.notified().await;
                Some(Err(std::io::Error::other("broken on purpose")))
            }
            End::Hangs(watch) => {
                let _watch = watch;
                std::future::pending().await
            }
        }
    });
    let tail = futures::StreamExt::filter_map(tail, std::future::ready);
    let body = StreamBody::new(futures::StreamExt::chain(pieces, tail));
    let response = http::Response::builder().status(status).body(BodyExt::boxed_unsync(body));
    Ok(response.expect("a valid status"))
}

enum End {
    Ends,
    Hangs(Watch),
    Breaks(Arc<Notify>),
}
