//! The request path: from a request's head and body to the endpoint that takes it.
//!
//! Read [`PoolDirector::route`]: a line per stage.

pub mod settings;

use crate::exchange::{
    AnswerBody, Director, Interest, Refusal, RequestBody, RequestHead, RoutedRequest,
};
use crate::flow::{Account, Flow};
use crate::late::{LateEdit, edited, may_rewrite};
use crate::observe::{Observe, RequestRecord};
use crate::parsed_request::{ParsedRequest, RewriteSource};
use crate::place::{PlacementError, Placer, Ready};
use crate::pool::Pool;
use crate::prompt::{MeasuredPrompt, PromptMeter};
use crate::refuse;
use crate::text;
use crate::unasked::UnaskedWatch;
use crate::watch::{AnswerWatch, PlacedRecord};
use bytes::Bytes;
use futures::future::Either;
use settings::DirectorSettings;
use stator_body::{Api, Body};
use stator_epp_config::FlowControl;
use stator_epp_metrics::{EppMetrics, UnscreenedReason};
use stator_epp_scheduler::Decision;
use stator_protos::header;
use stator_queue::InvalidSettings;
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Requests with bodies up to this size, in bytes, are decided where they are read, one after the
/// other on a connection; larger ones take long enough to have a task of their own.
const INLINE_BODY_MAX_BYTES: usize = 16 << 10;
/// The prompts of bodies above this size, in bytes, take milliseconds to tokenize, which no other
/// request need wait for.
const QUICK_BODY_MAX_BYTES: usize = 256 << 10;

/// Decides for one pool; a clone decides alike.
#[derive(Clone)]
pub struct PoolDirector {
    pool: Arc<Pool>,
    settings: Arc<DirectorSettings>,
    observe: Observe,
    placer: Placer,
    /// Queues in which requests wait; `None` without flow control.
    flow: Option<Arc<Flow>>,
}

impl PoolDirector {
    /// A director of a pool, where no request waits.
    pub fn new(pool: Arc<Pool>, settings: DirectorSettings, observe: Observe) -> Self {
        let placer = Placer {
            pool: pool.clone(),
            reads_text: settings.reads_text,
            scores: settings.scores,
            in_flight: settings.in_flight,
        };
        Self { pool, settings: Arc::new(settings), observe, placer, flow: None }
    }

    /// Lets requests wait for room as `control` says; within `grace` the saturation shows a
    /// revocation. The caller closes the returned flow control.
    ///
    /// # Errors
    ///
    /// [`InvalidSettings`] for what the queues cannot be set to.
    pub(crate) fn with_flow_control(
        mut self,
        control: &FlowControl,
        grace: Duration,
        metrics: Arc<EppMetrics>,
    ) -> Result<(Self, Arc<Flow>), InvalidSettings> {
        let flow = Flow::new(self.placer.clone(), control, grace, metrics)?;
        self.flow = Some(flow.clone());
        Ok((self, flow))
    }

    /// The request path.
    async fn decide(
        &self,
        head: RequestHead,
        body: &Body,
    ) -> Result<RoutedRequest<AnswerWatch>, Refusal> {
        let late = LateEdit::of(&head, &self.settings, &self.pool.view());
        refuse::check_coding(&head, body.len())
            .and_then(|()| self.check_screening(&head, late.as_ref()))
            .inspect_err(|refusal| self.observe.refused(None, refusal))?;
        let request = {
            let source = RewriteSource { view: &self.pool.view(), chance: self.pool.chance() };
            ParsedRequest::read(&head, body.contiguous(), &self.settings, source)
                .map_err(|error| refuse::unreadable(&error, &head))
                .inspect_err(|refusal| self.observe.refused(None, refusal))?
        };
        if self.pool.is_adapter(request.target()) {
            // Its name is no longer one that a client thought of.
            self.observe.keep_model(request.target());
        }
        let record = self.observe.begin(&head, &request);
        let rendered = self.render(&request).await;
        let measured = self.measure(&request, rendered);
        self.observe.measured(&record, measured.measure, request.body.len());
        self.tell_of_missing(&head, late.as_ref());
        self.observe.screened(&request.screening);
        if request.unread {
            self.observe.unscreened(UnscreenedReason::Unread);
        }
        let interest = self.interest(&head, &request);
        let (watched, span) = (interest == Interest::Body, record.span().clone());
        let ready = Arc::new(Ready { head, request, measured, watched, span });
        let (decision, account) = self
            .place(&ready, &record)
            .await
            .inspect_err(|refusal| self.observe.refused(Some(&record), refusal))?;
        let Ready { head, request, measured, .. } = &*ready;
        let body = self.edit(body, request, measured, &decision);
        self.observe.routed(&record, &decision);
        let mut routed = self.routed(head, request, PlacedRecord { decision, record, interest });
        routed.body = body;
        routed.watch.late = late;
        routed.watch.account = account;
        routed.watch.ignored.clone_from(&request.ignored);
        if let Some((target, _)) = &request.rewritten {
            routed.watch.rename(target, &request.model);
        }
        Ok(routed)
    }

