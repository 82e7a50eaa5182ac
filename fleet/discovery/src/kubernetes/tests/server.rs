//! An API server that misbehaves on demand. It keeps objects, lists them in pages, and streams
//! their changes; tests of what is right run against a real one elsewhere.

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Objects on one page of a list.
const PAGE: usize = 2;

/// How requests for one kind of object are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mood {
    /// As they should be.
    #[default]
    Good,
    /// Not at all; an open watch goes silent.
    Stalled,
    /// Unavailable.
    Failing,
    /// The connection breaks, that of an open watch too.
    Reset,
}

/// The objects of one kind, and what happened to them.
#[derive(Default)]
struct Kind {
    mood: Mood,
    objects: BTreeMap<String, Value>,
    events: Vec<(u64, Value)>,
    /// Watches from before this version are refused.
    forgotten: u64,
    requests: usize,
}

#[derive(Default)]
struct Shared {
    version: u64,
    /// By path, for example `/api/v1/namespaces/n/pods`.
    kinds: BTreeMap<String, Kind>,
}

#[derive(Clone)]
struct Context {
    shared: Arc<Mutex<Shared>>,
    changed: Arc<watch::Sender<u64>>,
}

/// The server; it ends when dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    context: Context,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(super) async fn start() -> Self {
        let context = Context { shared: Arc::default(), changed: Arc::new(watch::channel(0).0) };
        let app = axum::Router::new().fallback(answer).with_state(context.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let task = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("the listener works");
        });
        Self { address, context, task }
    }

    /// Creates or replaces an object.
    pub(super) fn put(&self, path: &str, object: Value) {
        self.change(path, |kind, version| store(kind, version, object));
    }

    pub(super) fn delete(&self, path: &str, name: &str) {
        self.change(path, |kind, version| {
            let mut object = kind.objects.remove(name).expect("the object is there");
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            kind.events.push((version, json!({"type": "DELETED", "object": object})));
        });
    }

    pub(super) fn mood(&self, path: &str, mood: Mood) {
        self.change(path, |kind, _| kind.mood = mood);
    }

    /// Forgets all versions, as a server does that compacts its store, and ends all watches.
    pub(super) fn forget(&self, path: &str) {
        self.change(path, |kind, version| {
            kind.events.clear();
            kind.forgotten = version;
        });
    }

    /// Requests for a kind so far.
    pub(super) fn requests(&self, path: &str) -> usize {
        self.context.shared.lock().kinds.get(path).map_or(0, |kind| kind.requests)
    }

    /// Waits until there were more than `n` requests for a kind.
    pub(super) async fn asked_more_than(&self, path: &str, n: usize) {
        let mut changed = self.context.changed.subscribe();
        while self.requests(path) <= n {
            super::soon(changed.changed()).await.expect("the server runs");
        }
    }

    fn change(&self, path: &str, change: impl FnOnce(&mut Kind, u64)) {
        let mut shared = self.context.shared.lock();
        shared.version += 1;
        let version = shared.version;
        change(shared.kinds.entry(path.to_owned()).or_default(), version);
        drop(shared);
        self.context.changed.send_modify(|n| *n += 1);
    }
}

fn store(kind: &mut Kind, version: u64, mut object: Value) {
    let name = object["metadata"]["name"].as_str().expect("objects have names").to_owned();
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    let known = kind.objects.insert(name, object.clone()).is_some();
    let event = if known { "MODIFIED" } else { "ADDED" };
    kind.events.push((version, json!({"type": event, "object": object})));
}

async fn answer(State(context): State<Context>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a whole request");
    let path = head.uri.path().to_owned();
    let query = parameters(head.uri.query().unwrap_or_default());
    let (collection, name) = split(&path);
    let mood = {
        let mut shared = context.shared.lock();
        let kind = shared.kinds.entry(collection.clone()).or_default();
        kind.requests += 1;
        kind.mood
    };
    context.changed.send_modify(|n| *n += 1);
    match mood {
        Mood::Good => {}
        Mood::Failing => return refuse(StatusCode::SERVICE_UNAVAILABLE),
        Mood::Stalled => std::future::pending().await,
        Mood::Reset => return Body::from_stream(futures::stream::iter([broken()])).into_response(),
    }
    if query.contains_key("watch") {
        return watching(&context, collection, &query["resourceVersion"]);
    }
    let mut shared = context.shared.lock();
    shared.version += u64::from(head.method != Method::GET);
    let version = shared.version;
    let kind = shared.kinds.entry(collection).or_default();
    match (head.method, name) {
        (Method::GET, None) => list(kind, version, &query),
        (Method::GET, Some(name)) => {
            kind.objects.get(&name).map_or_else(|| refuse(StatusCode::NOT_FOUND), json_of)
        }
        (Method::PATCH, Some(_)) => {
            let object: Value = serde_json::from_slice(&body).expect("an object");
            store(kind, version, object.clone());
            json_of(&object)
        }
        (method, _) => panic!("{method} {path} is not expected"),
    }
}

