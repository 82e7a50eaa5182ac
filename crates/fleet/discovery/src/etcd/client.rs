//! A client of one etcd cluster: each request has a limit on its time, and goes to another member
//! where one does not answer.

use super::wire::auth_client::AuthClient;
use super::wire::kv_client::KvClient;
use super::wire::lease_client::LeaseClient;
use super::wire::watch_client::WatchClient;
use super::wire::watch_request::RequestUnion;
use super::wire::{
    AuthenticateRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use crate::DiscoveryError;
use crate::known::OBJECTS_MAX;
use crate::record::RECORD_BYTES_MAX;
use crate::source::{EtcdSource, EtcdTls};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};

/// The environment variable with the user's password.
const PASSWORD: &str = "STATOR_ETCD_PASSWORD";
/// Longest time for one answer of one member, and for its connection.
const ANSWER: Duration = Duration::from_secs(3);
const CONNECT: Duration = Duration::from_secs(2);
/// Interval of probes of a silent connection, and longest wait for an answer; members refuse probes
/// more often than every five seconds.
const PROBE: Duration = Duration::from_secs(10);
const PROBE_ANSWER: Duration = Duration::from_secs(5);
/// Entries asked for at once.
const PAGE: i64 = 256;
/// Largest message: a page of records of usual size, or a few large ones.
const MESSAGE_BYTES_MAX: usize = 4 * RECORD_BYTES_MAX;

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease(pub(super) i64);

/// Keys below a prefix, by what follows it, and the revision of the store that they are of.
pub(super) type Listing = (BTreeMap<String, Vec<u8>>, i64);

/// The client.
pub(super) struct EtcdClient {
    members: Vec<Channel>,
    /// The member that answered last.
    at: usize,
    credentials: Option<AuthenticateRequest>,
    token: Option<MetadataValue<Ascii>>,
}

/// One member, and who asks it.
#[derive(Clone)]
struct Member {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

impl EtcdClient {
    /// A client that connects when it is first asked for something.
    pub(super) async fn open(source: &EtcdSource) -> Result<Self, DiscoveryError> {
        let credentials = match &source.user {
            None => None,
            Some(user) => {
                let password = password(user, source.password_file.as_deref()).await?;
                Some(AuthenticateRequest { name: user.clone(), password })
            }
        };
        let tls = match &source.tls {
            None => None,
            Some(files) => Some(tls(files).await?),
        };
        let member = |endpoint: &String| member(endpoint, tls.clone());
        let members = source.endpoints.iter().map(member).collect::<Result<_, _>>()?;
        Ok(Self { members, at: 0, credentials, token: None })
    }

    /// Sets user and password directly, for a user that the environment does not name.
    #[cfg(test)]
    pub(super) fn authenticate_as(&mut self, name: &str, password: &str) {
        let (name, password) = (name.into(), password.into());
        self.credentials = Some(AuthenticateRequest { name, password });
    }

    /// All keys that begin with `prefix`.
    pub(super) async fn list(&mut self, prefix: &str) -> Result<Listing, DiscoveryError> {
        let mut entries = BTreeMap::new();
        let (mut key, mut revision) = (prefix.as_bytes().to_vec(), 0);
        loop {
            let ask = RangeRequest {
                key: key.clone(),
                range_end: range_end(prefix),
                limit: PAGE,
                revision,
            };
            let page = self.ask(|member| range(member, ask.clone())).await?;
            // Later pages are of the revision of the first.
            if revision == 0 {
                revision = page.header.unwrap_or_default().revision;
            }
            if let Some(last) = page.kvs.last() {
                key = last.key.iter().copied().chain([0]).collect();
            }
            for entry in page.kvs {
                entries.extend(below(prefix, &entry.key).map(|name| (name, entry.value)));
            }
            if entries.len() > OBJECTS_MAX {
                let fault = format!("{prefix} has more than {OBJECTS_MAX} keys");
                return Err(DiscoveryError::Refused(fault));
            }
            if !page.more {
                return Ok((entries, revision));
            }
        }
    }

