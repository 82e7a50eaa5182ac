//! Answers that a decision sends to the data plane, and the message that carries it.

use super::Machine;
use super::phase::{Carrier, PendingAnswers, RequestPhase};
use crate::exchange::{Interest, Refusal, RequestHead, RoutedRequest, Watch};
use crate::ext_proc::body::{same, total};
use crate::ext_proc::message::{
    BodyChange, Direction, HeadChange, MetaValue, Metadatum, PartAnswer,
};
use bytes::Bytes;
use stator_protos::header::{
    DESTINATION, LB_NAMESPACE, OVERRIDE_PREFIX, OWN_PREFIX, ROUTING, SCORES,
};
use std::borrow::Cow;
use std::fmt::Write;
use std::net::SocketAddr;

/// Size of most addresses as text, with a comma.
const ADDRESS_BYTES: usize = 24;

impl<W: Watch> Machine<W> {
    /// The decision is there. One that nobody awaits any more is dropped.
    pub(crate) fn routed(&mut self, decision: Result<RoutedRequest<W>, Refusal>) {
        if !self.awaits_decision() {
            return;
        }
        let RequestPhase::Route(mut answers) =
            std::mem::replace(&mut self.request, RequestPhase::Done)
        else {
            return;
        };
        let mut routed = match decision {
            Ok(routed) => routed,
            Err(refusal) => return self.refuse(&refusal),
        };
        let (ended, pending) =
            (answers.ended, answers.carrier == Carrier::Headers && answers.messages > 0);
        let amends = routed.watch.amends();
        let mut late = answers.late.take().filter(|_| amends);
        // All of it came before this answer, which carries its changes then.
        if let Some(whole) = late.take_if(|late| ended || late.is_whole(false)) {
            let came = whole.into_pieces();
            match routed.watch.amend(came.clone()) {
                Ok(body) => (routed.body, answers.body) = (body, Some(came)),
                Err(refusal) => return self.refuse(&refusal),
            }
        }
        let amends = late.is_some();
        self.watch = Some(self.answer(answers, routed, amends));
        self.interest = self.watch.as_ref().map_or(Interest::Nothing, Watch::interest);
        if ended {
            self.request_ended();
        } else {
            self.request = late.map_or(RequestPhase::Pass, RequestPhase::Amend);
            // What is on its way in needs its answers; otherwise the data plane goes on alone.
            if self.interest == Interest::Nothing && !pending && !amends {
                self.close(Ok(()));
            }
        }
        if self.half_closed {
            // Nothing more can come: neither the body nor the answer.
            self.close(Ok(()));
        }
    }

    /// Sends what a decision answers; hands back what follows the endpoint's answer. Where the body
    /// `amends` later, nobody knows its length.
    fn answer(&mut self, answers: PendingAnswers, mut routed: RoutedRequest<W>, amends: bool) -> W {
        let destination = destination(&routed.endpoints);
        let set_headers = std::mem::take(&mut routed.set_headers);
        let mut change = decision_change(&destination, set_headers, answers.own_headers);
        let metadata = decision_metadata(destination, std::mem::take(&mut routed.scores));
        let changed = answers.body.as_ref().is_some_and(|body| !same(body, &routed.body));
        let length = total(&routed.body);
        // In full duplex always, as the llm-d router does: Envoy drops the client's length because
        // it cannot know ours, and where it does not, ours must be the one that is kept. With
        // trailers there is no length: the body is chunked.
        let duplex = answers.carrier == Carrier::Duplex && length > 0 && !answers.trailers;
        if changed || duplex {
            change.set.push(("content-length", length.to_string()));
        }
        if amends {
            change.remove.push("content-length".into());
        }
        // What is held back is sent on with the last piece.
        let body = if amends { Some(Vec::new()) } else { changed.then_some(routed.body.clone()) };
        match answers.carrier {
            Carrier::Duplex => {
                self.send_with(PartAnswer::Headers(Direction::Request, change), metadata);
                self.send_duplex(Direction::Request, routed.body, !answers.trailers);
            }
            Carrier::Headers => {
                self.send_with(PartAnswer::Headers(Direction::Request, change), metadata);
                self.send_streamed(answers.messages, body);
            }
            Carrier::Body => {
                let body = body.map_or(BodyChange::Keep, replacement);
                self.send_with(PartAnswer::Body(Direction::Request, change, body), metadata);
            }
            Carrier::Trailers => {
                self.send_with(PartAnswer::Trailers(Direction::Request), metadata);
                return routed.watch;
            }
        }
        if answers.trailers {
            self.send(PartAnswer::Trailers(Direction::Request));
        }
        routed.watch
    }

    /// Answers the messages of a streamed body. A changed body goes with the first of them.
    fn send_streamed(&mut self, messages: usize, changed: Option<Vec<Bytes>>) {
        let mut change = match changed {
            Some(body) => replacement(body),
            None => BodyChange::Keep,
        };
        let rest = |change: &BodyChange| match change {
            BodyChange::Keep => BodyChange::Keep,
            _ => BodyChange::Clear,
        };
        for _ in 0..messages {
            let next = rest(&change);
            let body = std::mem::replace(&mut change, next);
            self.send(PartAnswer::Body(Direction::Request, HeadChange::default(), body));
        }
    }
}

fn destination(endpoints: &[SocketAddr]) -> String {
    let mut text = String::with_capacity(endpoints.len() * ADDRESS_BYTES);
    for endpoint in endpoints {
        let comma = if text.is_empty() { "" } else { "," };
        write!(text, "{comma}{endpoint}").expect("a string takes all");
    }
    text
}

fn decision_metadata(destination: String, scores: Vec<(SocketAddr, f64)>) -> Vec<Metadatum> {
    let entry = |key: &'static str, value| Metadatum {
        namespace: LB_NAMESPACE.into(),
        key: key.into(),
        value,
    };
    let mut metadata = vec![entry(DESTINATION, MetaValue::Text(destination))];
    if !scores.is_empty() {
        metadata.push(entry(SCORES, MetaValue::Scores(scores)));
    }
    metadata
}

fn decision_change(
    destination: &str,
    mut set: Vec<(&'static str, String)>,
    own_headers: Vec<String>,
) -> HeadChange {
    set.insert(0, (DESTINATION, destination.to_owned()));
    let mut remove = Vec::with_capacity(ROUTING.len() + own_headers.len());
    // Not those that are set: whether a data plane removes first or sets first is its choice.
    let own_headers = own_headers.into_iter().map(Cow::Owned);
    let all = ROUTING.iter().copied().map(Cow::Borrowed).chain(own_headers);
    let is_set = |name: &Cow<'static, str>| set.iter().any(|(known, _)| known == name);
    remove.extend(all.filter(|name| !is_set(name)));
    HeadChange { set, remove, clear_route_cache: true }
}

/// The change of a message's body.
pub(super) fn replacement(body: Vec<Bytes>) -> BodyChange {
    if total(&body) == 0 { BodyChange::Clear } else { BodyChange::Replace(body) }
}

/// The headers with our own prefix or SGLang's that are on no list, each once.
pub(super) fn own_headers(head: &RequestHead) -> Vec<String> {
    let names = head.headers.iter().map(|(name, _)| name);
    let prefixed = |name: &str| name.starts_with(OWN_PREFIX) || name.starts_with(OVERRIDE_PREFIX);
    let own = names.filter(|name| prefixed(name) && !ROUTING.contains(name));
    let mut own: Vec<_> = own.map(str::to_owned).collect();
    own.sort_unstable();
    own.dedup();
    own
}
