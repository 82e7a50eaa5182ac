//! Requests to engines over connections that are kept, and their answers part by part.
//!
//! Knows Pingora's client and decides nothing about requests.

use super::metadata::is_metadata;
use super::settings::{EngineTls, UpstreamSettings};
use super::target::Target;
use bytes::{Bytes, BytesMut};
use pingora::connectors::ConnectorOptions;
use pingora::connectors::http::v1::Connector;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::v1::client::HttpSession;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, RetryType};
use stator_api::openai::ApiError;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Longest wait for a connection and its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which an idle connection is kept: less than the 5 seconds of uvicorn, under which
/// engines run, so that requests seldom meet a connection that is being closed.
const KEPT_FOR: Duration = Duration::from_secs(4);
/// Idle connections that are kept at most, to all engines together.
const KEPT_MAX: usize = 1024;
/// Kept connections that a request may find closed before it gives up.
const STALE_MAX: u32 = 8;
/// Heads for the client's information that an engine may send before the answer's own.
const INFORMATIONAL_MAX: u32 = 8;

/// Sends requests to engines.
pub(crate) struct Engines {
    connector: Connector,
    settings: UpstreamSettings,
}

/// A request to an engine on its way: written, and perhaps answered.
pub(crate) struct Leg {
    session: HttpSession,
    peer: HttpPeer,
    /// The first part of the answer's body, where somebody waited for it.
    first: Option<Bytes>,
}

/// Why an engine gave no answer, or no whole one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LegError {
    /// It could not be reached.
    #[error("cannot connect to {peer}: {cause}")]
    Connect {
        /// Its address.
        peer: String,
        /// The cause.
        cause: String,
    },
    /// It said nothing for too long.
    #[error("{peer} did not answer within {limit_ms} ms")]
    TimedOut {
        /// Its address.
        peer: String,
        /// The limit.
        limit_ms: u128,
    },
    /// The connection broke, or carried no HTTP.
    #[error("the connection to {peer} broke: {cause}")]
    Broken {
        /// Its address.
        peer: String,
        /// The cause.
        cause: String,
    },
    /// Its answer is longer than is kept.
    #[error("the answer of {peer} is longer than {limit} bytes")]
    TooLong {
        /// Its address.
        peer: String,
        /// The limit.
        limit: usize,
    },
}

impl fmt::Debug for Leg {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Leg").field("peer", &self.peer._address).finish_non_exhaustive()
    }
}

impl Engines {
    pub(crate) fn new(settings: UpstreamSettings) -> Self {
        let mut options = ConnectorOptions::new(KEPT_MAX);
        options.ca_file = settings.ca_file.as_ref().map(|file| file.display().to_string());
        Self { connector: Connector::new(Some(options)), settings }
    }

    /// The engine beside this proxy.
    pub(crate) fn decoder(&self, address: SocketAddr) -> HttpPeer {
        peer(address, &address.ip().to_string(), self.settings.decoder_tls)
    }

    /// An engine that computes prompts, looked up where it has a name.
    ///
    /// # Errors
    ///
    /// When the name has no address.
    pub(crate) async fn prefiller(&self, target: &Target) -> Result<HttpPeer, LegError> {
        self.engine(target, self.settings.prefiller_tls).await
    }

    /// Any engine, looked up where it has a name.
    ///
    /// # Errors
    ///
    /// When the name has no address.
    pub(crate) async fn engine(
        &self,
        target: &Target,
        tls: EngineTls,
    ) -> Result<HttpPeer, LegError> {
        let address = self.address(target).await?;
        Ok(peer(address, &target.host, tls))
    }

    /// The bootstrap server beside such an engine, which never speaks TLS.
    ///
    /// # Errors
    ///
    /// When its name has no address.
    pub(crate) async fn bootstrap(&self, target: &Target, port: u16) -> Result<HttpPeer, LegError> {
        let mut address = self.address(target).await?;
        address.set_port(port);
        Ok(peer(address, &target.host, EngineTls::Plain))
    }

    async fn address(&self, target: &Target) -> Result<SocketAddr, LegError> {
        let unknown = |cause| LegError::Connect { peer: target.to_string(), cause };
        let found: Vec<SocketAddr> = match target.address() {
            Some(address) => vec![address],
            None => {
                let found = tokio::net::lookup_host((target.host.as_str(), target.port)).await;
                found.map_err(|error| unknown(error.to_string()))?.collect()
            }
        };
        first_engine(&found).map_err(|cause| unknown(cause.to_owned()))
    }

