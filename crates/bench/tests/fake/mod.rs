//! A server that answers as an OpenAI-compatible engine does. The model's name chooses how.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// A running server; it ends with the test's runtime.
pub(crate) struct Fake {
    url: String,
    state: Arc<State>,
}

struct State {
    connections: AtomicUsize,
    bodies: Mutex<Vec<Value>>,
    /// Requests in flight now, and the most there ever were.
    in_flight: watch::Sender<(usize, usize)>,
}

/// What a body is made of: an error breaks the connection.
type Piece = Result<Frame<Bytes>, std::io::Error>;

impl Fake {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (connections, bodies) = (AtomicUsize::new(0), Mutex::default());
        let state = Arc::new(State { connections, bodies, in_flight: watch::Sender::default() });
        tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { url, state }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Connections made so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Bodies of the requests so far.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.state.bodies.lock().unwrap().clone()
    }

    /// Most requests that were in flight at once.
    pub(crate) fn most_in_flight(&self) -> usize {
        self.state.in_flight.borrow().1
    }

    /// Waits until so many requests are in flight.
    pub(crate) async fn in_flight(&self, count: usize) {
        let mut in_flight = self.state.in_flight.subscribe();
        in_flight.wait_for(|(now, _)| *now >= count).await.unwrap();
    }
}

/// An address at which nobody listens.
pub(crate) async fn closed_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        state.connections.fetch_add(1, Ordering::SeqCst);
        stream.set_nodelay(true).unwrap();
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&state)));
            // A client that hangs up, and a body that breaks on purpose, are part of the tests.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<State>,
) -> Result<Response<BoxBody<Bytes, std::io::Error>>, Infallible> {
    if request.uri().path() == "/v1/models" {
        let models = json!({"object": "list", "data": [{"id": "fake"}, {"id": "other"}]});
        return Ok(reply(StatusCode::OK, "application/json", vec![data(models.to_string())]));
    }
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    state.bodies.lock().unwrap().push(body.clone());
    let in_flight = InFlight::enter(&state);
    let model = body["model"].as_str().unwrap();
    if model == "silent" {
        std::future::pending::<()>().await;
    }
    // Nothing is answered before so many requests have been in flight at once.
    if let Some(count) = model.strip_prefix("gather ") {
        let count = count.parse().unwrap();
        let mut in_flight = state.in_flight.subscribe();
        in_flight.wait_for(|(_, most)| *most >= count).await.unwrap();
    }
    drop(in_flight);
    Ok(model_answer(model, &body))
}

/// Counts a request while it is in flight.
struct InFlight<'a>(&'a State);

impl<'a> InFlight<'a> {
    fn enter(state: &'a State) -> Self {
        state.in_flight.send_modify(|(now, most)| {
            *now += 1;
            *most = (*now).max(*most);
        });
        Self(state)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.send_modify(|(now, _)| *now -= 1);
    }
}

fn model_answer(model: &str, body: &Value) -> Response<BoxBody<Bytes, std::io::Error>> {
    let events = |pieces| reply(StatusCode::OK, "text/event-stream; charset=utf-8", pieces);
    let json =
        |status, body: Value| reply(status, "application/json", vec![data(body.to_string())]);
    let chunk =
        json!({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]});
    match model {
        "busy" => {
            let error = json!({"error": {"message": "m", "type": "rate_limit_error"}});
            json(StatusCode::TOO_MANY_REQUESTS, error)
        }
        "broken" => events(vec![event(&chunk), Err(std::io::Error::other("broken on purpose"))]),
        "truncated" => events(vec![event(&chunk)]),
        "lost" => {
            let error = json!({"error": {"message": "m", "type": "worker_lost"}});
            events(vec![event(&chunk), event(&error)])
        }
        "garbage" => reply(StatusCode::OK, "text/html", vec![data("<html>".to_owned())]),
        _ if body["stream"] == true => {
            let mut response = events(stream(body));
            if model == "close" {
                response.headers_mut().insert("connection", "close".parse().unwrap());
            }
            response
        }
        _ => json(StatusCode::OK, whole(body)),
    }
}

/// A chunk for each token, the usage, and the end.
fn stream(body: &Value) -> Vec<Piece> {
    let tokens = body["max_tokens"].as_u64().unwrap();
    let chat = body.get("messages").is_some();
    let mut pieces = Vec::new();
    for n in 0..tokens {
        let text = format!(" w{n}");
        let choice = match chat {
            true => json!({"index": 0, "delta": {"content": text}, "finish_reason": null}),
            false => json!({"index": 0, "text": text, "finish_reason": null}),
        };
        pieces.push(event(&json!({"id": "x", "choices": [choice]})));
    }
    pieces.push(event(&json!({"choices": [], "usage": usage(body, tokens)})));
    pieces.push(data("data: [DONE]\n\n".to_owned()));
    pieces
}

fn whole(body: &Value) -> Value {
    let tokens = body["max_tokens"].as_u64().unwrap();
    let choice = json!({"index": 0, "message": {"content": "w"}, "finish_reason": "length"});
    json!({"choices": [choice], "usage": usage(body, tokens)})
}

/// Token ids are counted, and all but the last 20 were cached; words are counted as tokens.
fn usage(body: &Value, tokens: u64) -> Value {
    let ids = body["prompt"].as_array().map(Vec::len);
    let words = || {
        body["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m["content"].as_str().unwrap().split(' ').count())
            .sum()
    };
    let prompt_tokens: usize = ids.unwrap_or_else(words);
    let cached = ids.map(|ids| json!({"cached_tokens": ids.saturating_sub(20)}));
    json!({"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "prompt_tokens_details": cached})
}

fn event(value: &Value) -> Piece {
    data(format!("data: {value}\n\n"))
}

fn data(text: String) -> Piece {
    Ok(Frame::data(text.into()))
}

/// Sends the pieces one by one, so that they are separate chunks.
fn reply(
    status: StatusCode,
    kind: &str,
    pieces: Vec<Piece>,
) -> Response<BoxBody<Bytes, std::io::Error>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        for piece in pieces {
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    });
    let body = StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(receiver));
    Response::builder()
        .status(status)
        .header("content-type", kind)
        .body(BodyExt::boxed(body))
        .unwrap()
}
