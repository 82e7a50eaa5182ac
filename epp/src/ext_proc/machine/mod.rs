//! One stream as a state machine: messages of the data plane in, messages to it out. It does no
//! I/O and waits for nothing; [`session`](super::session) drives it.
//!
//! # Modes
//!
//! What may be answered when depends on how the data plane sends bodies. It says so in the
//! `ProtocolConfiguration` of its first message; where that is missing, which is normal,
//! [`ExtProcSettings::assumed_modes`] hold, and nothing that comes later could tell better: a data
//! plane that waits for an answer to the head looks like one whose body is late.
//!
//! | mode | the head is answered | the decision rests on |
//! | --- | --- | --- |
//! | full duplex | when the body is complete | all of it |
//! | `BUFFERED`, `BUFFERED_PARTIAL` | at once, else no body comes; the answer to the body changes the head | all of it; the head alone if the buffer was too small |
//! | `STREAMED`, body comes unasked | when the body is complete | all of it; past [`ExtProcSettings::max_streamed_bytes`] as where the body waits |
//! | `STREAMED`, body waits | at once; a body that can be screened is held back until it is whole | the head |
//! | `NONE` | at once | the head |
//!
//! In all modes but full duplex every message is answered with one message. Data planes give up
//! on an answer after their `message_timeout` then (200 ms unless told otherwise); in full duplex
//! they wait.
//!
//! Where the answer's body is not sent, a watch that wants it sees the head, and is dropped when
//! the data plane ends the stream, which it does with the answer.
//!
//! All modes, with and without a stream that ends early, were tried on Envoy 1.40.
//!
//! Source: `ProcessingMode` and `ProtocolConfiguration` of Envoy's ext-proc filter, and its
//! `processor_state.cc` for what it holds back until which answer.

mod decision;
mod late;
mod phase;
mod request;
mod response;
#[cfg(test)]
mod tests;

use super::body::chunks;
use super::budget::BodyShare;
use super::message::{
    BodyChange, Direction, HeadChange, Incoming, Metadatum, Outgoing, Part, PartAnswer,
};
use super::refuse;
use super::settings::{BodyMode, ExtProcSettings, Modes};
use crate::exchange::{Interest, Refusal, RequestHead, Watch};
use bytes::Bytes;
use phase::{AnswerPhase, RequestPhase};
use stator_epp_scheduler::Subset;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

/// A breach of the protocol by a data plane.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    /// A message that cannot come here.
    #[error("unexpected {what} {place}")]
    Unexpected {
        /// The message.
        what: &'static str,
        /// Place in the stream.
        place: &'static str,
    },
    /// A way to send bodies that we do not know.
    #[error("body send mode {0} is not supported")]
    Mode(i32),
}

/// Next step of a stream.
pub(crate) enum MachineStep {
    /// Send a message.
    Send(Outgoing),
    /// Ask for a decision, and bring it with [`Machine::routed`].
    Route(RequestHead, Option<Vec<Bytes>>),
    /// Wait for a message of the data plane, or for the decision.
    Wait,
    /// End the stream.
    Close(Result<(), Violation>),
}

/// The state of one stream.
pub(crate) struct Machine<W> {
    settings: Arc<ExtProcSettings>,
    modes: Modes,
    /// Whether the operator was told that bodies come too late on this connection.
    late_bodies_known: Arc<AtomicBool>,
    /// Whether the data plane sends nothing more.
    half_closed: bool,
    /// Whether the first message, which tells the modes, has come.
    begun: bool,
    request: RequestPhase,
    reply: AnswerPhase,
    subset: Option<Subset>,
    prefix_hashes: Vec<u64>,
    served: Option<String>,
    /// Budget that the request's body takes.
    share: BodyShare,
    watch: Option<W>,
    interest: Interest,
    out: VecDeque<Outgoing>,
    route: Option<(RequestHead, Option<Vec<Bytes>>)>,
    close: Option<Result<(), Violation>>,
}