    /// Refuses a request whose body cannot be screened, where the operator wants that.
    fn check_screening(&self, head: &RequestHead, late: Option<&LateEdit>) -> Result<(), Refusal> {
        match head.body {
            _ if !self.settings.refuse_unscreened => Ok(()),
            RequestBody::Unseen => Err(refuse::unseen_body()),
            RequestBody::Late if late.is_none() => Err(refuse::unread_kind()),
            _ => Ok(()),
        }
    }

    /// Counts a request whose body is not there for its decision.
    fn tell_of_missing(&self, head: &RequestHead, late: Option<&LateEdit>) {
        match head.body {
            RequestBody::Whole => return,
            RequestBody::Unseen => self.observe.unscreened(UnscreenedReason::Unseen),
            RequestBody::Late if late.is_none() => {
                self.observe.unscreened(UnscreenedReason::Unread)
            }
            RequestBody::Late => {}
        }
        self.observe.placed_by_head(head.body);
        if head.body == RequestBody::Unseen && may_rewrite(head, &self.pool.view()) {
            self.observe.rewrite_lost();
        }
    }

    /// The prompt's tokens from the renderer; `None` where there is none, or it does not answer.
    async fn render(&self, request: &ParsedRequest) -> Option<Vec<u32>> {
        let renderer = self.settings.renderer.as_ref()?;
        let route = match request.parsed.as_ref()?.api {
            Some(Api::ChatCompletions) => "/v1/chat/completions",
            Some(Api::Completions) => "/v1/completions",
            _ => return None,
        };
        let rendered = renderer.render(route, &request.body, !request.media.is_empty()).await;
        rendered.inspect_err(|error| tracing::debug!(%error, "a prompt was not rendered")).ok()
    }

    fn measure(&self, request: &ParsedRequest, rendered: Option<Vec<u32>>) -> MeasuredPrompt {
        let Some(parsed) = &request.parsed else { return MeasuredPrompt::nothing() };
        let adapter = Some(request.target()).filter(|model| self.pool.is_adapter(model));
        let meter =
            PromptMeter { tokenizer: self.pool.tokenizer(), block_size: self.pool.block_size() };
        let measure = || match rendered {
            Some(ids) => meter.of_tokens(parsed, ids, adapter),
            None => meter.measure(parsed, &request.body, adapter).with(request.media_size),
        };
        match request.body.len() > QUICK_BODY_MAX_BYTES {
            true => tokio::task::block_in_place(measure),
            false => measure(),
        }
    }

    /// Chooses and books, after the request's turn has come where requests wait.
    async fn place(
        &self,
        ready: &Arc<Ready>,
        record: &RequestRecord,
    ) -> Result<(Decision, Option<Account>), Refusal> {
        let placed = match &self.flow {
            None => self.placer.place(ready).map(|placed| (placed, None)),
            Some(flow) => {
                let admitted = flow.admit(ready, record.metrics()).await;
                admitted.map(|(placed, account)| (placed, Some(account)))
            }
        };
        let (placed, account) = placed.map_err(|denied| {
            if let PlacementError::Unplaced { took, .. } = denied {
                self.observe.scheduled(record, None, took);
            }
            refuse::denied(&ready.request, &denied)
        })?;
        let (took, decision) = (placed.took, placed.keep());
        self.observe.scheduled(record, Some(&decision), took);
        Ok((decision, account))
    }

