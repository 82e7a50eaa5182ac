//! Reading a request's body: within its limits, its time, and the room that there is for bodies.

use super::Exchange;
use bytes::{Bytes, BytesMut};
use http::header;
use stator_api::openai::error::ApiError;
use tokio::time::{Instant, timeout_at};

/// Capacity that is set aside for a body of known length before any of it has come.
const BODY_RESERVE_MAX_BYTES: usize = 1 << 20;

impl Exchange {
    /// Reads the whole body, into room that is kept until [`Exchange::release_body`].
    ///
    /// # Errors
    ///
    /// 413 for a body past its limit, 408 for one that does not come, 400 for one that is cut; 503
    /// or 429 where there is no room for it.
    pub(crate) async fn body(&mut self) -> Result<Bytes, ApiError> {
        let read = match self.body_length() {
            Ok(expected) => self.read_body(expected).await,
            Err(error) => Err(error),
        };
        self.reusable &= read.is_ok();
        read
    }

    /// Has the client send its body, which is then taken by parts.
    ///
    /// # Errors
    ///
    /// 413 for a body past its limit.
    pub(crate) async fn expect_body(&mut self) -> Result<(), ApiError> {
        let expected = self.body_length();
        self.reusable &= expected.is_ok();
        expected?;
        self.invite().await;
        Ok(())
    }

    /// Length of the body in bytes; `None` where the client does not say.
    fn body_length(&self) -> Result<Option<usize>, ApiError> {
        let limit = self.door.limits().body_bytes;
        let expected: Option<usize> =
            self.header(header::CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok());
        match expected.filter(|bytes| *bytes > limit) {
            Some(bytes) => Err(ApiError::body_too_large(bytes, limit)),
            None => Ok(expected),
        }
    }

    /// Tells a client that waits to be told that its body is welcome. Time for it begins now.
    async fn invite(&mut self) {
        let limits = *self.door.limits();
        if self
            .header(header::EXPECT.as_str())
            .is_some_and(|e| e.eq_ignore_ascii_case("100-continue"))
        {
            let _ = self.session.write_continue_response().await;
        }
        self.body_due = Some(Instant::now() + limits.body_deadline);
    }

    /// The next part of the body, after [`Exchange::expect_body`]; nothing at its end.
    ///
    /// # Errors
    ///
    /// 408 for one that does not come, 400 for one that is cut.
    pub(crate) async fn part(&mut self) -> Result<Option<Bytes>, ApiError> {
        let limits = *self.door.limits();
        let pause = Instant::now() + limits.body_timeout;
        let due = self.body_due.filter(|due| *due < pause);
        let error = match timeout_at(due.unwrap_or(pause), self.session.read_request_body()).await {
            Ok(Ok(part)) => return Ok(part),
            Ok(Err(error)) => ApiError::unreadable_body(error.etype().as_str()),
            Err(_) => {
                self.door.metrics().late("body");
                match due {
                    Some(_) => ApiError::slow_body(limits.body_deadline),
                    None => ApiError::request_timeout(limits.body_timeout),
                }
            }
        };
        self.reusable = false;
        Err(error)
    }

    async fn read_body(&mut self, expected: Option<usize>) -> Result<Bytes, ApiError> {
        let limit = self.door.limits().body_bytes;
        // Room for all of it, before the client is told to send: what is begun can end.
        self.make_room(expected.unwrap_or(0)).await?;
        self.invite().await;
        let Some(first) = self.part().await? else { return Ok(Bytes::new()) };
        if expected == Some(first.len()) {
            return Ok(first);
        }
        let reserve =
            expected.unwrap_or(0).clamp(first.len(), BODY_RESERVE_MAX_BYTES.max(first.len()));
        let mut body = BytesMut::with_capacity(reserve);
        let mut next = Some(first);
        while let Some(part) = next {
            let length = body.len() + part.len();
            if length > limit {
                return Err(ApiError::body_too_large(length, limit));
            }
            if expected.is_none() {
                self.make_room(part.len()).await?;
            }
            body.extend_from_slice(&part);
            next = self.part().await?;
        }
        Ok(body.freeze())
    }

    pub(super) async fn make_room(&mut self, bytes: usize) -> Result<(), ApiError> {
        match &mut self.admission {
            Some(admission) => self.door.make_room(admission, bytes).await,
            None => Ok(()),
        }
    }
}