    /// Sends a request and waits for the head of its answer. Where a kept connection turns out to
    /// be closed, the next one is tried.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection, which aborts the request.
    pub(crate) async fn send(
        &self,
        peer: &HttpPeer,
        head: &RequestHeader,
        body: &Bytes,
    ) -> Result<Leg, LegError> {
        let mut stale = 0;
        loop {
            let (mut leg, kept) = self.connect(peer).await?;
            match leg.ask(head, body, self.settings.head_timeout).await {
                Ok(()) => {
                    leg.session.read_timeout = Some(self.settings.idle_timeout);
                    return Ok(leg);
                }
                Err(error) if kept && stale < STALE_MAX && is_stale(&error) => stale += 1,
                Err(error) => return Err(leg.failed(&error, self.settings.head_timeout)),
            }
        }
    }

    /// Begins a request whose body is written by [`Leg::write`].
    ///
    /// # Errors
    ///
    /// When the engine cannot be reached.
    pub(crate) async fn begin(
        &self,
        peer: &HttpPeer,
        head: &RequestHeader,
    ) -> Result<Leg, LegError> {
        let (mut leg, _) = self.connect(peer).await?;
        let begun = leg.session.write_request_header(Box::new(head.clone())).await;
        match begun {
            Ok(_) => Ok(leg),
            Err(error) => Err(leg.failed(&error, self.settings.idle_timeout)),
        }
    }

    /// Ends the body of such a request and waits for the head of its answer.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    pub(crate) async fn finish(&self, leg: &mut Leg) -> Result<(), LegError> {
        // Where the engine reads no more, its answer says why.
        let _ = leg.session.finish_body().await;
        leg.session.read_timeout = Some(self.settings.head_timeout);
        let answered = leg.answered().await;
        answered.map_err(|error| leg.failed(&error, self.settings.head_timeout))?;
        leg.session.read_timeout = Some(self.settings.idle_timeout);
        Ok(())
    }

    async fn connect(&self, peer: &HttpPeer) -> Result<(Leg, bool), LegError> {
        // A handshake's future takes 8 KB, for a moment; in place, every request would keep them.
        match Box::pin(self.connector.get_http_session(peer)).await {
            Ok((mut session, kept)) => {
                session.write_timeout = Some(self.settings.idle_timeout);
                Ok((Leg { session, peer: peer.clone(), first: None }, kept))
            }
            Err(error) => Err(LegError::Connect {
                peer: peer._address.to_string(),
                cause: error.etype().as_str().to_owned(),
            }),
        }
    }

    /// Keeps the connection of an answer that was read to its end.
    pub(crate) async fn keep(&self, leg: Leg) {
        self.connector.release_http_session(leg.session, &leg.peer, Some(KEPT_FOR)).await;
    }
}

/// The first address that an engine may have. The owner of a name says what it resolves to, and may
/// change the answer after an operator has allowed the name.
fn first_engine(found: &[SocketAddr]) -> Result<SocketAddr, &'static str> {
    let engine = found.iter().find(|address| !is_metadata(address.ip()));
    match (engine, found.is_empty()) {
        (Some(address), _) => Ok(*address),
        (None, true) => Err("the name has no address"),
        (None, false) => Err("a cloud's metadata is there, which is never called"),
    }
}

/// An engine at an address. Certificates are checked against the host, because without a name
/// nothing would be.
fn peer(address: SocketAddr, host: &str, tls: EngineTls) -> HttpPeer {
    let mut peer = HttpPeer::new(address, tls != EngineTls::Plain, host.to_owned());
    peer.options.verify_cert = tls != EngineTls::Unchecked;
    peer.options.verify_hostname = tls != EngineTls::Unchecked;
    peer.options.connection_timeout = Some(CONNECT_TIMEOUT);
    peer.options.total_connection_timeout = Some(CONNECT_TIMEOUT);
    peer
}

/// Whether the connection was closed before the request got anywhere.
fn is_stale(error: &Error) -> bool {
    matches!(error.retry, RetryType::ReusedOnly) || *error.etype() == ErrorType::WriteError
}

impl Leg {
    async fn ask(
        &mut self,
        head: &RequestHeader,
        body: &Bytes,
        limit: Duration,
    ) -> Result<(), Box<Error>> {
        self.session.write_request_header(Box::new(head.clone())).await?;
        if !body.is_empty() {
            // An engine may answer before it has read everything, and then reads no more.
            let _ = self.session.write_body(body).await;
        }
        let _ = self.session.finish_body().await;
        self.session.read_timeout = Some(limit);
        self.answered().await
    }

    async fn answered(&mut self) -> Result<(), Box<Error>> {
        for _ in 0..INFORMATIONAL_MAX {
            self.session.read_response().await?;
            if self.session.get_status().is_none_or(|status| !status.is_informational()) {
                return Ok(());
            }
        }
        Err(Error::new(ErrorType::InvalidHTTPHeader))
    }

