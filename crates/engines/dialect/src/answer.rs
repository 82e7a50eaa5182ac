//! Answers as the agent reads them, whichever engine they come from.

use crate::http::{self, MAX_ANSWER_BYTES};
use crate::sse::Reader;
use crate::{Answer, Delta, Fault};
use stator_http::AnswerBody;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// Longest wait for the end of a body after its last event. A body that ends in time gives its
/// connection back; otherwise the connection is closed.
const END_TIMEOUT: Duration = Duration::from_millis(50);

/// Turns the events of an engine's stream into deltas. Pure: it does no I/O.
pub(crate) trait Decoder: Send {
    /// Adds the content of one event to `delta`.
    ///
    /// # Errors
    ///
    /// [`Fault`] where the event reports one or cannot be read. The stream is over.
    fn event(&mut self, event: &[u8], delta: &mut Delta) -> Result<(), Fault>;

    /// Writes the finish into `delta`, once the stream is over.
    ///
    /// # Errors
    ///
    /// [`Fault`] where the answer had no finish, or an unknown one.
    fn end(&mut self, delta: &mut Delta) -> Result<(), Fault>;
}

/// Collects the output of a decoder into deltas: tokens at once, the finish last.
pub(crate) struct Assembly<D> {
    reader: Reader,
    decoder: D,
    delta: Delta,
    state: State,
}

enum State {
    /// More bytes are to come.
    Open,
    /// The answer is complete; the finish is in the delta.
    Said,
    /// The answer broke off. The fault is reported after the delta, which may hold earlier tokens.
    Broken(Fault),
    /// Nothing follows.
    Over,
}

impl<D: Decoder> Assembly<D> {
    pub(crate) fn new(decoder: D) -> Self {
        let reader = Reader::new(MAX_ANSWER_BYTES);
        Self { reader, decoder, delta: Delta::default(), state: State::Open }
    }

    /// Feeds bytes to the decoder as they arrive.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.reader.push(bytes);
        while matches!(self.state, State::Open) {
            let step = match self.reader.next() {
                Ok(None) => return,
                Ok(Some(b"[DONE]")) => return self.end(),
                Ok(Some(event)) => self.decoder.event(event, &mut self.delta),
                Err(too_long) => Err(Fault::Failed(too_long.to_string())),
            };
            if let Err(fault) = step {
                self.state = State::Broken(fault);
            }
        }
    }

    /// Marks the end of the stream: no more bytes follow.
    pub(crate) fn end(&mut self) {
        if matches!(self.state, State::Open) {
            self.state = match self.decoder.end(&mut self.delta) {
                Ok(()) => State::Said,
                Err(fault) => State::Broken(fault),
            };
        }
    }

    fn broke(&mut self, fault: Fault) {
        if matches!(self.state, State::Open) {
            self.state = State::Broken(fault);
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Takes the delta collected so far; `Ok(None)` on an open stream means that nothing new has
    /// come.
    pub(crate) fn take(&mut self) -> Result<Option<Delta>, Fault> {
        let told = self.delta.says_something();
        match std::mem::replace(&mut self.state, State::Over) {
            State::Said => Ok(Some(std::mem::take(&mut self.delta))),
            State::Broken(fault) if !told => Err(fault),
            State::Over => Ok(None),
            state => {
                self.state = state;
                Ok(told.then(|| std::mem::take(&mut self.delta)))
            }
        }
    }
}

impl Delta {
    fn says_something(&self) -> bool {
        !self.tokens.is_empty()
            || self.cached_tokens.is_some()
            || !self.prompt_logprobs.is_empty()
            || self.handover.is_some()
            || self.finish.is_some()
    }
}

/// An answer that comes as server-sent events.
pub(crate) struct Streamed<D> {
    /// Dropped as soon as the answer is over, so that an engine need not wait for its reader.
    body: Option<AnswerBody>,
    assembly: Assembly<D>,
    /// Deadline for the end of a body whose last event was read.
    end: Option<Pin<Box<Sleep>>>,
}

impl<D: Decoder> Streamed<D> {
    pub(crate) fn new(body: AnswerBody, decoder: D) -> Self {
        Self { body: Some(body), assembly: Assembly::new(decoder), end: None }
    }

    /// Waits for the next bytes, or for the end of the body.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Self { body, assembly, .. } = self;
        let read = match body {
            Some(body) => ready!(body.poll_read(context, |bytes| assembly.push(bytes))),
            None => Ok(false),
        };
        match read {
            Ok(true) => {}
            Ok(false) => assembly.end(),
            Err(error) => assembly.broke(http::broken(&error)),
        }
        Poll::Ready(())
    }

    /// Returns the connection for reuse if the body ends within [`END_TIMEOUT`].
    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Some(body) = self.body.as_mut().filter(|body| !body.is_over()) {
            match body.poll_read(context, |_| {}) {
                Poll::Ready(Ok(true)) => continue,
                Poll::Ready(_) => break,
                Poll::Pending => {}
            }
            // After the timeout the connection is closed instead, which is as good.
            let end = self.end.get_or_insert_with(|| Box::pin(sleep(END_TIMEOUT)));
            ready!(end.as_mut().poll(context));
            break;
        }
        self.body = None;
        Poll::Ready(())
    }
}

