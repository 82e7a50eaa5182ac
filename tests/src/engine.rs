//! Simulated engines: they answer as the OpenAI API and gRPC do, keep what they were sent, and
//! show a page of metrics as vLLM does. A test may write an answer itself, piece by piece.

use crate::engine_answers::{Body, completion, echo, page};
use crate::soon;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

/// Header of every answer: the address of the engine that gave it.
pub const SERVED_BY: &str = "x-test-engine";
/// Request header that asks for an answer in the hands of the test, see [`Engine::held`].
pub const HOLD: &str = "x-test-hold";
/// Value of [`HOLD`] by which the answer's head comes with its first piece and not before.
pub const HOLD_HEAD: &str = "head";

/// Most answers that wait for their test, and most pieces of one that wait for the client.
const WAITING_MAX: usize = 1024;
/// Attempts to find ports that are free on several addresses.
const PORT_ATTEMPTS: usize = 64;

/// A running engine, for HTTP/1.1 and for HTTP/2 without TLS. Dropping it breaks all its
/// connections off.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    held: tokio::sync::Mutex<mpsc::Receiver<Held>>,
    server: JoinHandle<()>,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its method.
    pub method: Method,
    /// Its path and query.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// What came after the body.
    pub trailers: HeaderMap,
}

/// What the page of metrics says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Requests that wait.
    pub waiting: u32,
    /// Requests that run.
    pub running: u32,
    /// Used part of the KV cache, 0 to 1.
    pub kv_usage: f64,
    /// Data-parallel ranks beside the first, which has all requests.
    pub further_ranks: u16,
}

/// An answer whose body is the test's to send, after its head was or with it. Dropping it ends the
/// body.
#[derive(Debug)]
pub struct Held {
    /// What it answers.
    pub request: Seen,
    body: mpsc::Sender<Frame<Bytes>>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    seen: watch::Sender<Vec<Seen>>,
    load: Mutex<Load>,
    held: mpsc::Sender<Held>,
}

