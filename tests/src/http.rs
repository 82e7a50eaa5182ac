//! A small HTTP client: one connection per request, bodies as JSON or as server-sent events.

use crate::soon;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    headers: Vec<(String, String)>,
}

/// A whole response.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
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
        Self { address, headers: Vec::new() }
    }

    /// The same client, sending one more header with every request.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
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
        let mut events = self.open(method, path, body.into()).await;
        let body = soon("the body", events.response.body_mut().collect()).await;
        let body = body.expect("the body is whole").to_bytes();
        let status = events.response.status();
        Reply { status, headers: std::mem::take(events.response.headers_mut()), body }
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
        self.open(Method::POST, path, body.to_string().into()).await
    }

    async fn open(&self, method: Method, path: &str, body: Bytes) -> Events {
        let socket = TcpStream::connect(self.address).await.expect("the server accepts");
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(socket)).await.expect("a fresh connection works");
        let connection = tokio::spawn(async move {
            // How the connection ends shows in the response.
            let _ = connection.await;
        });
        let mut request = Request::builder().method(method).uri(path).header("host", "test");
        if !self.headers.iter().any(|(name, _)| name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).expect("a well-formed request");
        let response = soon("a response", sender.send_request(request)).await;
        Events { response: response.expect("a response"), buffer: Vec::new(), connection }
    }
}
