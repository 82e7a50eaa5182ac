//! An etcd that misbehaves on demand. It keeps keys and leases whose ends the test decides; what
//! is right is tested on a real one.

use super::super::wire::auth_server::{Auth, AuthServer};
use super::super::wire::event::EventType;
use super::super::wire::kv_server::{Kv, KvServer};
use super::super::wire::lease_server::{Lease, LeaseServer};
use super::super::wire::watch_request::RequestUnion;
use super::super::wire::watch_server::{Watch, WatchServer};
use super::super::wire::*;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// Entries that are given at once, whatever was asked for.
const PAGE: usize = 2;

#[derive(Default)]
struct State {
    keys: BTreeMap<Vec<u8>, (Vec<u8>, i64)>,
    leases: BTreeSet<i64>,
    granted: i64,
    revision: i64,
    /// Changes, by revision, and before which of them all is forgotten.
    events: Vec<(i64, Event)>,
    compacted: i64,
    /// Whether nothing is answered.
    down: bool,
    /// The password and the token that it gives.
    auth: Option<(String, String)>,
    requests: usize,
}

impl State {
    fn set(&mut self, key: Vec<u8>, value: Option<(Vec<u8>, i64)>) {
        self.revision += 1;
        let kind = if value.is_some() { EventType::Put } else { EventType::Delete };
        let told = value.clone().map(|(value, _)| value).unwrap_or_default();
        let kv = KeyValue { key: key.clone(), value: told };
        self.events.push((self.revision, Event { r#type: kind.into(), kv: Some(kv) }));
        match value {
            Some(value) => drop(self.keys.insert(key, value)),
            None => drop(self.keys.remove(&key)),
        }
    }
}

/// The server; it ends when dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    shared: Shared,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<u64>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(super) async fn start() -> Self {
        let shared = Shared { state: Arc::default(), changed: Arc::new(watch::channel(0).0) };
        shared.state.lock().revision = 1;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let server = tonic::transport::Server::builder()
            .add_service(KvServer::new(shared.clone()))
            .add_service(WatchServer::new(shared.clone()))
            .add_service(LeaseServer::new(shared.clone()))
            .add_service(AuthServer::new(shared.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let task = tokio::spawn(async move {
            server.await.expect("the listener works");
        });
        Self { address, shared, task }
    }

    /// Nothing is answered from now on, and watches end, until it is up again.
    pub(super) fn down(&self, down: bool) {
        self.shared.change(|state| state.down = down);
    }

    /// Every lease ends, and with it its keys.
    pub(super) fn expire(&self) {
        self.shared.change(|state| {
            let leased: Vec<_> = state.keys.keys().cloned().collect();
            leased.into_iter().for_each(|key| state.set(key, None));
            state.leases.clear();
        });
    }

    pub(super) fn put(&self, key: &str, value: Option<&str>) {
        let value = value.map(|value| (value.into(), 0));
        self.shared.change(|state| state.set(key.into(), value));
    }

    /// Forgets all that has happened.
    pub(super) fn compact(&self) {
        self.shared.change(|state| {
            state.events.clear();
            state.compacted = state.revision;
        });
    }

    /// Asks for a password, and gives another token from now on.
    pub(super) fn guard(&self, password: &str, token: &str) {
        self.shared.change(|state| state.auth = Some((password.into(), token.into())));
    }

    pub(super) fn keys(&self) -> usize {
        self.shared.state.lock().keys.len()
    }

    /// Requests so far.
    pub(super) fn requests(&self) -> usize {
        self.shared.state.lock().requests
    }

    /// Waits for this many more requests.
    pub(super) async fn asked(&self, more: usize) {
        let mut changed = self.shared.changed.subscribe();
        let enough = self.requests() + more;
        while self.requests() < enough {
            super::soon(changed.changed()).await.expect("the server runs");
        }
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.send_modify(|n| *n += 1);
    }

    /// What every request goes through.
    fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.change(|state| state.requests += 1);
        let state = self.state.lock();
        if state.down {
            return Err(Status::unavailable("etcdserver: no leader"));
        }
        let token = request.metadata().get("token").and_then(|token| token.to_str().ok());
        match &state.auth {
            Some((_, expected)) if token != Some(expected) => {
                Err(Status::unauthenticated("etcdserver: invalid auth token"))
            }
            _ => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl Kv for Shared {
    async fn range(&self, ask: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        self.admit(&ask)?;
        let ask = ask.into_inner();
        let state = self.state.lock();
        let mut found = state.keys.iter().filter(|(key, _)| match ask.range_end.is_empty() {
            true => **key == ask.key,
            false => (&ask.key..&ask.range_end).contains(key),
        });
        let kvs = found.by_ref().take(PAGE);
        let kvs = kvs.map(|(key, (value, _))| KeyValue { key: key.clone(), value: value.clone() });
        let kvs = kvs.collect();
        let header = Some(ResponseHeader { revision: state.revision });
        Ok(Response::new(RangeResponse { header, kvs, more: found.next().is_some() }))
    }

    async fn put(&self, ask: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.admit(&ask)?;
        let PutRequest { key, value, lease } = ask.into_inner();
        if !self.state.lock().leases.contains(&lease) {
            return Err(Status::not_found("etcdserver: requested lease not found"));
        }
        self.change(|state| state.set(key, Some((value, lease))));
        Ok(Response::new(PutResponse {}))
    }
}

#[tonic::async_trait]
impl Lease for Shared {
    type LeaseKeepAliveStream = BoxStream<'static, Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_grant(
        &self,
        ask: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        self.admit(&ask)?;
        let mut state = self.state.lock();
        state.granted += 1;
        let id = state.granted;
        state.leases.insert(id);
        Ok(Response::new(LeaseGrantResponse { id, ttl: ask.into_inner().ttl }))
    }

    async fn lease_revoke(
        &self,
        ask: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        self.admit(&ask)?;
        let id = ask.into_inner().id;
        self.change(|state| {
            let leased = state.keys.iter().filter(|(_, (_, lease))| *lease == id);
            let leased: Vec<_> = leased.map(|(key, _)| key.clone()).collect();
            leased.into_iter().for_each(|key| state.set(key, None));
            state.leases.remove(&id);
        });
        Ok(Response::new(LeaseRevokeResponse {}))
    }

    async fn lease_keep_alive(
        &self,
        asks: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        self.admit(&asks)?;
        let shared = self.clone();
        let answers = asks.into_inner().map(move |ask| {
            let id = ask?.id;
            let ttl = if shared.state.lock().leases.contains(&id) { 5 } else { 0 };
            Ok(LeaseKeepAliveResponse { id, ttl })
        });
        Ok(Response::new(answers.boxed()))
    }
}

#[tonic::async_trait]
impl Auth for Shared {
    async fn authenticate(
        &self,
        ask: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        let AuthenticateRequest { name, password } = ask.into_inner();
        match &self.state.lock().auth {
            Some((expected, token)) if *expected == password && name == "me" => {
                Ok(Response::new(AuthenticateResponse { token: token.clone() }))
            }
            _ => Err(Status::invalid_argument("etcdserver: authentication failed")),
        }
    }
}

#[tonic::async_trait]
impl Watch for Shared {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(
        &self,
        asks: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.admit(&asks)?;
        let (sender, answers) = mpsc::channel(16);
        tokio::spawn(watching(self.clone(), asks.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

type Answers = mpsc::Sender<Result<WatchResponse, Status>>;

async fn watching(shared: Shared, mut asks: Streaming<WatchRequest>, answers: Answers) {
    let Ok(Some(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) })) =
        asks.message().await
    else {
        return;
    };
    let mut next = create.start_revision;
    let mut changed = shared.changed.subscribe();
    let _ = answers.send(Ok(WatchResponse::default())).await;
    loop {
        let answer = {
            let state = shared.state.lock();
            if state.down {
                return;
            }
            if next <= state.compacted {
                let (canceled, compact_revision) = (true, state.compacted);
                WatchResponse { canceled, compact_revision, ..WatchResponse::default() }
            } else {
                let events = state.events.iter().filter(|(revision, _)| *revision >= next);
                let events = events.map(|(_, event)| event.clone()).collect();
                next = state.revision + 1;
                WatchResponse { events, ..WatchResponse::default() }
            }
        };
        let is_last = answer.canceled;
        if (is_last || !answer.events.is_empty()) && answers.send(Ok(answer)).await.is_err() {
            return;
        }
        if is_last || changed.changed().await.is_err() {
            return;
        }
    }
}
