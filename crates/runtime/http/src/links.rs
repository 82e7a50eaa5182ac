//! Connections to one server; the task that waits for an answer reads its connection itself.
//!
//! A token that arrives wakes one task, which reads the socket and decodes: no other task sits in
//! between. Nobody watches idle connections; a closed one is discovered when it is taken for the
//! next request.

use crate::buffers::Buffers;
use crate::framing::{AnswerHead, Framing};
use crate::wire::{Acknowledge, SendError, Wire};
use crate::{HttpError, Origin};
use http::StatusCode;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::runtime::{self, Handle};
use tokio::time::{Instant, timeout};

/// Settings of connections to one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Idle connections are closed after this.
    pub idle_timeout: Duration,
    /// Most idle connections that are kept.
    pub idle_max: usize,
    /// When what arrives is acknowledged.
    pub acknowledge: Acknowledge,
    /// Whether a request is sent again if a kept connection was closed without a byte of an answer:
    /// only for requests that a server may see twice.
    pub repeats: bool,
}

impl Default for LinkSettings {
    /// No limit of time or number; nothing is sent again.
    fn default() -> Self {
        Self {
            connect_timeout: Duration::MAX,
            idle_timeout: Duration::MAX,
            idle_max: usize::MAX,
            acknowledge: Acknowledge::AsUsual,
            repeats: false,
        }
    }
}

/// The connections to one server.
pub struct Links {
    origin: Origin,
    settings: LinkSettings,
    buffers: Arc<Buffers>,
    idle: Arc<Idle>,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("to", &self.origin).field("up", &self.is_up()).finish()
    }
}

/// Connections that wait for their next request, the latest last.
struct Idle {
    timeout: Duration,
    max: usize,
    links: Mutex<Vec<(Instant, Link)>>,
}

struct Link {
    /// The runtime that watches its socket. Use from another runtime would wake this one's threads.
    runtime: runtime::Id,
    wire: Wire,
}

/// The head of an answer, and its body to be read.
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// Whether the body is a stream of events (`text/event-stream`).
    pub is_event_stream: bool,
    /// The target of a redirection.
    pub location: Option<String>,
    /// The body.
    pub body: AnswerBody,
}

impl Links {
    /// Connections to a server. None is made yet.
    pub fn new(origin: Origin, settings: LinkSettings) -> Self {
        Self::sharing(origin, settings, Arc::default())
    }

    /// Connections that share `buffers` with others. A connection holds one only from the first
    /// byte of an answer to the last.
    pub fn sharing(origin: Origin, settings: LinkSettings, buffers: Arc<Buffers>) -> Self {
        let LinkSettings { idle_timeout: timeout, idle_max: max, .. } = settings;
        let idle = Arc::new(Idle { timeout, max, links: Mutex::default() });
        Self { origin, settings, buffers, idle }
    }

    /// Closes connections that were idle for too long.
    pub fn prune(&self) {
        self.idle.prune();
    }

    /// Whether a connection waits for the next request.
    pub fn is_up(&self) -> bool {
        !self.idle.links.lock().is_empty()
    }

    /// Sends a request and waits for the head of its answer. The body that is sent follows the head
    /// in the same write.
    ///
    /// # Errors
    ///
    /// [`HttpError`]; the connection is then closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection, which tells the server that nobody wants the
    /// answer.
    pub async fn send(&self, head: &[u8], body: &[u8]) -> Result<Answer, HttpError> {
        while let Some(mut link) = self.idle.take().await {
            match link.wire.write(head, body).await {
                // It was closed before anything was sent: the next one may take it.
                Err(SendError { entirely: true, .. }) => {}
                written => match self.answer(link, written).await {
                    Err(HttpError::Unanswered(_)) if self.settings.repeats => {}
                    answer => return answer,
                },
            }
        }
        let mut link = self.connect().await?;
        let written = link.wire.write(head, body).await;
        self.answer(link, written).await
    }

    async fn connect(&self) -> Result<Link, HttpError> {
        let limit = self.settings.connect_timeout;
        let io = timeout(limit, self.origin.connect()).await.unwrap_or_else(|_| {
            let why = format!("no connection within {limit:?}");
            Err(HttpError::Connect(Error::new(ErrorKind::TimedOut, why)))
        })?;
        let wire = Wire::new(io, self.settings.acknowledge, self.buffers.clone());
        Ok(Link { runtime: Handle::current().id(), wire })
    }

