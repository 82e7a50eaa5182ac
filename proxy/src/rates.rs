//! Rates of clients: requests and tokens in a minute, for each API key.
//!
//! A client has a bucket of each kind, which fills evenly and holds what a minute allows. A request takes
//! one out of the bucket of requests when it comes, and its tokens out of the other as they are known:
//! that bucket may be overdrawn, and then the next request waits until it is not. Each proxy counts for
//! itself.

use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use stator_api::openai::ApiError;
use stator_api::space::Account;
use stator_runtime::date::rfc3339;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Time for which a limit holds.
const MINUTE: Duration = Duration::from_secs(60);
/// Clients above which those that use nothing are forgotten: files of keys change.
const CLIENTS_MAX: usize = 32_768;

/// Limits of each client, in a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimits {
    pub requests: Option<NonZeroU32>,
    pub tokens: Option<NonZeroU32>,
}

/// Requests and tokens that all clients have used.
#[derive(Debug)]
pub(crate) struct ClientRates {
    limits: RateLimits,
    /// By the API key's account; none for all who need no key.
    clients: Mutex<HashMap<Option<Account>, RateAccount>>,
}

/// Requests and tokens that one client has used. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct RateAccount(Arc<Mutex<RateBuckets>>);

#[derive(Debug)]
struct RateBuckets {
    requests: Option<RateBucket>,
    tokens: Option<RateBucket>,
}

#[derive(Debug)]
struct RateBucket {
    limit: f64,
    /// Below zero if it is overdrawn.
    level: f64,
    /// The time of this level.
    at: Instant,
}

/// The rest of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RateStanding {
    limit: u64,
    remaining: u64,
    /// Time until all of it is there again.
    reset: Duration,
}

impl ClientRates {
    /// Rates within these limits; none where there are no limits.
    pub(crate) fn new(limits: RateLimits) -> Option<Arc<Self>> {
        let any = limits != RateLimits::default();
        any.then(|| Arc::new(Self { limits, clients: Mutex::default() }))
    }

    /// The account of the client with this API key.
    pub(crate) fn account(&self, key: Option<Account>, now: Instant) -> RateAccount {
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&key) {
            clients.retain(|_, account| !account.is_idle(now));
        }
        let account = clients.entry(key).or_insert_with(|| {
            let bucket = |limit: NonZeroU32| RateBucket::new(limit.get(), now);
            let RateLimits { requests, tokens } = self.limits;
            let buckets =
                RateBuckets { requests: requests.map(bucket), tokens: tokens.map(bucket) };
            RateAccount(Arc::new(Mutex::new(buckets)))
        });
        account.clone()
    }
}

impl RateAccount {
    /// Takes one request.
    ///
    /// # Errors
    ///
    /// 429 where a limit is reached, with the time until it is not.
    pub(crate) fn take_request(&self, now: Instant) -> Result<(), ApiError> {
        let mut buckets = self.0.lock();
        let RateBuckets { requests, tokens } = &mut *buckets;
        let of = [("requests", requests.as_mut()), ("tokens", tokens.as_mut())];
        for (what, bucket) in of.into_iter().filter_map(|(what, it)| Some((what, it?))) {
            bucket.fill(now);
            if let Some(wait) = bucket.wait_for_one() {
                return Err(ApiError::rate_exceeded(bucket.limit as u64, what, wait));
            }
        }
        if let Some(requests) = requests {
            requests.level -= 1.0;
        }
        Ok(())
    }

    /// Takes tokens that a request has used.
    pub(crate) fn take_tokens(&self, tokens: u32, now: Instant) {
        if let Some(bucket) = self.0.lock().tokens.as_mut() {
            bucket.fill(now);
            bucket.level -= f64::from(tokens);
        }
    }

    /// Headers that say what is left, in the words of Anthropic's API or of OpenAI's.
    pub(crate) fn headers(
        &self,
        anthropic: bool,
        now: Instant,
        date: SystemTime,
    ) -> Vec<(HeaderName, HeaderValue)> {
        let mut buckets = self.0.lock();
        let RateBuckets { requests, tokens } = &mut *buckets;
        let mut headers = Vec::new();
        for (names, bucket) in [(&REQUESTS, requests), (&TOKENS, tokens)] {
            let Some(bucket) = bucket else { continue };
            bucket.fill(now);
            let RateStanding { limit, remaining, reset } = bucket.standing();
            let (names, reset) = match anthropic {
                true => (names.anthropic, rfc3339(date + reset)),
                false => (names.openai, duration(reset)),
            };
            let reset = HeaderValue::try_from(reset).expect("digits and letters are a valid value");
            let values = [limit.into(), remaining.into(), reset];
            headers.extend(names.map(HeaderName::from_static).into_iter().zip(values));
        }
        headers
    }

    /// Whether nobody holds it, and nothing of it is used.
    fn is_idle(&self, now: Instant) -> bool {
        let mut buckets = self.0.lock();
        let RateBuckets { requests, tokens } = &mut *buckets;
        let is_full = |bucket: &mut RateBucket| {
            bucket.fill(now);
            bucket.level >= bucket.limit
        };
        let full = [requests, tokens].into_iter().flatten().all(is_full);
        full && Arc::strong_count(&self.0) == 1
    }
}

impl RateBucket {
    fn new(limit: u32, now: Instant) -> Self {
        Self { limit: limit.into(), level: limit.into(), at: now }
    }

