//! Headers of every answer, whoever gives it: ignored fields, a page's origin, and a client's rate.

use super::{Exchange, ignored};
use crate::cors;
use http::{HeaderName, HeaderValue};
use stator_protos::header::IGNORED;

impl Exchange {
    /// Has the answer name fields that change nothing, beside earlier ones.
    pub(crate) fn ignores(&mut self, fields: Option<&str>) {
        self.ignored = ignored::told(self.ignored.as_ref(), fields);
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