    /// Part of the answer that must be seen.
    fn interest(&self, head: &RequestHead, request: &ParsedRequest) -> Interest {
        // The client must read the name that it asked for.
        let late = head.body == RequestBody::Late && may_rewrite(head, &self.pool.view());
        let renames = request.rewritten.is_some() || late;
        // A stream that ends early can tell nobody that its request is revoked.
        let revokes = self.flow.as_ref().is_some_and(|flow| flow.revokes(request.priority));
        let needed = if renames || revokes { Interest::Body } else { Interest::Nothing };
        let wanted = self.settings.interest.max(needed);
        match head.answer {
            AnswerBody::Shown => wanted,
            AnswerBody::Hidden => wanted.min(Interest::Headers),
            AnswerBody::Passes if wanted == Interest::Nothing && self.settings.leaves_early => {
                Interest::Nothing
            }
            AnswerBody::Passes => Interest::Body,
        }
    }

    /// The body that is sent on: what came, but for the model's name, the tenant's salt, the token
    /// ids and the fields that must not reach an engine.
    fn edit(
        &self,
        body: &Body,
        request: &ParsedRequest,
        measured: &MeasuredPrompt,
        decision: &Decision,
    ) -> Vec<Bytes> {
        // The other APIs have no field for them.
        let api = request.parsed.as_ref().and_then(|parsed| parsed.api);
        let has_field = matches!(api, Some(Api::ChatCompletions | Api::Completions));
        let takes_ids =
            || has_field && decision.targets.first().is_some_and(|to| text::takes_token_ids(to));
        let ids = measured.token_ids.as_ref().filter(|_| self.settings.token_ids && takes_ids());
        edited(body, request, ids.map(Vec::as_slice))
    }

    /// Answer to the data plane, without the body.
    fn routed(
        &self,
        head: &RequestHead,
        request: &ParsedRequest,
        placed: PlacedRecord,
    ) -> RoutedRequest<AnswerWatch> {
        let decision = &placed.decision;
        let mut set_headers = decision.headers.clone();
        if head.header(header::REQUEST_ID).is_none() {
            set_headers.push((header::REQUEST_ID, request.id.clone()));
        }
        if let Some(traceparent) = placed.record.traceparent() {
            set_headers.push((header::TRACEPARENT, traceparent));
        }
        let wanted = if self.settings.fallbacks { decision.targets.len() } else { 1 };
        let targets = decision.targets.iter().take(wanted);
        let mut endpoints: Vec<_> = targets.map(|target| target.address).collect();
        if let (Some(port), Some(first)) = (decision.port, endpoints.first_mut()) {
            first.set_port(port);
        }
        let scores = decision.scores.clone();
        let (pool, observe) = (self.pool.clone(), self.observe.clone());
        let mut watch = AnswerWatch::new(pool, observe, placed);
        watch.verify = self.settings.verify_served;
        // With the port that was sent: the answer's address is compared with these.
        watch.sent.clone_from(&endpoints);
        RoutedRequest { endpoints, set_headers, body: Vec::new(), scores, watch }
    }
}

impl Director for PoolDirector {
    type Watch = Either<AnswerWatch, UnaskedWatch>;

    async fn route(
        &self,
        head: RequestHead,
        body: Option<Vec<Bytes>>,
    ) -> Result<RoutedRequest<Self::Watch>, Refusal> {
        // The edge has bounded what it read.
        let mut whole = Body::new(usize::MAX);
        for chunk in body.unwrap_or_default() {
            whole.push(chunk).expect("nothing is longer than all memory");
        }
        let routed = match whole.len() <= INLINE_BODY_MAX_BYTES {
            true => self.decide(head, &whole).await,
            false => {
                let director = self.clone();
                apart(async move { director.decide(head, &whole).await }).await
            }
        };
        routed.map(|routed| routed.followed_by(Either::Left))
    }

    fn unasked(&self) -> Self::Watch {
        Either::Right(UnaskedWatch::new(self.observe.clone()))
    }
}

/// Does `work` in a task of its own, which ends with the future.
async fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut task = JoinSet::new();
    task.spawn(work);
    match task.join_next().await.expect("a task was started") {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The process ends.
            Err(_) => pending().await,
        },
    }
}

#[cfg(test)]
#[path = "director_tests.rs"]
pub(crate) mod tests;

#[cfg(test)]
#[path = "screening_tests.rs"]
mod screening_tests;
