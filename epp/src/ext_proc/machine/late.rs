//! A body that comes after its head was answered, as Envoy streams bodies by default: held back
//! piece by piece, and changed when it is whole.

use super::request::Ask;
use super::{Machine, Violation};
use crate::exchange::Watch;
use crate::ext_proc::body::same;
use crate::ext_proc::machine::decision::replacement;
use crate::ext_proc::message::{Answer, BodyChange, Change, Direction};
use crate::ext_proc::refuse;
use bytes::Bytes;

/// A late body so far; none of its bytes has been sent on.
pub(super) struct LateBody {
    /// Its length, where the head tells.
    length: Option<usize>,
    pieces: Vec<Bytes>,
    size_bytes: usize,
}

impl LateBody {
    /// A body of which nothing came yet.
    pub(super) fn new(length: Option<usize>) -> Self {
        Self { length, pieces: Vec::new(), size_bytes: 0 }
    }
}

impl<W: Watch> Machine<W> {
    /// A piece of a late body came: it is held back, or it was the last, or there is no room for
    /// the whole. Every piece has one answer.
    pub(super) fn late_body(&mut self, bytes: Bytes, end: bool) {
        let Ask::Amend(late) = &mut self.ask else { return };
        late.size_bytes += bytes.len();
        let fits = late.size_bytes <= self.settings.max_streamed_bytes;
        let fits = fits && self.share.grow(bytes.len());
        // A body whose length is known may end without a message that says so.
        let whole = end || late.length == Some(late.size_bytes);
        late.pieces.push(bytes.clone());
        let body = match (fits, whole) {
            (true, false) => BodyChange::Clear,
            (true, true) => {
                let came = std::mem::take(&mut late.pieces);
                let body = self.amended(came);
                self.ask = Ask::Pass;
                passed(&bytes, body)
            }
            (false, _) => {
                let came = std::mem::take(&mut late.pieces);
                self.watch.iter_mut().for_each(Watch::unamended);
                self.ask = Ask::Pass;
                passed(&bytes, came)
            }
        };
        self.send(Answer::Body(Direction::Request, Change::default(), body));
        if end {
            self.request_ended();
        }
    }

    /// Trailers end a late body. What was held back of it can be sent on no more, and a request
    /// without its body must not go on.
    pub(super) fn late_trailers(&mut self) -> Result<(), Violation> {
        let Ask::Amend(late) = &self.ask else { return Ok(()) };
        if late.size_bytes > 0 {
            self.refuse(&refuse::body_with_trailers());
            return Ok(());
        }
        self.send(Answer::Trailers(Direction::Request));
        self.request_ended();
        Ok(())
    }

    fn amended(&mut self, body: Vec<Bytes>) -> Vec<Bytes> {
        match &mut self.watch {
            Some(watch) => watch.amend(body),
            None => body,
        }
    }
}

/// The bytes that replace the last piece that came.
fn passed(last: &Bytes, body: Vec<Bytes>) -> BodyChange {
    match same(std::slice::from_ref(last), &body) {
        true => BodyChange::Keep,
        false => replacement(body),
    }
}
