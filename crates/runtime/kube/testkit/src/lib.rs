//! For tests: an API server that misbehaves on demand. It keeps objects, lists them in pages, and
//! streams their changes; tests of what is right run against a real one elsewhere.

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use stator_kube::{Cluster, FollowTiming};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Objects on one page of a list.
const PAGE: usize = 2;

/// Waits for what must happen.
///
/// # Panics
///
/// When it has not happened after 30 seconds, which is met only when it never does.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.expect("it happens in time")
}

/// Behaviour of the server towards requests for one kind of object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// As they should be.
    #[default]
    Good,
    /// The kind is not installed.
    Absent,
    /// The kind is not known to watches and to the next list, and known after it.
    AbsentOnce,
    /// Not at all; an open watch goes silent.
    Stalled,
    /// Unavailable.
    Failing,
    /// The connection breaks, that of an open watch too.
    Reset,
}

/// The objects of one kind, and what happened to them.
#[derive(Debug, Default)]
struct Kind {
    mood: Mood,
    objects: BTreeMap<String, Value>,
    events: Vec<(u64, Value)>,
    /// Watches from before this version are refused.
    forgotten: u64,
    requests: usize,
}

#[derive(Debug, Default)]
struct Shared {
    version: u64,
    /// By path, for example `/api/v1/namespaces/n/pods`.
    kinds: BTreeMap<String, Kind>,
}

#[derive(Clone, Debug)]
struct Context {
    shared: Arc<Mutex<Shared>>,
    changed: Arc<watch::Sender<u64>>,
}

/// The server; it ends when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    context: Context,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Listens on a free port.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    pub async fn start() -> Self {
        let context = Context { shared: Arc::default(), changed: Arc::new(watch::channel(0).0) };
        let app = axum::Router::new().fallback(answer).with_state(context.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let task = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("the listener works");
        });
        Self { address, context, task }
    }

    /// A client of it, to which faults are over quickly.
    ///
    /// # Panics
    ///
    /// Never: its address is a URL.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        let timing = FollowTiming {
            backoff_min: Duration::from_millis(1),
            backoff_max: Duration::from_millis(20),
            request_timeout: Duration::from_millis(200),
            watch_timeout: Duration::from_secs(1),
            watch_first: Duration::from_secs(1),
            watch_grace: Duration::from_millis(100),
            watch_min: Duration::from_millis(1),
            absent_retry: Duration::from_millis(20),
        };
        let url = format!("http://{}", self.address).parse().expect("a URL");
        Cluster::at(url, timing).expect("a client")
    }

    /// Creates or replaces an object of the collection of this path.
    ///
    /// # Panics
    ///
    /// When it has no name.
    pub fn put(&self, path: &str, object: Value) {
        self.change(path, |kind, version| store(kind, version, object));
    }

    /// Takes an object away.
    ///
    /// # Panics
    ///
    /// When it is not there.
    pub fn delete(&self, path: &str, name: &str) {
        self.change(path, |kind, version| {
            let mut object = kind.objects.remove(name).expect("the object is there");
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            kind.events.push((version, json!({"type": "DELETED", "object": object})));
        });
    }

    /// Changes how requests for a collection are answered from now on.
    pub fn mood(&self, path: &str, mood: Mood) {
        self.change(path, |kind, _| kind.mood = mood);
    }

    /// Forgets all versions, as a server does that compacts its store, and ends all watches.
    pub fn forget(&self, path: &str) {
        self.change(path, |kind, version| {
            kind.events.clear();
            kind.forgotten = version;
        });
    }

    /// Requests for a collection so far.
    #[must_use]
    pub fn requests(&self, path: &str) -> usize {
        self.context.shared.lock().kinds.get(path).map_or(0, |kind| kind.requests)
    }

    /// Waits until there were more than `n` requests for a collection.
    ///
    /// # Panics
    ///
    /// When there never are.
    pub async fn asked_more_than(&self, path: &str, n: usize) {
        let mut changed = self.context.changed.subscribe();
        while self.requests(path) <= n {
            soon(changed.changed()).await.expect("the server runs");
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
        let mood = kind.mood;
        if mood == Mood::AbsentOnce && !query.contains_key("watch") {
            kind.mood = Mood::Good;
        }
        mood
    };
    context.changed.send_modify(|n| *n += 1);
    match mood {
        Mood::Good => {}
        Mood::Absent | Mood::AbsentOnce => return refuse(StatusCode::NOT_FOUND),
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
        (Method::POST, None) if path.ends_with("reviews") => review(&path, &body),
        (Method::PATCH, Some(_)) => {
            let object: Value = serde_json::from_slice(&body).expect("an object");
            store(kind, version, object.clone());
            json_of(&object)
        }
        (_, name) => write(kind, version, name, &body),
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

fn write(kind: &mut Kind, version: u64, name: Option<String>, body: &[u8]) -> Response {
    let object: Value = serde_json::from_slice(body).expect("an object");
    let key = object["metadata"]["name"].as_str().expect("objects have names").to_owned();
    let known = kind.objects.get(&key);
    let fits = match name {
        None => known.is_none(),
        Some(_) => known.is_some_and(|known| {
            known["metadata"]["resourceVersion"] == object["metadata"]["resourceVersion"]
        }),
    };
    if !fits {
        return refuse(StatusCode::CONFLICT);
    }
    store(kind, version, object);
    json_of(&kind.objects[&key])
}

/// Tokens are names; `root` may do all, `guest` nothing, and others are nobody.
fn review(path: &str, body: &[u8]) -> Response {
    let review: Value = serde_json::from_slice(body).expect("an object");
    let status = if path.ends_with("tokenreviews") {
        let token = review["spec"]["token"].as_str().expect("a token");
        let known = ["root", "guest"].contains(&token);
        json!({"authenticated": known, "user": {"username": token, "groups": ["g"]}})
    } else {
        let spec = &review["spec"];
        let asked = spec["nonResourceAttributes"] == json!({"path": "/metrics", "verb": "get"});
        json!({"allowed": asked && spec["user"] == "root" && spec["groups"] == json!(["g"])})
    };
    json_of(&json!({"status": status}))
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
                Mood::Absent | Mood::AbsentOnce | Mood::Failing => return,
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

/// Next lines of a watch that has sent all up to version `sent`.
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
