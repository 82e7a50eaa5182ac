//! One stream at work: reads messages, drives the [`Machine`], asks the director, writes answers.
//! It is the body of the HTTP response, so that it runs in the task that sends it: a stream needs
//! no task and no channel of its own.

use super::budget::BodyShare;
use super::frames::{Frames, Writer};
use super::machine::{Machine, MachineStep, Violation};
use super::message::Incoming;
use super::wire;
use crate::exchange::{Director, Refusal, RoutedRequest};
use bytes::Bytes;
use futures::FutureExt;
use http::HeaderMap;
use hyper::body::Frame;
use stator_epp_metrics::OpenStream;
use stator_runtime::quota::QuotaRefusal;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};
use tonic::{Code, Status};

/// Bytes of answers that are gathered before they are handed to HTTP/2, which sends them as its
/// windows allow. A body that is sent whole is in memory anyhow: this bounds what is written, not
/// what is held.
const WRITE_MAX_BYTES: usize = 32 << 10;

/// Longest wait for a decision after a data plane has half-closed. Envoy waits as long for the end
/// of a stream that it half-closes because its client hung up, which looks the same.
///
/// Source: the feature `ext_proc_graceful_grpc_close` of Envoy.
const HALF_CLOSED_WAIT: Duration = Duration::from_secs(1);

type Decision<W> = Pin<Box<dyn Future<Output = Result<RoutedRequest<W>, Refusal>> + Send>>;

/// The share of a stream once it has grown, or has not.
type Room = Pin<Box<dyn Future<Output = (BodyShare, Result<(), QuotaRefusal>)> + Send>>;

/// One stream.
pub(crate) struct Session<D: Director> {
    director: Arc<D>,
    frames: Frames,
    machine: Machine<D::Watch>,
    decision: Option<Decision<D::Watch>>,
    /// The time at which the decision is given up, once the data plane sends nothing more.
    parting: Option<Pin<Box<Sleep>>>,
    /// A message that waits for room for its body.
    stalled: Option<(Incoming, Room)>,
    writer: Writer,
    /// The status that ends the stream, once it is known.
    end: Option<Status>,
    ended: bool,
    /// Counts the stream; dropped before its end, it counts as cancelled.
    count: Option<OpenStream>,
}

impl<D: Director> Session<D> {
    /// A stream whose messages come on `frames`, answered as `machine` says.
    pub(crate) fn new(
        director: Arc<D>,
        machine: Machine<D::Watch>,
        frames: Frames,
        count: Option<OpenStream>,
    ) -> Self {
        Self {
            director,
            frames,
            machine,
            decision: None,
            parting: None,
            stalled: None,
            writer: Writer::default(),
            end: None,
            ended: false,
            count,
        }
    }

    /// Works until something is to be written, or nothing can be done.
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.end.is_none() && self.writer.size_bytes() < WRITE_MAX_BYTES {
            match self.machine.next() {
                MachineStep::Send(message) => wire::encode(message, &mut self.writer),
                MachineStep::Route(head, body) => {
                    let director = self.director.clone();
                    let decision = async move { director.route(head, body).await };
                    self.decision = Some(Box::pin(decision));
                }
                MachineStep::Close(Ok(())) => self.end = Some(Status::ok("")),
                MachineStep::Close(Err(violation)) => self.end = Some(violation.into()),
                MachineStep::Wait => match self.poll_event(cx) {
                    Poll::Ready(()) => {}
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
        Poll::Ready(())
    }

    /// Waits for the decision or a message, whichever comes first: a client that hangs up while
    /// its request is decided is noticed. A data plane that sends nothing more gets its answer all
    /// the same, if it is there soon.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.machine.awaits_decision() {
            self.decision = None;
        }
        if let Some(decision) = &mut self.decision
            && let Poll::Ready(decided) = decision.poll_unpin(cx)
        {
            self.decision = None;
            self.machine.routed(decided);
            return Poll::Ready(());
        }
        if self.machine.poll_revoked(cx).is_ready() {
            return Poll::Ready(());
        }
        if let Some(parting) = &mut self.parting {
            return parting.as_mut().poll(cx).map(|()| self.machine.give_up());
        }
        if let Some((_, room)) = &mut self.stalled {
            // Nothing more is read meanwhile, so that the data plane waits too.
            let (share, grown) = ready!(room.as_mut().poll(cx));
            *self.machine.share() = share;
            if let Some((message, _)) = self.stalled.take() {
                match grown {
                    // The decision may have come meanwhile, and nothing may be kept any more.
                    Err(_) if self.machine.keeps(&message) > 0 => self.machine.no_room(),
                    _ => self.machine.on(message),
                }
            }
            return Poll::Ready(());
        }
        self.frames.poll_next(cx).map(|message| match message {
            Some(Ok(frame)) => match wire::decode(&frame) {
                Ok(message) => self.came(message),
                Err(error) => self.end = Some(Status::invalid_argument(error.to_string())),
            },
            Some(Err(status)) => self.end = Some(status),
            None => {
                self.machine.half_closed();
                let waits = self.machine.awaits_decision();
                self.parting = waits.then(|| Box::pin(sleep(HALF_CLOSED_WAIT)));
            }
        })
    }

    /// A message came: it waits where there is no room for what is kept of it.
    fn came(&mut self, message: Incoming) {
        let bytes = self.machine.keeps(&message);
        if bytes > 0 && !self.machine.share().grow(bytes) {
            let mut share = self.machine.take_share();
            let room = async move {
                let grown = share.grow_within(bytes).await;
                (share, grown)
            };
            self.stalled = Some((message, Box::pin(room)));
            return;
        }
        if self.machine.is_unasked(&message) {
            self.machine.follow(self.director.unasked());
        }
        self.machine.on(message);
    }

    /// The trailers, which end the stream. What the stream held is given back before they leave.
    fn finish(&mut self) -> HeaderMap {
        self.ended = true;
        self.decision = None;
        let status = self.end.take().unwrap_or_else(|| Status::ok(""));
        if let Some(count) = self.count.take() {
            count.ended(status.code().into());
        }
        let mut trailers = HeaderMap::with_capacity(2);
        // Only a message that cannot be written as a header fails, and it is written in percent
        // encoding.
        if status.add_header(&mut trailers).is_err() {
            trailers.insert("grpc-status", (Code::Internal as i32).into());
        }
        trailers
    }
}

impl<D: Director> hyper::body::Body for Session<D> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let work = this.poll_work(cx);
        if let Some(bytes) = this.writer.pop() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        work.map(|()| Some(Ok(Frame::trailers(this.finish()))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

// Nothing in it is pinned: the one future is in a box.
impl<D: Director> Unpin for Session<D> {}

impl From<Violation> for Status {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Unexpected { .. } => Self::invalid_argument(violation.to_string()),
            Violation::Mode(_) => Self::unimplemented(violation.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