impl<D: Decoder> Answer for Streamed<D> {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delta>, Fault>> {
        // What was read stays in the assembly until it is taken, and is taken without a wait.
        while self.assembly.is_open() && !self.assembly.delta.says_something() {
            ready!(self.poll_read(context));
        }
        match &self.assembly.state {
            State::Open => {}
            State::Said => ready!(self.poll_close(context)),
            State::Broken(_) | State::Over => self.body = None,
        }
        Poll::Ready(self.assembly.take())
    }
}

/// An answer that came as a whole.
pub(crate) struct Whole(pub(crate) Option<Delta>);

impl Answer for Whole {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delta>, Fault>> {
        Poll::Ready(Ok(self.0.take()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Finish;

    /// Every byte is a token; `!` is a fault, `.` the finish.
    struct Bytewise(bool);

    impl Decoder for Bytewise {
        fn event(&mut self, event: &[u8], delta: &mut Delta) -> Result<(), Fault> {
            for byte in event {
                match byte {
                    b'!' => return Err(Fault::Aborted("bang".into())),
                    b'.' => self.0 = true,
                    byte => delta.tokens.push(u32::from(*byte)),
                }
            }
            Ok(())
        }

        fn end(&mut self, delta: &mut Delta) -> Result<(), Fault> {
            delta.finish = self.0.then_some(Finish::Length);
            delta.finish.map(drop).ok_or_else(|| Fault::Failed("no finish".into()))
        }
    }

    /// What an answer of these pieces is: tokens, whether it finished, and its fault.
    fn check(pieces: &[&str]) -> (String, bool, Option<Fault>) {
        let mut assembly = Assembly::new(Bytewise(false));
        let (mut tokens, mut finished) = (String::new(), false);
        let mut pieces = pieces.iter();
        loop {
            match assembly.take() {
                Ok(Some(delta)) => {
                    assert!(!finished, "nothing follows the finish");
                    tokens.extend(delta.tokens.iter().filter_map(|t| char::from_u32(*t)));
                    finished = delta.finish.is_some();
                }
                Ok(None) if !assembly.is_open() => return (tokens, finished, None),
                Ok(None) => match pieces.next() {
                    Some(piece) => assembly.push(piece.as_bytes()),
                    None => assembly.end(),
                },
                Err(fault) => {
                    assert!(matches!(assembly.take(), Ok(None)), "nothing follows a fault");
                    return (tokens, finished, Some(fault));
                }
            }
        }
    }

    #[test]
    fn tokens_come_before_the_finish_and_before_a_fault() {
        let whole = ("abc".to_owned(), true, None);
        assert_eq!(check(&["data: ab\n\ndata: c.\n\ndata: [DONE]\n\n"]), whole);
        assert_eq!(check(&["data: ab\n", "\ndata: c\n\n", "data: .\n\n"]), whole);
        assert_eq!(check(&["data: ab\n\ndata: c.\n\n", "data: [DONE]\n\ndata: x\n\n"]), whole);
        let aborted = Some(Fault::Aborted("bang".into()));
        assert_eq!(
            check(&["data: ab\n\ndata: c!\n\ndata: d.\n\n"]),
            ("abc".into(), false, aborted)
        );
    }

    #[test]
    fn an_answer_without_a_finish_is_a_fault_never_an_end() {
        let failed = Some(Fault::Failed("no finish".into()));
        assert_eq!(check(&[]), (String::new(), false, failed.clone()));
        assert_eq!(check(&["data: [DONE]\n\n"]), (String::new(), false, failed.clone()));
        assert_eq!(check(&["data: ab\n\n"]), ("ab".into(), false, failed));
    }
}