fn list(kind: &Kind, version: u64, query: &BTreeMap<String, String>) -> Response {
    let after = query.get("continue").cloned().unwrap_or_default();
    let named = query.get("fieldSelector").and_then(|fields| fields.split_once('='));
    let wanted = |name: &String| named.is_none_or(|(_, wanted)| wanted == name);
    let labels: Vec<_> = query
        .get("labelSelector")
        .map(|labels| labels.split(',').filter_map(|pair| pair.split_once('=')).collect())
        .unwrap_or_default();
    let selected = |object: &Value| {
        labels.iter().all(|(key, value)| object["metadata"]["labels"][key] == **value)
    };
    let mut rest = kind
        .objects
        .iter()
        .filter(|(name, object)| **name > after && wanted(name) && selected(object))
        .peekable();
    let page: Vec<_> = rest.by_ref().take(PAGE).collect();
    let next = if rest.peek().is_some() { page.last().map(|(name, _)| *name) } else { None };
    let items: Vec<_> = page.iter().map(|(_, object)| object).collect();
    let metadata =
        json!({"resourceVersion": version.to_string(), "continue": next.map_or("", |n| n)});
    json_of(&json!({"metadata": metadata, "items": items}))
}

fn watching(context: &Context, collection: String, from: &str) -> Response {
    let mut sent: u64 = from.parse().expect("a version");
    let context = context.clone();
    let forgotten = context.shared.lock().kinds[&collection].forgotten;
    if sent < forgotten {
        return refuse(StatusCode::GONE);
    }
    let (sender, lines) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(64);
    tokio::spawn(async move {
        let mut changed = context.changed.subscribe();
        loop {
            let (mood, forgotten, news) = news(&context, &collection, &mut sent);
            let last = match mood {
                Mood::Good if sent < forgotten => Some(gone()),
                Mood::Good => None,
                Mood::Stalled => std::future::pending().await,
                Mood::Reset => Some(broken()),
                Mood::Failing => return,
            };
            for line in news.into_iter().chain(last) {
                let end = line.is_err();
                if sender.send(line).await.is_err() || end {
                    return;
                }
            }
            if sent < forgotten || changed.changed().await.is_err() {
                return;
            }
        }
    });
    Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(lines)).into_response()
}

type Line = Result<Bytes, std::io::Error>;

/// What a watch that has `sent` all up to a version sends next.
fn news(context: &Context, collection: &str, sent: &mut u64) -> (Mood, u64, Vec<Line>) {
    let shared = context.shared.lock();
    let kind = &shared.kinds[collection];
    let mut lines = Vec::new();
    if kind.mood == Mood::Good {
        let after = *sent;
        for (version, event) in kind.events.iter().filter(|(version, _)| *version > after) {
            lines.push(Ok(format!("{event}\n").into()));
            *sent = *version;
        }
    }
    (kind.mood, kind.forgotten, lines)
}

fn gone() -> Line {
    let status = json!({"code": 410, "message": "too old resource version"});
    Ok(format!("{}\n", json!({"type": "ERROR", "object": status})).into())
}

fn broken() -> Line {
    Err(std::io::Error::other("reset by the test"))
}

fn refuse(status: StatusCode) -> Response {
    (status, json!({"message": "by the test"}).to_string()).into_response()
}

fn json_of(value: &Value) -> Response {
    value.to_string().into_response()
}

/// The path of a collection, and the name of the object in it that a path is of.
fn split(path: &str) -> (String, Option<String>) {
    let parts: Vec<_> = path.split('/').collect();
    match parts.iter().position(|part| *part == "namespaces") {
        Some(at) if parts.len() > at + 3 => {
            (parts[..at + 3].join("/"), Some(parts[at + 3].to_owned()))
        }
        _ => (path.to_owned(), None),
    }
}

fn parameters(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let decode = |text: &str| text.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/");
    pairs.map(|(name, value)| (name.to_owned(), decode(value))).collect()
}
