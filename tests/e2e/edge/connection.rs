//! A connection of HTTP/2 that stays open between requests.

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use stator_tests::soon;
use std::convert::Infallible;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A connection of HTTP/2.
pub(super) struct Connection {
    sender: SendRequest<Body>,
    driver: JoinHandle<hyper::Result<()>>,
}

impl Connection {
    /// A connection without TLS, whose client knows beforehand what the server speaks.
    pub(super) async fn open(address: SocketAddr) -> Self {
        Self::with(address, &Builder::new(TokioExecutor::new())).await
    }

    pub(super) async fn with(address: SocketAddr, builder: &Builder<TokioExecutor>) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap(), builder).await
    }

    pub(super) async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        builder: &Builder<TokioExecutor>,
    ) -> Self {
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        Self { sender, driver: tokio::spawn(connection) }
    }

    /// Sends a request; dropping the future, or the response, resets its stream.
    pub(super) fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Body,
    ) -> impl Future<Output = hyper::Result<Response<Incoming>>> + use<> {
        let request = Request::builder().method(method).uri(format!("http://test{path}"));
        let request = request.header("content-type", "application/json").body(body).unwrap();
        self.sender.send_request(request)
    }

    /// The answer to a request without a body.
    pub(super) async fn get(&mut self, path: &str) -> Response<Incoming> {
        let empty = Full::new(Bytes::new()).boxed_unsync();
        soon("an answer", self.send(Method::GET, path, empty)).await.unwrap()
    }

    /// The answer to a request with a body.
    pub(super) async fn post(&mut self, path: &str, body: &Value) -> Response<Incoming> {
        soon("an answer", self.send(Method::POST, path, whole(body))).await.unwrap()
    }

    /// Waits until the connection has ended, however it did.
    pub(super) async fn ended(self) -> hyper::Result<()> {
        let Self { sender, driver } = self;
        let ended = soon("the connection's end", driver).await.unwrap();
        drop(sender);
        ended
    }
}

/// A body of JSON.
pub(super) fn whole(body: &Value) -> Body {
    Full::new(body.to_string().into()).boxed_unsync()
}

/// A body that begins with these bytes and goes on as its sender says.
pub(super) fn open_body(begin: &'static [u8]) -> (tokio::sync::mpsc::Sender<Bytes>, Body) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let frames = futures::stream::unfold((Some(begin), receiver), async |(begin, mut more)| {
        let next = match begin {
            Some(begin) => Bytes::from_static(begin),
            None => more.recv().await?,
        };
        Some((Ok(Frame::data(next)), (None, more)))
    });
    (sender, StreamBody::new(frames).boxed_unsync())
}

/// The whole body of a response.
pub(super) async fn body(response: Response<Incoming>) -> Bytes {
    soon("the body", response.into_body().collect()).await.unwrap().to_bytes()
}
