//! The request half of a stream: what comes of it, until it can be decided and after.

use super::decision::own_headers;
use super::phase::{Carrier, CollectedRequest, LateBody, PendingAnswers, RequestPhase};
use super::{Machine, Violation};
use crate::exchange::{AnswerBody, Interest, Refusal, RequestBody, RequestHead, Watch};
use crate::ext_proc::body::total;
use crate::ext_proc::message::{Direction, HeadChange, HeadFields, PartAnswer};
use crate::ext_proc::refuse;
use crate::ext_proc::settings::BodyMode;
use bytes::Bytes;
use std::sync::atomic::Ordering;

impl<W: Watch> Machine<W> {
    pub(super) fn request_headers(
        &mut self,
        fields: HeadFields,
        end: bool,
    ) -> Result<(), Violation> {
        if !matches!(self.request, RequestPhase::First) {
            return Err(self.unexpected("request headers"));
        }
        if let Some(refusal) = self.head_too_large(&fields) {
            self.refuse(&refusal);
            return Ok(());
        }
        let mut head = RequestHead {
            method: fields.method,
            path: fields.path,
            headers: fields.headers,
            answer: match self.modes.response {
                BodyMode::FullDuplex => AnswerBody::Passes,
                BodyMode::None => AnswerBody::Hidden,
                _ => AnswerBody::Shown,
            },
            ..RequestHead::default()
        };
        let expected = content_length(&head);
        let too_long = |limit| expected.is_some_and(|length| length > limit);
        match self.modes.request {
            _ if end => self.decide(head, PendingAnswers::new(Carrier::Headers, true)),
            BodyMode::FullDuplex | BodyMode::Streamed if too_long(self.settings.max_body_bytes) => {
                let size = expected.unwrap_or_default();
                self.refuse(&refuse::body_too_large(size, self.settings.max_body_bytes));
            }
            BodyMode::FullDuplex => self.collect(head),
            BodyMode::Streamed
                if self.modes.eager && !too_long(self.settings.max_streamed_bytes) =>
            {
                self.collect(head);
            }
            BodyMode::Buffered | BodyMode::BufferedPartial => {
                // Without this answer no body comes.
                self.send(PartAnswer::Headers(Direction::Request, HeadChange::default()));
                self.collect(head);
            }
            mode => {
                let late = mode == BodyMode::Streamed;
                head.body = if late { RequestBody::Late } else { RequestBody::Unseen };
                if !late || !self.modes.eager {
                    self.warn_of_late_bodies();
                }
                let mut answers = PendingAnswers::new(Carrier::Headers, false);
                answers.late = late.then(|| LateBody::new(expected, Vec::new()));
                self.decide(head, answers);
            }
        }
        Ok(())
    }

    pub(super) fn request_body(&mut self, bytes: Bytes, end: bool) -> Result<(), Violation> {
        match &mut self.request {
            RequestPhase::Collect(_) => self.collect_body(bytes, end),
            RequestPhase::Route(answers)
                if answers.carrier == Carrier::Headers && !answers.ended =>
            {
                self.early_piece(bytes, end);
            }
            RequestPhase::Amend(_) => self.late_body(bytes, end),
            RequestPhase::Pass => {
                self.pass_body(Direction::Request);
                if end {
                    self.request_ended();
                }
            }
            _ => return Err(self.unexpected("request body")),
        }
        Ok(())
    }

    pub(super) fn request_trailers(&mut self) -> Result<(), Violation> {
        match &mut self.request {
            RequestPhase::Collect(_) => {
                // Trailers end the body: all that was collected is all there is.
                let carrier = match self.modes.request {
                    BodyMode::FullDuplex => Carrier::Duplex,
                    BodyMode::Streamed => Carrier::Headers,
                    _ => Carrier::Trailers,
                };
                self.decide_collected(PendingAnswers {
                    trailers: true,
                    ..PendingAnswers::new(carrier, true)
                });
            }
            RequestPhase::Route(answers) if !answers.ended => {
                answers.trailers = true;
                answers.ended = true;
            }
            RequestPhase::Amend(_) => return self.late_trailers(),
            RequestPhase::Pass => {
                self.send(PartAnswer::Trailers(Direction::Request));
                self.request_ended();
            }
            _ => return Err(self.unexpected("request trailers")),
        }
        Ok(())
    }

    /// Tells the operator, once for each connection of a data plane, that bodies come too late.
    fn warn_of_late_bodies(&mut self) {
        if self.late_bodies_known.swap(true, Ordering::Relaxed) {
            return;
        }
        let screened = self.modes.request == BodyMode::Streamed;
        tracing::warn!(
            request_body_mode = ?self.modes.request,
            screened,
            "this data plane sends no request body before its head is answered: requests are placed \
             by their heads alone, without model, prompt or tokens, and bodies that are not screened \
             reach engines with every field that their clients set; set request_body_mode to \
             FULL_DUPLEX_STREAMED",
        );
    }

