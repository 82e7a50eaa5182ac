//! A small HTTP client: one connection per request, bodies as JSON or as server-sent events.
//! HTTP/1.1, or HTTP/2 without TLS.

use crate::soon;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use std::convert::Infallible;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    headers: Vec<(String, String)>,
    http2: bool,
}

/// A request's body, of known length or not.
type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A whole response.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// What came after the body.
    pub trailers: HeaderMap,
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// When it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&self.body)))
    }
}

/// A request without a response: the connection was refused or broke.
#[derive(Debug)]
pub struct Broken(pub String);

/// A response that is still coming, as server-sent events. Dropping it hangs up.
#[derive(Debug)]
pub struct Events {
    /// Its status and headers.
    pub response: Response<Incoming>,
    buffer: Vec<u8>,
    connection: tokio::task::JoinHandle<()>,
}

impl Drop for Events {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Events {
    /// The data of the next event; `None` at the end of the stream.
    ///
    /// # Panics
    ///
    /// When nothing comes within the deadline.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let text = String::from_utf8(event).expect("events are UTF-8");
                return Some(text.trim_end().trim_start_matches("data: ").to_owned());
            }
            let frame = soon("the next event", self.response.body_mut().frame()).await?;
            let data = frame.ok()?.into_data().ok()?;
            self.buffer.extend_from_slice(&data);
        }
    }

    /// Reads on until the unread part holds `text`, and returns all of that part, which stays
    /// unread.
    ///
    /// # Panics
    ///
    /// When the response ends without it, or nothing comes within the deadline.
    pub async fn until(&mut self, text: &str) -> String {
        loop {
            let unread = String::from_utf8_lossy(&self.buffer).into_owned();
            if unread.contains(text) {
                return unread;
            }
            let frame = soon(text, self.response.body_mut().frame()).await;
            let frame = frame.unwrap_or_else(|| panic!("ended without {text:?}: {unread:?}"));
            let data = frame.expect("a whole frame").into_data().unwrap_or_default();
            self.buffer.extend_from_slice(&data);
        }
    }

    /// The rest of the response, as it came; an error where it was cut off.
    ///
    /// # Errors
    ///
    /// What broke it.
    ///
    /// # Panics
    ///
    /// When it does not end within the deadline.
    pub async fn end(&mut self) -> Result<Bytes, hyper::Error> {
        let rest = soon("the end", self.response.body_mut().collect()).await?.to_bytes();
        self.buffer.extend_from_slice(&rest);
        Ok(std::mem::take(&mut self.buffer).into())
    }

    /// All further events, parsed, up to and without `[DONE]`.
    ///
    /// # Panics
    ///
    /// When the stream ends without `[DONE]`.
    pub async fn rest(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Some(data) if data == "[DONE]" => return events,
                Some(data) => events.push(serde_json::from_str(&data).expect("events are JSON")),
                None => panic!("the stream ended without [DONE] after {events:?}"),
            }
        }
    }
}

