//! A client's rate: counted when its request comes, told with the answer.

use super::Exchange;
use crate::rates::RateAccount;
use crate::standalone::client::Client;
use http::{HeaderName, HeaderValue};
use stator_api::anthropic;
use stator_api::openai::ApiError;
use stator_api::space::Account;
use std::time::{Instant, SystemTime};

impl Exchange {
    /// Counts the request, and has the answer say what is left to the client.
    ///
    /// # Errors
    ///
    /// 429 where nothing is.
    pub(crate) fn count_for(&mut self, rate: RateAccount) -> Result<(), ApiError> {
        let counted = rate.take_request(Instant::now());
        self.rate = Some(rate);
        counted
    }

    /// Headers that say what is left to the client.
    pub(super) fn rate_headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let Some(rate) = &self.rate else { return Vec::new() };
        let anthropic = anthropic::error::owns(self.path());
        rate.headers(anthropic, Instant::now(), SystemTime::now())
    }

    /// The client of the request, whose key has this account.
    pub(crate) fn as_client(&self, account: Account) -> Client<'_> {
        Client { head: self.client_head(), account, rate: self.rate.as_ref() }
    }
}
