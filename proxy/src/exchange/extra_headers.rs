//! Headers of every answer, whoever gives it: ignored fields, a page's origin, and a client's rate.

use super::{Exchange, ignored};
use crate::cors;
use http::{HeaderName, HeaderValue};
use stator_api::agent_headers::unheeded;
use stator_api::steering::pin_headers;
use stator_protos::header::IGNORED;

impl Exchange {
    /// Has the answer name fields that change nothing, beside earlier ones.
    pub(crate) fn ignores(&mut self, fields: Option<&str>) {
        if fields.is_some() {
            self.ignored = ignored::told(self.ignored.as_ref(), fields);
        }
    }

    /// Has the answer name the headers by which its client chose a worker, where clients may not.
    pub(crate) fn ignores_pins(&mut self) {
        let sent: Vec<_> = pin_headers().filter(|name| self.header_bytes(name).is_some()).collect();
        if !sent.is_empty() {
            self.ignores(Some(&sent.join(", ")));
        }
    }

    /// Has the answer name headers of agents and of Dynamo that change nothing. An edge that has a queue
    /// of its own `takes_priorities`.
    pub(crate) fn ignores_unheeded(&mut self, takes_priorities: bool) {
        let names = self.request().headers.keys().map(HeaderName::as_str);
        let names = unheeded(names, takes_priorities);
        if !names.is_empty() {
            let names = names.join(", ");
            self.ignores(Some(&names));
        }
    }

    /// Has a web page of this origin read the answer.
    pub(crate) fn allow_origin(&mut self, origin: Option<HeaderValue>) {
        self.origin = origin;
    }

    /// The headers; ignored fields and the origin once.
    pub(super) fn extra_headers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        let ignored = self.ignored.take().map(|names| (HeaderName::from_static(IGNORED), names));
        let page = self.origin.take().map(cors::headers).into_iter().flatten();
        ignored.into_iter().chain(page).chain(self.rate_headers()).collect()
    }
}