    /// The value of one key.
    pub(super) async fn value(&mut self, key: &str) -> Result<Option<Vec<u8>>, DiscoveryError> {
        let ask = RangeRequest { key: key.into(), limit: 1, ..RangeRequest::default() };
        let found = self.ask(|member| range(member, ask.clone())).await?;
        Ok(found.kvs.into_iter().next().map(|entry| entry.value))
    }

    /// Sets a key for as long as a lease holds; false where there is no such lease any more.
    pub(super) async fn put(
        &mut self,
        key: &str,
        value: Vec<u8>,
        Lease(lease): Lease,
    ) -> Result<bool, DiscoveryError> {
        let ask = PutRequest { key: key.into(), value, lease };
        let put = |member: Member| {
            let ask = ask.clone();
            async move {
                let put = KvClient::new(member.channel.clone()).put(member.request(ask)).await;
                match put {
                    Err(status) if status.code() == Code::NotFound => Ok(false),
                    put => put.map(|_| true),
                }
            }
        };
        self.ask(put).await
    }

    /// A new lease, of at least this length.
    pub(super) async fn grant(&mut self, lease: Duration) -> Result<Lease, DiscoveryError> {
        // Whole seconds, so that it does not end before the agent renews it.
        let seconds = lease.as_millis().div_ceil(1000).max(1);
        let ask = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX) };
        let grant = |member: Member| async move {
            LeaseClient::new(member.channel.clone()).lease_grant(member.request(ask)).await
        };
        Ok(Lease(self.ask(grant).await?.into_inner().id))
    }

    /// Makes a lease last anew; false where there is no such lease any more.
    pub(super) async fn keep(&mut self, Lease(id): Lease) -> Result<bool, DiscoveryError> {
        let keep = |member: Member| async move {
            let ask = tokio_stream::once(LeaseKeepAliveRequest { id });
            let mut client = LeaseClient::new(member.channel.clone());
            let mut answers = client.lease_keep_alive(member.request(ask)).await?.into_inner();
            let answer = answers.message().await?;
            answer.ok_or_else(|| Status::unavailable("no answer about the lease"))
        };
        Ok(self.ask(keep).await?.ttl > 0)
    }

    /// Ends a lease, and with it its keys.
    pub(super) async fn revoke(&mut self, Lease(id): Lease) -> Result<(), DiscoveryError> {
        let revoke = |member: Member| async move {
            let ask = member.request(LeaseRevokeRequest { id });
            match LeaseClient::new(member.channel.clone()).lease_revoke(ask).await {
                Err(status) if status.code() == Code::NotFound => Ok(()),
                revoked => revoked.map(|_| ()),
            }
        };
        self.ask(revoke).await
    }

    /// Changes of keys that begin with `prefix`, from a revision on.
    pub(super) async fn watch(
        &mut self,
        prefix: &str,
        start_revision: i64,
    ) -> Result<Streaming<WatchResponse>, DiscoveryError> {
        let create = WatchCreateRequest {
            key: prefix.into(),
            range_end: range_end(prefix),
            start_revision,
            fragment: true,
        };
        let watch = |member: Member| {
            let create = RequestUnion::CreateRequest(create.clone());
            async move {
                let create = WatchRequest { request_union: Some(create) };
                // The member ends the watch when this stream ends.
                let asks = tokio_stream::StreamExt::chain(
                    tokio_stream::once(create),
                    tokio_stream::pending(),
                );
                let mut client = WatchClient::new(member.channel.clone())
                    .max_decoding_message_size(MESSAGE_BYTES_MAX);
                Ok(client.watch(member.request(asks)).await?.into_inner())
            }
        };
        self.ask(watch).await
    }

    /// The next request goes to another member.
    pub(super) fn turn(&mut self) {
        self.at = (self.at + 1) % self.members.len();
    }

    /// Asks one member after the other until one answers.
    async fn ask<T, F>(&mut self, call: impl Fn(Member) -> F) -> Result<T, DiscoveryError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let mut told = Vec::new();
        let mut anew = true;
        while told.len() < self.members.len() {
            let status = match self.attempt(&call).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            if is_token_stale(&status) && self.credentials.is_some() && anew {
                // Once, so that a member that never takes the token does not hold us for ever.
                (self.token, anew) = (None, false);
            } else if is_members_own(&status) {
                told.push(status.message().to_owned());
                self.turn();
            } else {
                let fault = format!("etcd: {}: {}", status.code(), status.message());
                return Err(DiscoveryError::Refused(fault));
            }
        }
        Err(DiscoveryError::Unreachable(format!("etcd: {}", told.join("; "))))
    }

    async fn attempt<T, F>(&mut self, call: impl Fn(Member) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let channel = self.members[self.at].clone();
        if let (Some(credentials), None) = (&self.credentials, &self.token) {
            let mut client = AuthClient::new(channel.clone());
            let answer = within(client.authenticate(credentials.clone())).await?;
            let token = answer.into_inner().token;
            let token = token.parse().map_err(|_| Status::internal("not a token"))?;
            self.token = Some(token);
        }
        within(call(Member { channel, token: self.token.clone() })).await
    }
}