impl Engine {
    /// Starts one on a free port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub async fn start() -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self::serve(TcpListener::bind(address).await.expect("a free port"))
    }

    /// Starts the engines of pods: each pod has a loopback address that nobody else uses, and an
    /// engine on each of `ranks` ports, which are the same for all pods.
    ///
    /// # Panics
    ///
    /// When no such ports are found.
    pub async fn pods(pods: usize, ranks: usize) -> Vec<Vec<Self>> {
        let addresses: Vec<_> = (0..pods).map(|_| unused_address()).collect();
        for _ in 0..PORT_ATTEMPTS {
            if let Some(listeners) = listen(&addresses, ranks).await {
                let pod = |pod: Vec<_>| pod.into_iter().map(Self::serve).collect();
                return listeners.into_iter().map(pod).collect();
            }
        }
        panic!("no {ranks} ports are free on all of {addresses:?}");
    }

    /// Starts one at an address where one was before.
    ///
    /// # Panics
    ///
    /// When somebody else is there.
    pub async fn at(address: SocketAddr) -> Self {
        Self::serve(TcpListener::bind(address).await.expect("the address is free"))
    }

    fn serve(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("a listener has an address");
        let (sender, held) = mpsc::channel(WAITING_MAX);
        let shared = Arc::new(Shared {
            address,
            seen: watch::Sender::new(Vec::new()),
            load: Mutex::default(),
            held: sender,
        });
        let server = tokio::spawn(accept(listener, shared.clone()));
        Self { shared, held: held.into(), server }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// All requests so far, but for those of its metrics.
    pub fn requests(&self) -> Vec<Seen> {
        self.shared.seen.borrow().clone()
    }

    /// The last request.
    ///
    /// # Panics
    ///
    /// When there was none.
    pub fn last(&self) -> Seen {
        self.shared.seen.borrow().last().cloned().expect("the engine was asked")
    }

    /// The next answer that the test is to give: to a request with the header [`HOLD`].
    ///
    /// # Panics
    ///
    /// When none comes within the deadline.
    pub async fn held(&self) -> Held {
        let held = async { self.held.lock().await.recv().await };
        soon("a request to be answered", held).await.expect("the engine runs")
    }

    /// Says this on its page of metrics from now on.
    ///
    /// # Panics
    ///
    /// When one of its requests panicked.
    pub fn set_load(&self, load: Load) {
        *self.shared.load.lock().expect("nobody panicked") = load;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Seen {
    /// All values of a header.
    pub fn header(&self, name: &str) -> Vec<&str> {
        let values = self.headers.get_all(name).into_iter();
        values.map(|value| value.to_str().expect("the tests' headers are text")).collect()
    }

    /// The body as JSON; null where it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Held {
    /// Sends a piece of the body. That nobody wants it any more is no error.
    pub async fn send(&self, piece: impl Into<Bytes>) {
        // Where the client has hung up, `aborted` tells.
        let _ = self.body.send(Frame::data(piece.into())).await;
    }

    /// Sends a server-sent event.
    pub async fn event(&self, data: &Value) {
        self.send(format!("data: {data}\n\n")).await;
    }

    /// Ends the body with these trailers.
    pub async fn trailers(self, trailers: HeaderMap) {
        let _ = self.body.send(Frame::trailers(trailers)).await;
    }

    /// Waits until the client has hung up.
    ///
    /// # Panics
    ///
    /// When it does not within the deadline.
    pub async fn aborted(&self) {
        soon("the client hangs up", self.body.closed()).await;
    }
}

/// A loopback address of this process that it gave to nobody yet.
fn unused_address() -> IpAddr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    // Not 127.0.*, where everything else is; programs that run at once keep apart.
    let program = 1 + (std::process::id() % 254) as u8;
    Ipv4Addr::new(127, program, high, low).into()
}

/// Listens on `count` ports of each address, the same everywhere; `None` where one was taken.
async fn listen(addresses: &[IpAddr], count: usize) -> Option<Vec<Vec<TcpListener>>> {
    let mut ports = vec![0; count];
    let mut pods = Vec::new();
    for address in addresses {
        let mut listeners = Vec::new();
        for port in &mut ports {
            let listener = TcpListener::bind((*address, *port)).await.ok()?;
            *port = listener.local_addr().expect("a listener has an address").port();
            listeners.push(listener);
        }
        pods.push(listeners);
    }
    Some(pods)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        connections.spawn(connection(socket, shared.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(socket: TcpStream, shared: Arc<Shared>) {
    let answer = move |request| answer(shared.clone(), request);
    let server = auto::Builder::new(TokioExecutor::new());
    let service = hyper::service::service_fn(answer);
    // How a connection ends shows on the other side.
    let _ = server.serve_connection(TokioIo::new(socket), service).await;
}

async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    if request.uri().path() == "/metrics" {
        let load = *shared.load.lock().expect("nobody panicked");
        return Ok(response(&shared, "text/plain", Full::new(page(load).into()).boxed_unsync()));
    }
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("", |path| path.as_str()).to_owned();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    let body = body.to_bytes();
    let seen = Seen { method: head.method, path, headers: head.headers, body, trailers };
    shared.seen.send_modify(|all| all.push(seen.clone()));
    let is_grpc = seen.header("content-type").contains(&"application/grpc");
    Ok(if seen.headers.contains_key(HOLD) {
        let kind = if is_grpc { "application/grpc" } else { "text/event-stream" };
        let body = held(&shared, seen).await;
        response(&shared, kind, body)
    } else if is_grpc {
        response(&shared, "application/grpc", echo(seen.body))
    } else {
        let whole = completion(&seen.json()).to_string();
        response(&shared, "application/json", Full::new(whole.into()).boxed_unsync())
    })
}

fn response(shared: &Shared, content_type: &str, body: Body) -> Response<Body> {
    let response = Response::builder().header("content-type", content_type);
    // Two of a name, which must stay two.
    let response = response.header("set-cookie", "a=1").header("set-cookie", "b=2");
    let response = response.header(SERVED_BY, shared.address.to_string()).body(body);
    response.expect("a well-formed response")
}

/// A body that a test writes.
async fn held(shared: &Shared, request: Seen) -> Body {
    let (body, mut pieces) = mpsc::channel(WAITING_MAX);
    let holds_head = request.header(HOLD) == [HOLD_HEAD];
    // Where the engine is gone, nobody is left to answer.
    let _ = shared.held.send(Held { request, body }).await;
    let first = if holds_head { pieces.recv().await } else { None };
    let rest = stream::poll_fn(move |cx| pieces.poll_recv(cx));
    StreamBody::new(stream::iter(first).chain(rest).map(Ok)).boxed_unsync()
}
