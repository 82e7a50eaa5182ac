//! A client whose request is read.

use crate::door::{Admission, Visitor};
use crate::rates::RateAccount;
use http::HeaderMap;
use stator_api::openai::ApiError;
use stator_api::space::{Account, PrefixSpace};
use stator_protos::header::{TRACEPARENT, TRACESTATE};
use stator_runtime::trace::Stages;

/// A client that may use the API, with the head of its request.
#[derive(Clone, Copy)]
pub(crate) struct Client<'a> {
    pub head: ClientHead<'a>,
    pub account: Account,
    /// Requests and tokens that the client has used, if its rate is limited.
    pub rate: Option<&'a RateAccount>,
}

/// The head of a request, whatever it came by.
#[derive(Clone, Copy)]
pub(crate) struct ClientHead<'a> {
    pub headers: &'a HeaderMap,
    /// The request's identity, the client's own or made here.
    pub request_id: &'a str,
    /// The request's spans.
    pub trace: &'a Stages,
}

/// A call that was let in, with what it holds while it runs.
pub(crate) struct AdmittedCall {
    /// Its owner.
    pub account: Account,
    /// Requests and tokens that its owner has used, if the rate is limited.
    pub rate: Option<RateAccount>,
    /// Its place among those that run.
    pub _admission: Admission,
    /// The place of its client.
    pub _visitor: Visitor,
}

impl<'a> ClientHead<'a> {
    /// A header's value, if it is text.
    pub(crate) fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The value of a header, text or not.
    pub(crate) fn header_bytes(&self, name: &str) -> Option<&'a [u8]> {
        Some(self.headers.get(name)?.as_bytes())
    }

    /// The trace context to pass on, and its state, if the client sent them.
    pub(crate) fn trace_context(&self) -> [Option<&'a str>; 2] {
        [TRACEPARENT, TRACESTATE].map(|name| self.header(name))
    }
}

impl Client<'_> {
    /// The space of the request, whose body has these salts.
    ///
    /// # Errors
    ///
    /// 400 for a tenant that cannot be meant.
    pub(crate) fn space(
        &self,
        cache_salt: Option<&str>,
        extension_salt: Option<&str>,
    ) -> Result<PrefixSpace, ApiError> {
        self.account.space_of(self.head.headers, cache_salt, extension_salt)
    }
}