impl<W: Watch> Machine<W> {
    /// A stream on which nothing has come yet. `late_bodies_known` belongs to its connection.
    pub(crate) fn new(settings: Arc<ExtProcSettings>, late_bodies_known: Arc<AtomicBool>) -> Self {
        Self {
            modes: settings.assumed_modes,
            share: settings.body_budget.share(),
            settings,
            late_bodies_known,
            half_closed: false,
            begun: false,
            request: RequestPhase::First,
            reply: AnswerPhase::First,
            subset: None,
            prefix_hashes: Vec::new(),
            served: None,
            watch: None,
            // Until somebody follows the answer, it is let through unseen.
            interest: Interest::Body,
            out: VecDeque::new(),
            route: None,
            close: None,
        }
    }

    /// The next step. Messages go out before anything else is begun.
    pub(crate) fn next(&mut self) -> MachineStep {
        if let Some(message) = self.out.pop_front() {
            return MachineStep::Send(message);
        }
        if matches!(self.request, RequestPhase::Pass | RequestPhase::Done) {
            // All that was read is sent on, or not wanted any more.
            self.share.release();
        }
        if let Some(close) = self.close.clone() {
            return MachineStep::Close(close);
        }
        match self.route.take() {
            Some((head, body)) => MachineStep::Route(head, body),
            None => MachineStep::Wait,
        }
    }

    /// Whether a decision is still wanted. Where it is not, its future is to be dropped.
    pub(crate) fn awaits_decision(&self) -> bool {
        matches!(self.request, RequestPhase::Route(_)) && self.close.is_none()
    }

    /// Whether `message` begins an answer whose request was never shown: if so, bring somebody
    /// with [`Machine::follow`] first.
    pub(crate) fn is_unasked(&self, message: &Incoming) -> bool {
        let part = message.part.as_ref().filter(|_| !message.observing && self.close.is_none());
        let direction = match part {
            Some(Part::Headers { direction, .. } | Part::Body { direction, .. }) => *direction,
            _ => return false,
        };
        direction == Direction::Response
            && matches!(self.request, RequestPhase::First)
            && self.watch.is_none()
    }

    /// Shows `watch` all of the answer to a request that was never shown.
    pub(crate) fn follow(&mut self, watch: W) {
        self.watch = Some(watch);
    }

    /// Bytes of a body that are kept of `message`: room for them comes first, in
    /// [`Machine::share`].
    pub(crate) fn keeps(&self, message: &Incoming) -> usize {
        let Some(Part::Body { direction: Direction::Request, bytes, .. }) = &message.part else {
            return 0;
        };
        let kept = match &self.request {
            RequestPhase::Collect(_) | RequestPhase::Amend(_) => true,
            RequestPhase::Route(answers) => answers.late.is_some() && !answers.ended,
            _ => false,
        };
        if kept && self.close.is_none() { bytes.len() } else { 0 }
    }

    /// The stream's share of the budget for request bodies.
    pub(crate) fn share(&mut self) -> &mut BodyShare {
        &mut self.share
    }

    /// Takes the stream's share, to be grown and put back. Meanwhile the stream holds nothing.
    pub(crate) fn take_share(&mut self) -> BodyShare {
        std::mem::replace(&mut self.share, self.settings.body_budget.share())
    }

    /// No room came for what is to be kept.
    pub(crate) fn no_room(&mut self) {
        self.route = None;
        self.refuse(&refuse::bodies_too_large(self.settings.body_budget.limit_bytes()));
    }