    fn failed(&self, error: &Error, limit: Duration) -> LegError {
        let peer = self.peer._address.to_string();
        match error.etype() {
            ErrorType::ReadTimedout | ErrorType::WriteTimedout => {
                LegError::TimedOut { peer, limit_ms: limit.as_millis() }
            }
            other => LegError::Broken { peer, cause: other.as_str().to_owned() },
        }
    }

    /// Writes a part of the request's body. False where the engine reads no more.
    pub(crate) async fn write(&mut self, part: &[u8]) -> bool {
        self.session.write_body(part).await.is_ok()
    }

    /// The head of the answer.
    pub(crate) fn head(&self) -> &ResponseHeader {
        self.session.resp_header().expect("a leg is handed out once it is answered")
    }

    /// Whether the answer comes as events, from its first token on.
    pub(crate) fn streams(&self) -> bool {
        let kind = self.head().headers.get(http::header::CONTENT_TYPE);
        kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
    }

    /// Whether the body has come to its end.
    pub(crate) fn is_done(&mut self) -> bool {
        self.first.is_none() && self.session.is_body_done()
    }

    /// The next part of the body; nothing at its end.
    ///
    /// # Errors
    ///
    /// When the body breaks off or stalls.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, LegError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        if self.session.is_body_done() {
            return Ok(None);
        }
        let limit = self.session.read_timeout.unwrap_or_default();
        self.session.read_body_bytes().await.map_err(|error| self.failed(&error, limit))
    }

    /// Waits until some of the body is there, or its end. It stays to be read.
    ///
    /// # Errors
    ///
    /// As [`Leg::next`].
    pub(crate) async fn begun(&mut self) -> Result<(), LegError> {
        if self.first.is_none() {
            self.first = self.next().await?;
        }
        Ok(())
    }

    /// Waits until so much of the body is there that `enough` says so, or its end, or `limit`
    /// bytes. It stays to be read.
    ///
    /// # Errors
    ///
    /// As [`Leg::next`].
    pub(crate) async fn until(
        &mut self,
        enough: impl Fn(&[u8]) -> bool,
        limit: usize,
    ) -> Result<&[u8], LegError> {
        let mut seen = BytesMut::new();
        while seen.len() < limit && !enough(&seen) {
            match self.next().await? {
                Some(part) => seen.extend_from_slice(&part),
                None => break,
            }
        }
        self.first = Some(seen.freeze()).filter(|seen| !seen.is_empty());
        Ok(self.first.as_deref().unwrap_or_default())
    }

    /// The whole body.
    ///
    /// # Errors
    ///
    /// As [`Leg::next`], and for a body of more than `limit` bytes.
    pub(crate) async fn whole(&mut self, limit: usize) -> Result<Bytes, LegError> {
        let first = self.next().await?.unwrap_or_default();
        if self.is_done() && first.len() <= limit {
            return Ok(first);
        }
        let mut body = BytesMut::from(&first[..]);
        while let Some(part) = self.next().await? {
            body.extend_from_slice(&part);
            if body.len() > limit {
                return Err(LegError::TooLong { peer: self.peer._address.to_string(), limit });
            }
        }
        Ok(body.freeze())
    }
}

impl From<LegError> for ApiError {
    fn from(error: LegError) -> Self {
        match error {
            LegError::TimedOut { .. } => Self::gateway_timeout(error.to_string()),
            _ => Self::bad_gateway(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::metadata::tests::METADATA;

    #[test]
    fn no_name_leads_to_metadata() {
        let engine: SocketAddr = "10.0.0.1:80".parse().expect("an address");
        for address in METADATA {
            let address: SocketAddr = format!("{address}:80").parse().expect("an address");
            assert!(first_engine(&[address]).is_err(), "{address}");
            assert_eq!(first_engine(&[address, engine]), Ok(engine), "{address}");
        }
        assert_eq!(first_engine(&[]), Err("the name has no address"));
    }

    #[tokio::test]
    async fn metadata_is_not_dialled_by_address_either() {
        let engines = Engines::new(UpstreamSettings {
            head_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(1),
            decoder_tls: EngineTls::Plain,
            prefiller_tls: EngineTls::Plain,
            ca_file: None,
        });
        for address in METADATA {
            let target = format!("{address}:80").parse().expect("a target");
            for refused in [
                engines.engine(&target, EngineTls::Plain).await.map(drop),
                engines.prefiller(&target).await.map(drop),
                engines.bootstrap(&target, 8998).await.map(drop),
            ] {
                let error = refused.expect_err("it is not called").to_string();
                assert!(error.contains("metadata"), "{error}");
            }
        }
    }
}
