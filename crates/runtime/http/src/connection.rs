//! One request at a time over one kept connection, with room for a whole answer.

use crate::buffers::Buffers;
use crate::links::{LinkSettings, Links};
use crate::{HttpError, Origin};
use std::sync::Arc;

/// A connection that is made on first use, kept, and remade after a loss.
#[derive(Debug)]
pub struct Connection {
    links: Links,
    buffers: Arc<Buffers>,
    body: Vec<u8>,
    location: Option<String>,
}

/// A response, in the connection's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// The status.
    pub status: u16,
    /// The target of a redirection.
    pub location: Option<&'a str>,
    /// The body.
    pub body: &'a [u8],
}

impl Connection {
    /// Makes a connection object; the connection itself is made on first use.
    pub fn new(origin: Origin) -> Self {
        Self::sharing(origin, Arc::default())
    }

    /// Makes a connection that shares `buffers` with others. It holds one for a body only from the
    /// head of a response until [`Connection::done`].
    pub fn sharing(origin: Origin, buffers: Arc<Buffers>) -> Self {
        let settings = LinkSettings { idle_max: 1, repeats: true, ..LinkSettings::default() };
        let links = Links::sharing(origin, settings, buffers.clone());
        Self { links, buffers, body: Vec::new(), location: None }
    }

    /// Releases the last response.
    pub fn done(&mut self) {
        self.buffers.give_body(std::mem::take(&mut self.body));
    }

    /// Whether the connection is up for the next request.
    pub fn is_up(&self) -> bool {
        self.links.is_up()
    }

    /// Sends `request`, a whole HTTP/1.1 request as [`request`](crate::request()) writes it, and
    /// reads the response, at most `limit` bytes of body. If the server closed a kept connection
    /// meanwhile, the request is sent again on a new one, once.
    ///
    /// # Errors
    ///
    /// [`HttpError`]; a connection whose response was not read to its end is then closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection; the next request makes a new one.
    pub async fn exchange(
        &mut self,
        request: &[u8],
        limit: usize,
    ) -> Result<Response<'_>, HttpError> {
        self.done();
        let mut answer = self.links.send(request, b"").await?;
        self.body = self.buffers.body();
        answer.body.collect(&mut self.body, limit).await?;
        self.location = answer.location;
        let (location, body) = (self.location.as_deref(), &self.body[..]);
        Ok(Response { status: answer.status.as_u16(), location, body })
    }
}
