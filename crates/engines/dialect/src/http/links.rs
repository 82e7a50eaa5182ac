//! Connections to an engine; the task that waits for an answer reads its connection itself.
//!
//! A token that arrives wakes one task, which reads the socket and decodes: no other task sits in
//! between. Nobody watches idle connections; a closed one is discovered when it is taken for the
//! next request.

use super::framing::{AnswerHead, Framing};
use super::wire::{SendError, Wire};
use super::{CONNECT_TIMEOUT, IDLE_TIMEOUT, MAX_IDLE, fault};
use http::{Response, Uri};
use hyper::service::Service;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::runtime::{self, Handle};
use tokio::time::{Instant, timeout};

type Connector = HttpsConnector<HttpConnector>;

/// The connections to one engine.
pub(super) struct Links {
    connector: TowerToHyperService<Connector>,
    address: Uri,
    idle: Arc<Idle>,
}

/// Connections that wait for their next request, the latest last.
#[derive(Default)]
struct Idle(Mutex<Vec<(Instant, Link)>>);

struct Link {
    /// The runtime that watches its socket. Use from another runtime would wake this one's threads.
    runtime: runtime::Id,
    wire: Wire,
}

impl Links {
    pub(super) fn new(connector: Connector, address: Uri) -> Self {
        let connector = TowerToHyperService::new(connector);
        Self { connector, address, idle: Arc::default() }
    }

    /// Closes connections that were idle for too long.
    pub(super) fn prune(&self) {
        self.idle.prune();
    }

    /// Sends a request and waits for the head of its answer. The error is text for a
    /// [`Fault`](crate::Fault).
    pub(super) async fn send(
        &self,
        head: &[u8],
        body: &[u8],
    ) -> Result<Response<AnswerBody>, String> {
        while let Some(mut link) = self.idle.take().await {
            match link.wire.write(head, body).await {
                // It was closed before anything was sent: the next one may take it.
                Err(SendError { entirely: true, .. }) => {}
                written => return self.answer(link, written).await,
            }
        }
        let mut link = self.connect().await?;
        let written = link.wire.write(head, body).await;
        self.answer(link, written).await
    }

    async fn connect(&self) -> Result<Link, String> {
        let connected = timeout(CONNECT_TIMEOUT, self.connector.call(self.address.clone()));
        let stream = match connected.await {
            Ok(stream) => stream.map_err(|error| fault::with_causes(&*error))?,
            Err(_) => return Err(format!("no connection within {CONNECT_TIMEOUT:?}")),
        };
        Ok(Link { runtime: Handle::current().id(), wire: Wire::new(stream) })
    }

    async fn answer(
        &self,
        mut link: Link,
        written: Result<(), SendError>,
    ) -> Result<Response<AnswerBody>, String> {
        // Also where not all was taken: an engine may refuse a request that it has not read.
        let AnswerHead { status, framing, keeps } = match (link.wire.read_head().await, written) {
            (Ok(head), Ok(())) => head,
            (Ok(head), Err(_)) => AnswerHead { keeps: false, ..head },
            (Err(_), Err(SendError { error, .. })) | (Err(error), Ok(())) => {
                return Err(fault::with_causes(&error));
            }
        };
        let mut body = AnswerBody { framing, link: Some(link), keeps, idle: self.idle.clone() };
        body.give_back();
        let mut response = Response::new(body);
        *response.status_mut() = status;
        Ok(response)
    }
}

impl Idle {
    /// Takes the connection of this runtime that was used last and is still good; closes stale ones
    /// on the way.
    async fn take(&self) -> Option<Link> {
        loop {
            let (since, mut link) = self.pop(Handle::current().id())?;
            if since.elapsed() >= IDLE_TIMEOUT {
                // Others of this runtime have waited for longer.
                self.prune();
                return None;
            }
            if poll_fn(|context| Poll::Ready(link.wire.is_quiet(context))).await {
                return Some(link);
            }
        }
    }

    fn pop(&self, runtime: runtime::Id) -> Option<(Instant, Link)> {
        let mut idle = self.0.lock();
        let last = idle.iter().rposition(|(_, link)| link.runtime == runtime)?;
        Some(idle.remove(last))
    }

    fn prune(&self) {
        self.0.lock().retain(|(since, _)| since.elapsed() < IDLE_TIMEOUT);
    }

    fn put(&self, link: Link) {
        let mut idle = self.0.lock();
        if idle.len() < MAX_IDLE {
            idle.push((Instant::now(), link));
        }
    }
}

/// The body of an answer. Dropping it early closes the connection; reading it to its end returns
/// the connection for reuse.
pub(crate) struct AnswerBody {
    framing: Framing,
    /// `None` once the connection was given back or has ended.
    link: Option<Link>,
    keeps: bool,
    idle: Arc<Idle>,
}

impl AnswerBody {
    /// Waits for more of the body and hands on all that has come; false at the end of the body.
    ///
    /// # Errors
    ///
    /// An error where the body broke off; nothing follows.
    ///
    /// # Cancel safety
    ///
    /// Bytes that were not handed on stay for the next call.
    pub(crate) async fn read(&mut self, mut hand_on: impl FnMut(&[u8])) -> Result<bool, Error> {
        poll_fn(|context| self.poll_read(context, &mut hand_on)).await
    }

    /// Whether there is nothing more to read.
    pub(crate) fn is_over(&self) -> bool {
        self.link.is_none()
    }

    /// Polls for [`Self::read`].
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        hand_on: impl FnMut(&[u8]),
    ) -> Poll<Result<bool, Error>> {
        let Some(link) = &mut self.link else { return Poll::Ready(Ok(false)) };
        let handed = ready!(link.wire.poll_body(context, &mut self.framing, hand_on));
        self.give_back();
        if matches!(handed, Ok(1..)) {
            return Poll::Ready(Ok(true));
        }
        // The body has ended, or the connection.
        self.link = None;
        Poll::Ready(match handed {
            Ok(_) if self.framing.may_end() => Ok(false),
            Ok(_) => Err(ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        })
    }

    /// Returns the connection for reuse once the body is over, or closes it where the engine said
    /// so.
    fn give_back(&mut self) {
        if self.framing.is_over()
            && let Some(link) = self.link.take()
            && self.keeps
        {
            self.idle.put(link);
        }
    }
}