    /// Fills it up to a time.
    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        let level = self.level + passed.as_secs_f64() * self.limit / MINUTE.as_secs_f64();
        self.level = level.min(self.limit);
    }

    /// Time until the level is this.
    fn until(&self, level: f64) -> Duration {
        let seconds = (level - self.level) * MINUTE.as_secs_f64() / self.limit;
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// Time until one can be taken; none if one can be now.
    fn wait_for_one(&self) -> Option<Duration> {
        (self.level < 1.0).then(|| self.until(1.0))
    }

    fn standing(&self) -> RateStanding {
        RateStanding {
            limit: self.limit as u64,
            remaining: self.level.max(0.0) as u64,
            reset: self.until(self.limit),
        }
    }
}

/// Headers of one limit: the limit itself, what is left of it, and when all of it is there again.
struct RateHeaders {
    openai: [&'static str; 3],
    anthropic: [&'static str; 3],
}

const REQUESTS: RateHeaders = RateHeaders {
    openai: [
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
    ],
    anthropic: [
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ],
};
const TOKENS: RateHeaders = RateHeaders {
    openai: [
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    ],
    anthropic: [
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
    ],
};

/// A time as OpenAI's headers have it: `12ms`, `7s`, `6m0s`.
fn duration(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        return format!("{}ms", time.as_millis());
    }
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    match seconds / 60 {
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{}s", seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates(requests: u32, tokens: u32) -> Arc<ClientRates> {
        let limits =
            RateLimits { requests: NonZeroU32::new(requests), tokens: NonZeroU32::new(tokens) };
        ClientRates::new(limits).expect("limits")
    }

    fn header(account: &RateAccount, anthropic: bool, now: Instant, name: &str) -> Option<String> {
        let date = SystemTime::UNIX_EPOCH;
        let headers = account.headers(anthropic, now, date);
        let found = headers.into_iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.to_str().expect("text").to_owned())
    }

    #[test]
    fn requests_come_back_evenly() {
        let now = Instant::now();
        let account = rates(2, 0).account(None, now);
        assert!(account.take_request(now).is_ok() && account.take_request(now).is_ok());
        let error = account.take_request(now).expect_err("the limit is reached");
        assert_eq!((error.status.as_u16(), error.retry_after), (429, Some(MINUTE / 2)));
        let of = |name: &str| header(&account, false, now, name);
        assert_eq!(of("x-ratelimit-limit-requests").as_deref(), Some("2"));
        assert_eq!(of("x-ratelimit-remaining-requests").as_deref(), Some("0"));
        assert_eq!(of("x-ratelimit-reset-requests").as_deref(), Some("1m0s"));
        assert_eq!(of("x-ratelimit-limit-tokens"), None, "there is no such limit");
        assert!(account.take_request(now + MINUTE / 2).is_ok());
        let reset = header(&account, true, now + MINUTE, "anthropic-ratelimit-requests-reset");
        assert_eq!(reset.as_deref(), Some("1970-01-01T00:00:30Z"));
    }

    #[test]
    fn tokens_may_be_overdrawn_and_then_nothing_is_let_in() {
        let now = Instant::now();
        let account = rates(0, 60).account(None, now);
        assert!(account.take_request(now).is_ok());
        account.take_tokens(90, now);
        let error = account.take_request(now).expect_err("overdrawn");
        assert_eq!(error.retry_after, Some(Duration::from_secs(31)));
        assert!(error.message.contains("60 tokens"), "{error}");
        let left = header(&account, false, now, "x-ratelimit-remaining-tokens");
        assert_eq!(left.as_deref(), Some("0"));
        assert!(account.take_request(now + Duration::from_secs(31)).is_ok());
    }

    #[test]
    fn clients_are_counted_apart() {
        let (now, rates) = (Instant::now(), rates(1, 0));
        let keys = stator_api::space::Derivation::new(Some("secret"), &Default::default());
        let [one, other] = ["a", "b"].map(|key| rates.account(Some(keys.of_key(key)), now));
        assert!(one.take_request(now).is_ok() && other.take_request(now).is_ok());
        assert!(one.take_request(now).is_err());
        assert!(rates.account(Some(keys.of_key("a")), now).take_request(now).is_err(), "the same");
    }

    #[test]
    fn times_are_written_as_openai_does() {
        for (milliseconds, text) in
            [(0, "0ms"), (12, "12ms"), (1000, "1s"), (1001, "2s"), (360_000, "6m0s")]
        {
            assert_eq!(duration(Duration::from_millis(milliseconds)), text);
        }
    }

    proptest! {
        /// Whatever comes when, no client gets more than a full bucket and what filled it meanwhile.
        #[test]
        fn no_more_requests_pass_than_the_limit_allows(
            limit in 1u32..20,
            pauses in prop::collection::vec(0u64..20_000, 1..60),
        ) {
            let begin = Instant::now();
            let account = rates(limit, 0).account(None, begin);
            let (mut now, mut passed) = (begin, 0u32);
            for pause in pauses {
                now += Duration::from_millis(pause);
                passed += u32::from(account.take_request(now).is_ok());
            }
            let filled = (now - begin).as_secs_f64() / 60.0 * f64::from(limit);
            prop_assert!(f64::from(passed) <= f64::from(limit) + filled + 1e-6);
        }
    }
}