impl Member {
    /// A request with the user's token. A member that is cut off from the others is to say so,
    /// instead of what was true before.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            metadata.insert("token", token.clone());
        }
        request
    }
}

async fn range(member: Member, ask: RangeRequest) -> Result<super::wire::RangeResponse, Status> {
    let mut client =
        KvClient::new(member.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    Ok(client.range(member.request(ask)).await?.into_inner())
}

async fn within<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let slow = |_| Err(Status::deadline_exceeded(format!("no answer within {ANSWER:?}")));
    timeout(ANSWER, answer).await.unwrap_or_else(slow)
}

/// Whether a token has run out, or is older than the users.
fn is_token_stale(status: &Status) -> bool {
    let is_old = status.message().contains("revision of auth store is old");
    status.code() == Code::Unauthenticated || is_old
}

/// Whether another member may do what this one cannot.
fn is_members_own(status: &Status) -> bool {
    use Code::{
        Aborted, Cancelled, DeadlineExceeded, Internal, Unauthenticated, Unavailable, Unknown,
    };
    let own =
        [Unavailable, DeadlineExceeded, Cancelled, Unknown, Internal, Aborted, Unauthenticated];
    own.contains(&status.code())
}

fn member(endpoint: &str, tls: Option<ClientTlsConfig>) -> Result<Channel, DiscoveryError> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let made = Endpoint::from_shared(format!("{scheme}://{endpoint}")).and_then(|made| match tls {
        Some(tls) => made.tls_config(tls),
        None => Ok(made),
    });
    let made =
        made.map_err(|error| DiscoveryError::Unconfigured(format!("etcd: {endpoint:?}: {error}")))?;
    let made = made.connect_timeout(CONNECT).tcp_nodelay(true).keep_alive_while_idle(true);
    Ok(made.http2_keep_alive_interval(PROBE).keep_alive_timeout(PROBE_ANSWER).connect_lazy())
}

async fn password(user: &str, file: Option<&Path>) -> Result<String, DiscoveryError> {
    let Some(file) = file else {
        return std::env::var(PASSWORD).map_err(|_| {
            let fault = format!("{PASSWORD}: not set; user {user:?} of etcd needs it");
            DiscoveryError::Unconfigured(fault)
        });
    };
    let text = String::from_utf8(read(file).await?).map_err(|_| {
        let file = file.display();
        DiscoveryError::Unconfigured(format!("etcd: {file}: a password is UTF-8"))
    })?;
    // Editors and shells end files with a line.
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

async fn tls(files: &EtcdTls) -> Result<ClientTlsConfig, DiscoveryError> {
    stator_runtime::tls::install_provider();
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&files.ca).await?));
    Ok(match &files.identity {
        None => tls,
        Some((cert, key)) => tls.identity(Identity::from_pem(read(cert).await?, read(key).await?)),
    })
}

async fn read(path: &Path) -> Result<Vec<u8>, DiscoveryError> {
    tokio::fs::read(path).await.map_err(|error| {
        DiscoveryError::Unconfigured(format!("etcd: cannot read {}: {error}", path.display()))
    })
}

/// The first key behind all that begin with `prefix`, which ends in a slash: `0` follows it.
fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// The part of a key after the prefix.
pub(super) fn below(prefix: &str, key: &[u8]) -> Option<String> {
    let name = key.strip_prefix(prefix.as_bytes())?;
    String::from_utf8(name.to_vec()).ok()
}