impl Client {
    /// A client of the server at `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, headers: Vec::new(), http2: false }
    }

    /// The same client, sending one more header with every request.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same client, speaking HTTP/2 without TLS.
    pub fn over_http2(mut self) -> Self {
        self.http2 = true;
        self
    }

    /// Where it connects to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request and reads the whole response.
    ///
    /// # Panics
    ///
    /// When there is none within the deadline.
    pub async fn send(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Reply {
        whole(self.begin(method, path, body).await).await
    }

    /// POST of a body in pieces, whose length is not said beforehand.
    ///
    /// # Panics
    ///
    /// As [`Client::send`].
    pub async fn post_pieces(&self, path: &str, pieces: Vec<Bytes>) -> Reply {
        let frames = pieces.into_iter().map(|piece| Ok(Frame::data(piece)));
        let body = StreamBody::new(futures::stream::iter(frames)).boxed_unsync();
        whole(self.open(Method::POST, path, body).await).await
    }

    /// POST of a JSON body that these trailers follow.
    ///
    /// # Panics
    ///
    /// As [`Client::send`].
    pub async fn post_with_trailers(&self, path: &str, body: &Value, trailers: HeaderMap) -> Reply {
        let frames = [Frame::data(body.to_string().into()), Frame::trailers(trailers)];
        let body = StreamBody::new(futures::stream::iter(frames.map(Ok))).boxed_unsync();
        whole(self.open(Method::POST, path, body).await).await
    }

    /// GET.
    ///
    /// # Panics
    ///
    /// As [`Client::send`].
    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// POST of a JSON body.
    ///
    /// # Panics
    ///
    /// As [`Client::send`].
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(Method::POST, path, body.to_string()).await
    }

    /// POST of a JSON body whose response is a stream.
    ///
    /// # Panics
    ///
    /// When no response begins within the deadline.
    pub async fn stream(&self, path: &str, body: &Value) -> Events {
        self.begin(Method::POST, path, body.to_string()).await
    }

    /// Sends a request; the response is still to be read.
    ///
    /// # Panics
    ///
    /// When no response begins within the deadline.
    pub async fn begin(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Events {
        self.open(method, path, Full::new(body.into()).boxed_unsync()).await
    }

    /// GET of a server that may be gone.
    ///
    /// # Errors
    ///
    /// [`Broken`] where no whole response comes.
    ///
    /// # Panics
    ///
    /// A response neither comes nor breaks within the deadline.
    pub async fn try_get(&self, path: &str) -> Result<Reply, Broken> {
        let body = Full::new(Bytes::new()).boxed_unsync();
        let mut events = self.try_open(Method::GET, path, body).await?;
        let status = events.response.status();
        let body = events.end().await.map_err(|error| Broken(error.to_string()))?;
        let headers = std::mem::take(events.response.headers_mut());
        Ok(Reply { status, headers, body, trailers: HeaderMap::new() })
    }

    /// POST of a JSON body whose response is a stream, to a server that may be gone.
    ///
    /// # Errors
    ///
    /// [`Broken`] where no response begins.
    ///
    /// # Panics
    ///
    /// A response neither begins nor breaks within the deadline.
    pub async fn try_stream(&self, path: &str, body: &Value) -> Result<Events, Broken> {
        self.try_open(Method::POST, path, Full::new(body.to_string().into()).boxed_unsync()).await
    }

    async fn open(&self, method: Method, path: &str, body: Body) -> Events {
        self.try_open(method, path, body).await.expect("a response")
    }

    async fn try_open(&self, method: Method, path: &str, body: Body) -> Result<Events, Broken> {
        let broken = |error: &dyn std::error::Error| Broken(error.to_string());
        let socket = TcpStream::connect(self.address).await.map_err(|error| broken(&error))?;
        let socket = TokioIo::new(socket);
        let request = self.request(method, path, body);
        // How a connection ends shows in the response.
        let (response, connection) = if self.http2 {
            let connected = http2::handshake(TokioExecutor::new(), socket).await;
            let (mut sender, connection) = connected.map_err(|error| broken(&error))?;
            let connection = tokio::spawn(async move { drop(connection.await) });
            (soon("a response", sender.send_request(request)).await, connection)
        } else {
            let connected = http1::handshake(socket).await;
            let (mut sender, connection) = connected.map_err(|error| broken(&error))?;
            let connection = tokio::spawn(async move { drop(connection.await) });
            (soon("a response", sender.send_request(request)).await, connection)
        };
        let response = response.map_err(|error| broken(&error))?;
        Ok(Events { response, buffer: Vec::new(), connection })
    }

    fn request(&self, method: Method, path: &str, body: Body) -> Request<Body> {
        let mut request = Request::builder().method(method);
        request = match self.http2 {
            true => request.uri(format!("http://test{path}")),
            false => request.uri(path).header("host", "test"),
        };
        if !self.headers.iter().any(|(name, _)| name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.body(body).expect("a well-formed request")
    }
}

/// Reads a response to its end.
async fn whole(mut events: Events) -> Reply {
    let body = soon("the body", events.response.body_mut().collect()).await;
    let body = body.expect("the body is whole");
    let trailers = body.trailers().cloned().unwrap_or_default();
    let status = events.response.status();
    let headers = std::mem::take(events.response.headers_mut());
    Reply { status, headers, body: body.to_bytes(), trailers }
}
