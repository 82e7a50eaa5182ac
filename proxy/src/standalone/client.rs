//! A client whose request is read.

use crate::exchange::Exchange;
use crate::space::{Account, PrefixSpace};
use stator_api::openai::ApiError;

/// A client that may use the API, with the head of its request.
#[derive(Clone, Copy)]
pub(crate) struct Client<'a> {
    pub exchange: &'a Exchange,
    pub account: Account,
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
        let headers = &self.exchange.request().headers;
        self.account.space_of(headers, cache_salt, extension_salt)
    }
}
