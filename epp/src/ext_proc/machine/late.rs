//! A body that comes after its head was answered, as Envoy streams bodies by default: held back
//! piece by piece, and changed when it is whole.

use super::decision::replacement;
use super::phase::RequestPhase;
use super::{Machine, Violation};
use crate::exchange::Watch;
use crate::ext_proc::body::same;
use crate::ext_proc::message::{BodyChange, Direction, HeadChange, PartAnswer};
use crate::ext_proc::refuse;
use bytes::Bytes;

impl<W: Watch> Machine<W> {
    /// A piece of a late body came: it is held back, or it was the last. Every piece has one
    /// answer.
    pub(super) fn late_body(&mut self, bytes: Bytes, end: bool) {
        let RequestPhase::Amend(late) = &mut self.request else { return };
        late.push(bytes.clone());
        if let Err(refusal) = self.check_size(late_size(&self.request)) {
            return self.refuse(&refusal);
        }
        let RequestPhase::Amend(late) = &mut self.request else { return };
        // A piece that is held back is answered with nothing; the last one brings the whole.
        let body = match late.is_whole(end) {
            false => BodyChange::Clear,
            true => {
                let came = std::mem::take(late).into_pieces();
                let amended = match &mut self.watch {
                    Some(watch) => watch.amend(came),
                    None => Ok(came),
                };
                match amended {
                    Ok(body) => {
                        self.request = RequestPhase::Pass;
                        passed(&bytes, body)
                    }
                    Err(refusal) => return self.refuse(&refusal),
                }
            }
        };
        self.send(PartAnswer::Body(Direction::Request, HeadChange::default(), body));
        if end {
            self.request_ended();
        }
    }

    /// A piece of a late body came before the decision.
    pub(super) fn early_piece(&mut self, bytes: Bytes, end: bool) {
        let RequestPhase::Route(answers) = &mut self.request else { return };
        answers.messages += 1;
        answers.ended = end;
        let Some(late) = &mut answers.late else { return };
        late.push(bytes);
        if let Err(refusal) = self.check_size(late_size(&self.request)) {
            self.route = None;
            self.refuse(&refusal);
        }
    }

    /// Trailers end a late body. What was held back of it can be sent on no more, and a request
    /// without its body must not go on.
    pub(super) fn late_trailers(&mut self) -> Result<(), Violation> {
        let RequestPhase::Amend(late) = &self.request else { return Ok(()) };
        if late.size_bytes > 0 {
            self.refuse(&refuse::body_with_trailers());
            return Ok(());
        }
        self.send(PartAnswer::Trailers(Direction::Request));
        self.request_ended();
        Ok(())
    }
}

/// Bytes of the late body that came so far.
fn late_size(request: &RequestPhase) -> usize {
    match request {
        RequestPhase::Amend(late) => late.size_bytes,
        RequestPhase::Route(answers) => answers.late.as_ref().map_or(0, |late| late.size_bytes),
        _ => 0,
    }
}

/// The bytes that replace the last piece that came.
fn passed(last: &Bytes, body: Vec<Bytes>) -> BodyChange {
    match same(std::slice::from_ref(last), &body) {
        true => BodyChange::Keep,
        false => replacement(body),
    }
}