    /// A message came. After the stream's end nothing that comes matters.
    pub(crate) fn on(&mut self, message: Incoming) {
        if self.close.is_some() {
            return;
        }
        if message.observing {
            // Our answers would be ignored: the request is not ours to decide, nor to book.
            return self.close(Ok(()));
        }
        if !self.begun {
            self.begun = true;
            self.modes = message.modes.unwrap_or(self.modes);
            let modes = [self.modes.request, self.modes.response];
            if let Some(BodyMode::Unknown(mode)) = modes.into_iter().find(BodyMode::is_unknown) {
                return self.close(Err(Violation::Mode(mode)));
            }
        }
        if self.settings.subset_filter && message.subset.is_some() {
            self.subset = message.subset;
        }
        self.prefix_hashes =
            message.prefix_hashes.unwrap_or(std::mem::take(&mut self.prefix_hashes));
        self.served = message.served.or(self.served.take());
        let Some(part) = message.part else { return };
        if let Err(violation) = self.part(part) {
            self.close(Err(violation));
        }
    }

    /// The data plane will send nothing more. A decision that is awaited is still answered; like
    /// `io.EOF` and a cancellation in the llm-d router, this is no error.
    pub(crate) fn half_closed(&mut self) {
        self.half_closed = true;
        if !self.awaits_decision() {
            self.give_up();
        }
    }

    /// Whether the request was revoked, which ends the stream. Wakes the task when it is.
    pub(crate) fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(watch) = self.watch.as_mut().filter(|_| self.close.is_none()) else {
            return Poll::Pending;
        };
        let Poll::Ready(refusal) = watch.poll_revoked(cx) else { return Poll::Pending };
        // Its place is free from here on.
        self.watch = None;
        self.refuse(&refusal);
        Poll::Ready(())
    }

    /// Ends the stream without what it still waits for.
    pub(crate) fn give_up(&mut self) {
        self.request = RequestPhase::Done;
        self.close(Ok(()));
    }

    fn part(&mut self, part: Part) -> Result<(), Violation> {
        use Direction::{Request, Response};
        match part {
            Part::Headers { direction: Request, fields, end } => self.request_headers(fields, end),
            Part::Body { direction: Request, bytes, end } => self.request_body(bytes, end),
            Part::Trailers { direction: Request } => self.request_trailers(),
            Part::Headers { direction: Response, fields, end } => self.reply_headers(fields, end),
            Part::Body { direction: Response, bytes, end } => self.reply_body(bytes, end),
            Part::Trailers { direction: Response } => self.reply_trailers(),
        }
    }

    /// Ends the stream once what is to be sent is sent. The first reason counts.
    fn close(&mut self, how: Result<(), Violation>) {
        if let Err(violation) = &how {
            tracing::debug!(%violation, "stream refused");
        }
        self.close.get_or_insert(how);
        self.route = None;
    }

    fn refuse(&mut self, refusal: &Refusal) {
        self.request = RequestPhase::Done;
        let immediate = refuse::immediate(refusal, self.settings.error_format);
        self.send(PartAnswer::Refuse(immediate));
        self.close(Ok(()));
    }

    fn send(&mut self, answer: PartAnswer) {
        self.send_with(answer, Vec::new());
    }

    fn send_with(&mut self, answer: PartAnswer, metadata: Vec<Metadatum>) {
        self.out.push_back(Outgoing { answer, metadata });
    }

    /// Sends a body in full duplex. An empty body is one empty chunk, which carries its end.
    fn send_duplex(&mut self, direction: Direction, body: Vec<Bytes>, end: bool) {
        let answer = |pieces, end| {
            PartAnswer::Body(direction, HeadChange::default(), BodyChange::Streamed { pieces, end })
        };
        let mut last: Option<Vec<Bytes>> = None;
        chunks(body, |chunk| {
            if let Some(full) = last.replace(chunk) {
                self.send(answer(full, false));
            }
        });
        match last {
            Some(chunk) => self.send(answer(chunk, end)),
            None if end => self.send(answer(Vec::new(), true)),
            None => {}
        }
    }

    /// Lets a message of any kind but a body in full duplex pass.
    fn pass_body(&mut self, direction: Direction) {
        self.send(PartAnswer::Body(direction, HeadChange::default(), BodyChange::Keep));
    }
}

impl BodyMode {
    fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}
