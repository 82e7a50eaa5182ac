//! The answer half of a stream: what somebody follows, until they have seen enough.

use super::decision::replacement;
use super::phase::AnswerPhase;
use super::{Machine, Violation};
use crate::exchange::{Interest, Watch};
use crate::ext_proc::body::{same, total};
use crate::ext_proc::message::{
    BodyChange, Direction, HeadChange, HeadFields, MetaValue, Metadatum, Outgoing, PartAnswer,
};
use crate::ext_proc::settings::BodyMode;
use bytes::Bytes;

impl<W: Watch> Machine<W> {
    pub(super) fn reply_headers(&mut self, fields: HeadFields, end: bool) -> Result<(), Violation> {
        if self.reply != AnswerPhase::First {
            return Err(self.unexpected_reply("response headers"));
        }
        self.reply = AnswerPhase::Body;
        self.abandon_request();
        let served = self.served.take();
        let set = match &mut self.watch {
            Some(watch) if self.interest >= Interest::Headers => {
                watch.headers(fields.status, &fields.headers, served.as_deref())
            }
            _ => Vec::new(),
        };
        let metadata = if end { self.reply_ended() } else { Vec::new() };
        let change = HeadChange { set, ..HeadChange::default() };
        self.send_with(PartAnswer::Headers(Direction::Response, change), metadata);
        if self.interest < Interest::Body {
            self.close(Ok(()));
        }
        Ok(())
    }

    pub(super) fn reply_body(&mut self, bytes: Bytes, end: bool) -> Result<(), Violation> {
        if self.reply == AnswerPhase::Done {
            return Err(self.unexpected_reply("response body"));
        }
        self.reply = AnswerPhase::Body;
        self.abandon_request();
        // What does not fit a data plane's buffer is never seen: its piece is the last.
        let last = end || self.modes.response == BodyMode::BufferedPartial;
        let mut pieces = Vec::new();
        match &mut self.watch {
            Some(watch) if self.interest == Interest::Body => {
                watch.body(bytes.clone(), last, &mut pieces);
            }
            _ => pieces.push(bytes.clone()),
        }
        if self.modes.response == BodyMode::FullDuplex {
            self.send_duplex(Direction::Response, pieces, end);
        } else {
            self.send_reply_piece(bytes, pieces);
        }
        if last {
            let metadata = self.reply_ended();
            self.attach(metadata);
        }
        if self.interest < Interest::Body {
            self.close(Ok(()));
        }
        Ok(())
    }

    pub(super) fn reply_trailers(&mut self) -> Result<(), Violation> {
        if self.reply == AnswerPhase::Done && self.modes.response != BodyMode::BufferedPartial {
            return Err(self.unexpected_reply("response trailers"));
        }
        self.abandon_request();
        let mut held = Vec::new();
        if let Some(watch) = self.watch.as_mut().filter(|_| self.interest == Interest::Body) {
            watch.body(Bytes::new(), true, &mut held);
        }
        // In the other modes there is no message left to put it in: a watch that holds back more
        // than it must loses it where an answer ends with trailers.
        if self.modes.response == BodyMode::FullDuplex {
            self.send_duplex(Direction::Response, held, false);
        }
        let metadata = self.reply_ended();
        self.send_with(PartAnswer::Trailers(Direction::Response), metadata);
        self.close(Ok(()));
        Ok(())
    }

    /// Answers a message outside full duplex: with nothing, where nothing changed.
    fn send_reply_piece(&mut self, original: Bytes, pieces: Vec<Bytes>) {
        let mut change = HeadChange::default();
        let whole = self.modes.response == BodyMode::Buffered;
        let body = if same(std::slice::from_ref(&original), &pieces) {
            BodyChange::Keep
        } else {
            // The head is still held back only where the body came at once.
            if whole {
                change.set.push(("content-length", total(&pieces).to_string()));
            }
            replacement(pieces)
        };
        self.send(PartAnswer::Body(Direction::Response, change, body));
    }

    /// The answer is complete: asks for the metadata of its last message. Closing first spares
    /// the data plane from resetting the stream.
    fn reply_ended(&mut self) -> Vec<Metadatum> {
        self.reply = AnswerPhase::Done;
        let watch = self.watch.take().filter(|_| self.interest == Interest::Body);
        let entries = watch.map(|mut watch| watch.end()).unwrap_or_default();
        // Trailers may still come after a body that was buffered in part.
        if self.modes.response != BodyMode::BufferedPartial {
            self.close(Ok(()));
        }
        let metadatum = |(namespace, key, value): (String, String, f64)| Metadatum {
            namespace: namespace.into(),
            key: key.into(),
            value: MetaValue::Number(value),
        };
        entries.into_iter().map(metadatum).collect()
    }

    /// Puts metadata on the last message that waits to be sent, which is of this part.
    fn attach(&mut self, entries: Vec<Metadatum>) {
        if let Some(Outgoing { metadata, .. }) = self.out.back_mut() {
            metadata.extend(entries);
        }
    }

    fn unexpected_reply(&self, what: &'static str) -> Violation {
        let place = match self.reply {
            AnswerPhase::First => "before response headers",
            AnswerPhase::Body => "after response headers",
            AnswerPhase::Done => "after the response's end",
        };
        Violation::Unexpected { what, place }
    }
}
