//! Counts from an answer, and changes of it.

use crate::answer::AnswerEdit;
use crate::exchange::{Interest, Refusal, Watch};
use crate::flow::Account;
use crate::headers::Headers;
use crate::late::{LateBody, LateEdit};
use crate::observe::{Observe, RequestRecord};
use crate::parsed_request::RewriteSource;
use crate::pool::Pool;
use crate::usage::TokenCounts;
use bytes::Bytes;
use stator_body::Usage;
use stator_epp_metrics::UnscreenedReason;
use stator_epp_scheduler::Decision;
use stator_epp_scheduler::plugin::RequestProgress;
use stator_protos::header::IGNORED;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// The header in which conformance tests read which endpoint served them.
///
/// Source: the conformance suite of the Gateway API Inference Extension.
const SERVED_TEST: &str = "x-conformance-test-served-endpoint";

/// Follows the answer of one request. Dropping it before the end gives back what the request
/// holds.
pub struct AnswerWatch {
    pool: Arc<Pool>,
    observe: Observe,
    decision: Decision,
    record: RequestRecord,
    interest: Interest,
    /// Account to which the answer's tokens are charged, where requests wait.
    pub(crate) account: Option<Account>,
    /// Whether the client hears which endpoint served its request.
    pub(crate) verify: bool,
    /// Endpoints given to the data plane, the fallbacks after the first.
    pub(crate) sent: Vec<SocketAddr>,
    /// The changes of a body that comes after the decision.
    pub(crate) late: Option<LateEdit>,
    /// Names of fields that changed nothing, for the client.
    pub(crate) ignored: Option<String>,
    edit: AnswerEdit,
    usage: TokenCounts,
    served: Option<String>,
    size_bytes: u64,
    /// Whether the first byte of the body came.
    begun: bool,
    /// Whether it is an error, which has no token.
    failed: bool,
    /// Whether the request was ended for others.
    revoked: bool,
    over: bool,
}

/// A placed request whose answer is to be followed.
pub(crate) struct PlacedRecord {
    /// The request's destination.
    pub decision: Decision,
    /// The request, as metrics and traces know it.
    pub record: RequestRecord,
    /// Part of the answer that must be seen.
    pub interest: Interest,
}

impl AnswerWatch {
    /// Follows the answer of a placed request, as much of it as `placed.interest` says.
    pub(crate) fn new(pool: Arc<Pool>, observe: Observe, placed: PlacedRecord) -> Self {
        let PlacedRecord { decision, record, interest } = placed;
        Self {
            pool,
            observe,
            decision,
            record,
            interest,
            account: None,
            verify: false,
            sent: Vec::new(),
            late: None,
            ignored: None,
            edit: AnswerEdit::default(),
            usage: TokenCounts::default(),
            served: None,
            size_bytes: 0,
            begun: false,
            failed: false,
            revoked: false,
            over: false,
        }
    }

    /// Gives the client back the name of the model that it asked for.
    pub(crate) fn rename(&mut self, target: &str, asked: &str) {
        self.edit.rename(target, asked);
    }

    fn progress(&self, usage: Option<Usage>) -> RequestProgress<'_> {
        RequestProgress {
            ticket: self.decision.ticket,
            output_tokens: usage.map(|usage| usage.completion_tokens.into()),
            cached_tokens: usage.and_then(|usage| usage.cached_tokens).map(u64::from),
            answered: self.begun,
            served: self.served.as_deref(),
        }
    }

    fn finish(&mut self) -> Option<Usage> {
        if std::mem::replace(&mut self.over, true) {
            return None;
        }
        let usage = self.usage.finish();
        // The place of a request that nobody watches to its end is given back by reports.
        if self.interest == Interest::Body || self.revoked {
            if let (Some(account), Some(usage)) = (&self.account, usage) {
                account.charge(usage.completion_tokens.into());
            }
            self.pool.ended(&self.progress(usage));
            self.record.answered(usage, self.size_bytes);
        }
        self.observe.answered(&self.record);
        usage
    }
}

impl Watch for AnswerWatch {
    fn interest(&self) -> Interest {
        self.interest
    }

    fn amends(&self) -> bool {
        self.late.is_some()
    }

    fn amend(&mut self, body: Vec<Bytes>) -> Result<Vec<Bytes>, Refusal> {
        let Some(late) = self.late.take() else { return Ok(body) };
        let source = RewriteSource { view: &self.pool.view(), chance: self.pool.chance() };
        let amended = late.apply(&body, source);
        let LateBody { body, screening, ignored, unread, asked_model, rewritten } =
            amended.inspect_err(|refusal| self.observe.refused(Some(&self.record), refusal))?;
        self.observe.screened(&screening);
        // The head's own names were told of with the decision's.
        self.ignored = ignored;
        if unread {
            self.observe.unscreened(UnscreenedReason::Unread);
        }
        if let Some((target, rewrite)) = rewritten {
            self.rename(&target, &asked_model);
            if let Some(rewrite) = rewrite {
                self.observe.rewritten(&self.record, &rewrite);
            }
        }
        Ok(body)
    }

    fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<Refusal> {
        let Some(lease) = self.account.as_mut().and_then(|account| account.lease.as_mut()) else {
            return Poll::Pending;
        };
        lease.poll_revoked(cx).map(|refusal| {
            self.revoked = true;
            self.observe.refused(Some(&self.record), &refusal);
            refusal
        })
    }

    fn headers(
        &mut self,
        status: u16,
        head: &Headers,
        served: Option<&str>,
    ) -> Vec<(&'static str, String)> {
        let began = Instant::now();
        self.usage = TokenCounts::of(head);
        self.edit.clean(head);
        self.record.status(status);
        self.record.answered_as(head.get("content-type"));
        self.failed = status >= 400;
        if let Some(served) = served {
            self.observe.served(&self.sent, served);
            // Only another endpoint than the chosen one is news to the scheduler.
            let chosen = self.sent.first().is_some_and(|chosen| chosen.to_string() == served);
            self.served = (!chosen).then(|| served.to_owned());
        }
        let mut headers = std::mem::take(&mut self.decision.response_headers);
        if self.verify {
            let served = served.unwrap_or("fail: missing destination endpoint served metadata");
            headers.push((SERVED_TEST, served.to_owned()));
        }
        if let Some(names) = self.ignored.take() {
            // The endpoint names the fields that it ignores in the same header.
            let all = head.get(IGNORED).map(|own| format!("{own}, {names}"));
            headers.push((IGNORED, all.unwrap_or(names)));
        }
        self.record.worked(began);
        headers
    }

    fn body(&mut self, piece: Bytes, end: bool, out: &mut Vec<Bytes>) {
        let now = Instant::now();
        if self.record.piece(now, piece.len()) {
            self.begun = true;
            if !self.failed {
                self.pool.first_token(&self.progress(None));
            }
        }
        self.size_bytes += piece.len() as u64;
        self.usage.push(&piece);
        self.edit.push(piece, end, out);
        self.record.worked(now);
    }

    fn end(&mut self) -> Vec<(String, String, f64)> {
        let usage = self.finish();
        usage.map(|usage| self.observe.metadata(usage)).unwrap_or_default()
    }
}

impl Drop for AnswerWatch {
    fn drop(&mut self) {
        self.finish();
    }
}