    async fn answer(
        &self,
        mut link: Link,
        written: Result<(), SendError>,
    ) -> Result<Answer, HttpError> {
        // Also where not all was taken: a server may refuse a request that it has not read.
        let head = match (link.wire.read_head().await, written) {
            (Ok(head), Ok(())) => head,
            (Ok(head), Err(_)) => AnswerHead { keeps: false, ..head },
            (Err(HttpError::Unanswered(_)), Err(SendError { error, .. })) => {
                return Err(HttpError::Unanswered(error));
            }
            (Err(error), _) => return Err(error),
        };
        let AnswerHead { status, framing, keeps, is_event_stream, location } = head;
        let mut body = AnswerBody { framing, link: Some(link), keeps, idle: self.idle.clone() };
        body.give_back();
        Ok(Answer { status, is_event_stream, location, body })
    }
}

impl Idle {
    /// Takes the connection of this runtime that was used last and is still good; closes stale ones
    /// on the way.
    async fn take(&self) -> Option<Link> {
        loop {
            let (since, mut link) = self.pop(Handle::current().id())?;
            if since.elapsed() >= self.timeout {
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
        let mut links = self.links.lock();
        let last = links.iter().rposition(|(_, link)| link.runtime == runtime)?;
        Some(links.remove(last))
    }

    fn prune(&self) {
        self.links.lock().retain(|(since, _)| since.elapsed() < self.timeout);
    }

    fn put(&self, mut link: Link) {
        let clean = link.wire.rest();
        let mut links = self.links.lock();
        if clean && links.len() < self.max {
            links.push((Instant::now(), link));
        }
    }
}

/// The body of an answer. Dropping it early closes the connection; reading it to its end returns
/// the connection for reuse.
pub struct AnswerBody {
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
    /// [`HttpError`] where the body broke off; nothing follows.
    ///
    /// # Cancel safety
    ///
    /// Bytes that were not handed on stay for the next call.
    pub async fn read(&mut self, mut hand_on: impl FnMut(&[u8])) -> Result<bool, HttpError> {
        poll_fn(|context| self.poll_read(context, &mut hand_on)).await
    }

    /// Whether there is nothing more to read.
    pub fn is_over(&self) -> bool {
        self.link.is_none()
    }

    /// Polls for [`Self::read`].
    ///
    /// # Errors
    ///
    /// See [`Self::read`].
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        hand_on: impl FnMut(&[u8]),
    ) -> Poll<Result<bool, HttpError>> {
        let Some(link) = &mut self.link else { return Poll::Ready(Ok(false)) };
        let handed = ready!(link.wire.poll_body(context, &mut self.framing, hand_on));
        Poll::Ready(self.follow(handed))
    }

    /// Reads the rest of the body behind what is in `bytes`, at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// [`HttpError`]; a connection whose answer was not read to its end is then closed.
    pub async fn collect(&mut self, bytes: &mut Vec<u8>, limit: usize) -> Result<(), HttpError> {
        let (start, too_large) = (bytes.len(), || HttpError::TooLarge { limit });
        if matches!(self.framing, Framing::Length(left) if left > limit as u64) {
            self.link = None;
            return Err(too_large());
        }
        while poll_fn(|context| self.poll_into(context, bytes)).await? {
            if bytes.len() - start > limit {
                self.link = None;
                return Err(too_large());
            }
        }
        Ok(())
    }

    fn poll_into(
        &mut self,
        context: &mut Context<'_>,
        bytes: &mut Vec<u8>,
    ) -> Poll<Result<bool, HttpError>> {
        let Some(link) = &mut self.link else { return Poll::Ready(Ok(false)) };
        let handed = ready!(link.wire.poll_body_into(context, &mut self.framing, bytes));
        Poll::Ready(self.follow(handed))
    }

    /// Follows a read: whether it gave bytes, or the body has ended.
    fn follow(&mut self, handed: Result<usize, HttpError>) -> Result<bool, HttpError> {
        self.give_back();
        if matches!(handed, Ok(1..)) {
            return Ok(true);
        }
        // The body has ended, or the connection.
        self.link = None;
        match handed {
            Ok(_) if self.framing.may_end() => Ok(false),
            Ok(_) => Err(HttpError::Broken(ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(error),
        }
    }

    /// Returns the connection for reuse once the body is over, or closes it where the server said
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
