//! Who asks: an HTTP client of a gateway, or a data plane of a picker.

use crate::wire::{self, Answers, Progress};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Windows of HTTP/2 in bytes, of a stream and of a connection: those of Envoy towards a picker.
const WINDOWS_BYTES: (u32, u32) = (1 << 20, 16 << 20);
const PROCESS: &str = "http://picker/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Why a request failed; only printed.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a worker asks with.
pub(crate) enum Client {
    /// A connection of its own to a gateway.
    Http { address: SocketAddr, sender: Option<http1::SendRequest<Full<Bytes>>> },
    /// A connection to a picker, which others may use too.
    ExtProc { sender: http2::SendRequest<Message>, chunk_bytes: usize },
}

impl Client {
    /// A client of the gateway at `address`, which connects when it is used.
    pub(crate) fn http(address: SocketAddr) -> Self {
        Self::Http { address, sender: None }
    }

    /// Asks once; returns when the answer was there. Of an answer by HTTP that is its end, of a
    /// picker's the point from which a data plane would send the request on.
    pub(crate) async fn ask(&mut self, body: Bytes) -> Result<Instant, Failure> {
        match self {
            Self::Http { address, sender } => {
                let mut open = match sender.take() {
                    Some(open) => open,
                    None => connect(*address).await?,
                };
                let asked = post(&mut open, body).await;
                *sender = asked.is_ok().then_some(open);
                asked
            }
            Self::ExtProc { sender, chunk_bytes } => {
                pick(sender, wire::request(&body, *chunk_bytes)).await
            }
        }
    }
}

async fn open(address: SocketAddr) -> Result<TokioIo<TcpStream>, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(stream))
}

async fn connect(address: SocketAddr) -> Result<http1::SendRequest<Full<Bytes>>, Failure> {
    let (sender, connection) = http1::handshake(open(address).await?).await?;
    // Its end shows in the request that it cuts off.
    tokio::spawn(connection);
    Ok(sender)
}

/// A connection to the picker at `address`.
pub(crate) async fn connect_picker(
    address: SocketAddr,
) -> Result<http2::SendRequest<Message>, Failure> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(WINDOWS_BYTES.0);
    builder.initial_connection_window_size(WINDOWS_BYTES.1);
    let (sender, connection) = builder.handshake(open(address).await?).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn post(
    sender: &mut http1::SendRequest<Full<Bytes>>,
    body: Bytes,
) -> Result<Instant, Failure> {
    sender.ready().await?;
    let request = Request::post("/v1/chat/completions")
        .header("host", "gateway")
        .header("content-type", "application/json")
        .body(Full::new(body))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    drain(response.into_body()).await?;
    match status {
        StatusCode::OK => Ok(Instant::now()),
        status => Err(format!("the gateway answered {status}").into()),
    }
}

async fn drain(mut body: Incoming) -> Result<(), hyper::Error> {
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(())
}

async fn pick(
    sender: &mut http2::SendRequest<Message>,
    message: Bytes,
) -> Result<Instant, Failure> {
    sender.ready().await?;
    let (over, until) = oneshot::channel();
    let request = Request::post(PROCESS)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Message { bytes: Some(message), until })?;
    let response = sender.send_request(request).await?;
    let mut body = response.into_body();
    let mut answers = Answers::default();
    while let Some(frame) = body.frame().await {
        let progress = match frame?.into_data() {
            Ok(data) => answers.push(&data),
            Err(trailers) => return Err(format!("ended before a pick: {trailers:?}").into()),
        };
        match progress {
            Progress::Going => {}
            Progress::Refused => return Err("the picker refused the request".into()),
            Progress::Picked => {
                let picked = Instant::now();
                // A picker that goes on to watch the answer ends its stream when we end ours.
                drop(over);
                drain(body).await?;
                return Ok(picked);
            }
        }
    }
    Err("ended before a pick, without a status".into())
}

/// The messages of a request, all at once, and then an open end until `until` is dropped: a data
/// plane that ended its stream before the answer would have given up on it.
pub(crate) struct Message {
    bytes: Option<Bytes>,
    until: oneshot::Receiver<()>,
}

impl Body for Message {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(bytes) = self.bytes.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        // Nothing is ever sent: what comes is the other half's end.
        let _ = ready!(Pin::new(&mut self.until).poll(cx));
        Poll::Ready(None)
    }
}
