//! Engines and clients on loopback sockets, for tests. They write and read bytes themselves, so that
//! a test sees what is on the wire.

use serde_json::Value;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longest wait for anything that should happen; only a failing test waits that long.
const DEADLINE: Duration = Duration::from_secs(20);

/// A request.
pub(crate) const BODY: &str = r#"{"model":"m", "prompt":"hello","max_tokens":9 ,"stream":false}"#;
/// What an engine answers.
pub(crate) const DONE: &str = r#"{"choices":[{"text":"world"}]}"#;

/// Waits for what should happen soon.
pub(crate) async fn soon<F: IntoFuture>(what: &str, future: F) -> F::Output {
    let waited = tokio::time::timeout(DEADLINE, future).await;
    waited.unwrap_or_else(|_| panic!("{what}: nothing within {DEADLINE:?}"))
}

/// An engine whose answers a test writes.
pub(crate) struct Engine {
    listener: TcpListener,
    /// The same socket, to be asked without waiting.
    now: std::net::TcpListener,
}

/// One side of a connection, and the message that was read from it last.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
    unread: Vec<u8>,
    /// The first line and the headers, names in lower case.
    pub head: String,
    /// The body, without its framing.
    pub body: String,
}

impl Engine {
    pub(crate) async fn start() -> Self {
        let now = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        now.set_nonblocking(true).expect("sockets can be so");
        let listener = now.try_clone().and_then(TcpListener::from_std);
        Self { listener: listener.expect("a second handle"), now }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("a listener has an address")
    }

    /// The next connection, and the request that comes on it.
    pub(crate) async fn asked(&self) -> Peer {
        let mut peer = self.connected().await;
        assert!(peer.read().await, "a request comes");
        peer
    }

    /// The next connection.
    pub(crate) async fn connected(&self) -> Peer {
        let accepted = soon("a connection to the engine", self.listener.accept()).await;
        Peer::of(accepted.expect("it is accepted").0)
    }

    /// Whether nobody is waiting to be accepted.
    pub(crate) fn is_idle(&self) -> bool {
        self.now.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

impl Peer {
    fn of(stream: TcpStream) -> Self {
        Self { stream, unread: Vec::new(), head: String::new(), body: String::new() }
    }

    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).await.expect("it listens"))
    }

    /// Writes these bytes.
    pub(crate) async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.expect("the other side reads");
    }

    /// Writes these bytes, unless the other side has closed the connection.
    pub(crate) async fn try_write(&mut self, text: &str) -> bool {
        soon("the other side reads", self.stream.write_all(text.as_bytes())).await.is_ok()
    }

    /// Writes an answer of a known length.
    pub(crate) async fn answer(&mut self, status: u16, body: &str) {
        let length = body.len();
        let head = "content-type: application/json\r\ncontent-length:";
        self.write(&format!("HTTP/1.1 {status} X\r\n{head} {length}\r\n\r\n{body}")).await;
    }

    /// Writes a chunk of a body.
    pub(crate) async fn chunk(&mut self, text: &str) {
        self.write(&format!("{:x}\r\n{text}\r\n", text.len())).await;
    }

    /// Reads some more; false at the end of the connection.
    async fn more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let count = soon("bytes", self.stream.read(&mut buffer)).await.unwrap_or(0);
        self.unread.extend_from_slice(&buffer[..count]);
        count > 0
    }

    /// Reads up to and with `mark`; `None` where the connection ends before it.
    pub(crate) async fn until(&mut self, mark: &str) -> Option<String> {
        loop {
            let found = memchr::memmem::find(&self.unread, mark.as_bytes());
            if let Some(at) = found {
                let text = self.unread.drain(..at + mark.len()).collect();
                return Some(String::from_utf8(text).expect("the tests' messages are text"));
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// Reads the head of a message; false where none comes.
    pub(crate) async fn read_head(&mut self) -> bool {
        let Some(head) = self.until("\r\n\r\n").await else { return false };
        let lines = head.split_inclusive("\r\n").enumerate().map(|(number, line)| {
            match line.split_once(':').filter(|_| number > 0) {
                Some((name, value)) => format!("{}:{value}", name.to_ascii_lowercase()),
                None => line.to_owned(),
            }
        });
        self.head = lines.collect();
        true
    }

    /// Reads a whole message; false where none comes, or none that is whole.
    pub(crate) async fn read(&mut self) -> bool {
        self.body.clear();
        if !self.read_head().await {
            return false;
        }
        if self.header("transfer-encoding") == Some("chunked") {
            loop {
                let Some(size) = self.until("\r\n").await else { return false };
                let size = usize::from_str_radix(size.trim(), 16).expect("a chunk's size");
                let Some(text) = self.exactly(size + 2).await else { return false };
                self.body.push_str(text.trim_end_matches("\r\n"));
                if size == 0 {
                    return true;
                }
            }
        }
        let length = self.header("content-length").map_or(0, |n| n.parse().expect("a length"));
        let Some(body) = self.exactly(length).await else { return false };
        self.body = body;
        true
    }

    async fn exactly(&mut self, count: usize) -> Option<String> {
        while self.unread.len() < count {
            if !self.more().await {
                return None;
            }
        }
        let text = self.unread.drain(..count).collect();
        Some(String::from_utf8(text).expect("the tests' messages are text"))
    }

    /// The value of a header of the last message.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let value = |line: &'_ str| -> Option<usize> {
            let (found, _) = line.split_once(": ")?;
            (found == name).then_some(found.len() + 2)
        };
        self.head.lines().find_map(|line| Some(&line[value(line)?..]))
    }

    /// The status of the last answer.
    pub(crate) fn status(&self) -> u16 {
        let status = self.head.split(' ').nth(1).expect("a status line");
        status.parse().expect("a status")
    }

    /// Whether the other side still waits for what comes of its message.
    pub(crate) fn is_open(&self) -> bool {
        let read = self.stream.try_read(&mut [0]);
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits until the other side has closed the connection.
    pub(crate) async fn closed(&mut self) {
        while self.more().await {}
    }
}

impl Peer {
    /// Sends a request on this connection.
    pub(crate) async fn post(&mut self, path: &str, headers: &str, body: &str) {
        let length = body.len();
        let fixed = "Host: test\r\nContent-Type: application/json\r\n";
        self.write(&format!(
            "POST {path} HTTP/1.1\r\n{fixed}{headers}Content-Length: {length}\r\n\r\n{body}"
        ))
        .await;
    }
}

/// What a JSON text says.
pub(crate) fn tree(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Checks that the client got the engine's answer whole.
pub(crate) async fn check_done(client: &mut Peer) {
    assert!(client.read().await, "an answer comes");
    assert_eq!((client.status(), client.body.as_str()), (200, DONE), "{}", client.head);
}