    fn head_too_large(&self, fields: &HeadFields) -> Option<Refusal> {
        let (count, count_max) = (fields.headers.len(), self.settings.max_headers);
        let (size, size_max) = (fields.size_bytes, self.settings.max_header_bytes);
        if count > count_max {
            return Some(refuse::head_too_large("headers", count, count_max));
        }
        (size > size_max).then(|| refuse::head_too_large("bytes", size, size_max))
    }

    fn collect(&mut self, head: RequestHead) {
        self.request =
            RequestPhase::Collect(CollectedRequest { head, pieces: Vec::new(), size_bytes: 0 });
    }

    fn collect_body(&mut self, bytes: Bytes, end: bool) {
        let RequestPhase::Collect(collected) = &mut self.request else { return };
        collected.size_bytes += bytes.len();
        collected.pieces.push(bytes);
        let size = collected.size_bytes;
        if let Err(refusal) = self.check_size(size) {
            return self.refuse(&refusal);
        }
        let RequestPhase::Collect(collected) = &mut self.request else { return };
        match self.modes.request {
            BodyMode::Streamed if !end && size > self.settings.max_streamed_bytes => {
                let pieces = std::mem::take(&mut collected.pieces);
                let messages = pieces.len();
                let late = LateBody::new(content_length(&collected.head), pieces);
                collected.head.body = RequestBody::Late;
                let answers = PendingAnswers::new(Carrier::Headers, false);
                self.decide_head(PendingAnswers { messages, late: Some(late), ..answers });
            }
            BodyMode::FullDuplex if end => {
                self.decide_collected(PendingAnswers::new(Carrier::Duplex, true))
            }
            BodyMode::Streamed if end => {
                self.decide_collected(PendingAnswers::new(Carrier::Headers, true))
            }
            BodyMode::FullDuplex | BodyMode::Streamed => {}
            BodyMode::BufferedPartial if !end && content_length(&collected.head) != Some(size) => {
                // The rest passes unseen: half a body is worth nothing.
                collected.head.body = RequestBody::Unseen;
                self.share.release();
                self.decide_head(PendingAnswers::new(Carrier::Body, false));
            }
            // Trailers may follow, but no more body.
            _ => self.decide_collected(PendingAnswers::new(Carrier::Body, end)),
        }
    }

    /// Asks for a decision with the body that was collected.
    fn decide_collected(&mut self, answers: PendingAnswers) {
        let RequestPhase::Collect(collected) =
            std::mem::replace(&mut self.request, RequestPhase::Done)
        else {
            return;
        };
        let messages = collected.pieces.len();
        self.decide(
            collected.head,
            PendingAnswers { body: Some(collected.pieces), messages, ..answers },
        );
    }

    /// Asks for a decision without the body.
    fn decide_head(&mut self, answers: PendingAnswers) {
        let RequestPhase::Collect(collected) =
            std::mem::replace(&mut self.request, RequestPhase::Done)
        else {
            return;
        };
        self.decide(collected.head, answers);
    }

    fn decide(&mut self, mut head: RequestHead, mut answers: PendingAnswers) {
        head.subset = self.subset.take();
        head.prefix_hashes = std::mem::take(&mut self.prefix_hashes);
        answers.own_headers = own_headers(&head);
        let body = answers.body.clone().filter(|body| total(body) > 0);
        self.request = RequestPhase::Route(answers);
        self.route = Some((head, body));
    }

    /// Checks a body of which `size_bytes` came.
    ///
    /// # Errors
    ///
    /// 413 where one body may not be so large.
    pub(super) fn check_size(&self, size_bytes: usize) -> Result<(), Refusal> {
        let limit = self.settings.max_body_bytes;
        match size_bytes > limit {
            true => Err(refuse::body_too_large(size_bytes, limit)),
            false => Ok(()),
        }
    }

    pub(super) fn request_ended(&mut self) {
        self.request = RequestPhase::Done;
        if self.interest == Interest::Nothing {
            self.close(Ok(()));
        }
    }

    /// The request is answered without us: by the data plane itself, say after a timeout. A
    /// decision that is awaited is given up.
    pub(super) fn abandon_request(&mut self) {
        if !matches!(self.request, RequestPhase::Amend(_) | RequestPhase::Pass | RequestPhase::Done)
        {
            self.request = RequestPhase::Done;
            self.route = None;
        }
    }

    fn unexpected(&self, what: &'static str) -> Violation {
        let place = match self.request {
            RequestPhase::First => "before request headers",
            RequestPhase::Collect(_) => "while the request body comes",
            RequestPhase::Route(_) => "before the request is answered",
            RequestPhase::Amend(_) | RequestPhase::Pass => "after the request is decided",
            RequestPhase::Done => "after the request's end",
        };
        Violation::Unexpected { what, place }
    }
}

fn content_length(head: &RequestHead) -> Option<usize> {
    head.header("content-length")?.parse().ok()
}
