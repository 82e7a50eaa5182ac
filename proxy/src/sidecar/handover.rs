//! A prompt that is computed elsewhere, or with what others have: the requests of a hand-over, in
//! the connector's order, and what becomes of the request where one of them fails.
//!
//! Dropping a future of this module closes its connections, which is how engines are told that
//! nobody waits any more.

use super::config::PrefillSettings;
use super::deadline::Deadline;
use super::encode::Encoders;
use super::known_ranks::KnownRanks;
use super::metrics::{Cause, Metrics};
use super::names::Names;
use super::request::Request;
use super::trace;
use super::unusable::Unusable;
use crate::upstream::answer::{Answer, Beside};
use crate::upstream::cached::CachedTokens;
use crate::upstream::engines::{Engines, Leg, LegError};
use crate::upstream::headers;
use crate::upstream::target::Target;
use bytes::Bytes;
use http::StatusCode;
use pingora::http::RequestHeader;
use stator_api::openai::ApiError;
use stator_body::Object;
use stator_handover::moriio::Meeting;
use stator_handover::{EngineRequest, KvSource, Order, Pair, Supplies, is_single};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tracing::Instrument;

/// Longest answer of an engine that is kept, in bytes: prefill's parameters name every block of a
/// prompt.
pub(crate) const ANSWER_MAX_BYTES: usize = 16 << 20;

/// Prefill on its way.
type Prefilling<'a> = Pin<Box<dyn Future<Output = Result<Bytes, Unusable>> + Send + 'a>>;

/// Drives hand-overs.
pub(crate) struct Handover {
    pub engines: Arc<Engines>,
    /// Encoders of media on other engines, if configured.
    pub encoders: Option<Encoders>,
    pub settings: PrefillSettings,
    /// Ranks of engines that compute prompts, as far as they are asked for.
    pub ranks: KnownRanks,
    /// Addresses of MoRI-IO's engines.
    pub names: Names,
    pub metrics: Metrics,
}

impl Handover {
    /// Has media encoded and the prompt computed elsewhere and the answer made by the engine beside
    /// this proxy, which does all by itself where that fails.
    ///
    /// # Errors
    ///
    /// When the engine beside this proxy does not answer either, or may not be asked to.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future aborts all requests; one that is to go on from what was handed over is
    /// aborted when its engine has begun.
    pub(crate) async fn answer<'a>(
        &'a self,
        request: &'a Request<'a>,
    ) -> Result<Answer<'a>, ApiError> {
        let supplies = self.supplies(request).await;
        if request.prefiller.is_none() && supplies.is_empty() {
            return Ok(Answer::plain(self.near(request, &supplies).await?, "engine"));
        }
        let unusable = match self.hand_over(request, &supplies).await {
            Ok(answer) => return Ok(answer),
            Err(unusable) => unusable,
        };
        self.metrics.fallbacks.get_or_create(&Cause { reason: unusable.label() }).inc();
        let prefiller = request.prefiller.map(tracing::field::display);
        let connector = self.settings.connector;
        if !unusable.is_choice() {
            tracing::warn!(prefiller, error = %unusable, "a prompt was not handed over");
        }
        // Some engines answer a prompt that nobody handed over from KV that is not there.
        let allowed = self.settings.fallback || unusable.is_choice();
        if allowed && connector.decodes_alone() {
            return Ok(Answer::plain(self.alone(request).await?, "fallback"));
        }
        match unusable {
            Unusable::Status { answer, .. } | Unusable::DecodeStatus { answer, .. } => {
                Ok(Answer::plain(*answer, "handed_over"))
            }
            Unusable::Prefill(error) | Unusable::Decode(error) => Err(error.into()),
            Unusable::TimedOut { .. } | Unusable::NotArrived { .. } => {
                Err(ApiError::gateway_timeout(unusable.to_string()))
            }
            Unusable::Several | Unusable::NotAnObject => {
                let error = ApiError::bad_request(unusable.to_string());
                Err(error.with_code(unusable.label()))
            }
            _ => Err(ApiError::bad_gateway(unusable.to_string())),
        }
    }

    /// Lets the engine beside this proxy compute the prompt.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub(crate) async fn alone(&self, request: &Request<'_>) -> Result<Leg, LegError> {
        let changed = Object::parse(request.body).ok();
        let changed = changed.and_then(|object| self.settings.connector.alone(&object));
        let Some(body) = changed.map(Bytes::from) else {
            return self.engines.send(request.engine, request.head, request.body).await;
        };
        let head = headers::for_body(request.head, &body);
        self.engines.send(request.engine, &head, &body).await
    }

    /// Lets the engine beside this proxy compute the prompt, told of the agents that lend it.
    async fn near(&self, request: &Request<'_>, supplies: &Supplies) -> Result<Leg, LegError> {
        let object = Object::parse(request.body).ok().filter(|_| !supplies.holders.is_empty());
        let Some(body) = object.map(|object| Bytes::from(supplies.alone(&object))) else {
            return self.engines.send(request.engine, request.head, request.body).await;
        };
        let head = headers::for_body(request.head, &body);
        self.engines.send(request.engine, &head, &body).await
    }

    /// Supplies of third engines for the engine that computes the prompt.
    async fn supplies(&self, request: &Request<'_>) -> Supplies {
        // What it has already it need not pull.
        let source = request.source.filter(|source| Some(*source) != request.prefiller);
        let source = source.map(|source| KvSource {
            id: rand::random(),
            host: source.host.clone(),
            port: self.settings.p2p_port(source),
        });
        let media = match &self.encoders {
            Some(encoders) => encoders.encode(request).await,
            None => None,
        };
        let told = |(holder, blocks): &(Target, u32)| (holder.to_string(), *blocks);
        let holders = request.holders.iter().map(told).collect();
        Supplies { source, media, holders }
    }

    async fn hand_over<'a>(
        &'a self,
        request: &'a Request<'a>,
        supplies: &Supplies,
    ) -> Result<Answer<'a>, Unusable> {
        let connector = self.settings.connector;
        let object = Object::parse(request.body).map_err(|_| Unusable::NotAnObject)?;
        let moves_kv = request.prefiller.is_some() || supplies.source.is_some();
        // KV that leaves with its first reader is good for one sequence.
        if moves_kv && connector.is_used_once() && !is_single(request.api, &object) {
            return Err(Unusable::Several);
        }
        let Some(prefiller) = request.prefiller else {
            let deadline = Deadline::of(&object, self.settings.timeout);
            let told = supplies.alone(&object).into();
            let leg = deadline.keep(self.decoding(request, told)).await?;
            return Ok(Answer::plain(leg, "handed_over"));
        };
        if connector.asks_decode_first(&object)
            && let Some(leg) = self.decode_if_cached(request).await?
        {
            return Ok(Answer::plain(leg, "engine"));
        }
        match connector.order() {
            Order::InTurn => self.in_turn(request, prefiller, &object, supplies).await,
            Order::AtOnce | Order::Held => {
                self.at_once(request, prefiller, &object, supplies).await
            }
        }
    }

    /// Prefill, and decode with what prefill answered.
    async fn in_turn<'a>(
        &'a self,
        request: &'a Request<'a>,
        prefiller: &'a Target,
        object: &Object<'_>,
        supplies: &Supplies,
    ) -> Result<Answer<'a>, Unusable> {
        let deadline = Deadline::of(object, self.settings.timeout);
        let connector = self.settings.connector;
        let pair = self.rendezvous(prefiller).await?;
        let told = connector.prefill(request.api, object, &pair, supplies);
        let answer = self.prefill(request.head, prefiller, told).await?;
        let prefilled = Instant::now();
        let told = connector.decode(object, &pair, &answer)?;
        trace::coordinated(prefilled.elapsed());
        let leg = match connector.is_used_once() {
            true => deadline.keep(self.decoding_for_certain(request, told, deadline)).await?,
            false => deadline.keep(self.decoding(request, told)).await?,
        };
        let counts = connector.counts_cached() && leg.head().status == StatusCode::OK;
        let cached = if counts { CachedTokens::of(&answer) } else { None };
        Ok(Answer { cached, ..Answer::plain(leg, "handed_over") })
    }

    /// Prefill and decode beside each other. Decode's answer counts once prefill has done its part:
    /// it has said so, or decode has something to show where that proves it.
    async fn at_once<'a>(
        &'a self,
        request: &'a Request<'a>,
        prefiller: &'a Target,
        object: &Object<'_>,
        supplies: &Supplies,
    ) -> Result<Answer<'a>, Unusable> {
        let deadline = Deadline::of(object, self.settings.timeout);
        let connector = self.settings.connector;
        let pair = self.rendezvous(prefiller).await?;
        let told = connector.prefill(request.api, object, &pair, supplies);
        let mut prefill: Prefilling<'a> = Box::pin(self.prefill(request.head, prefiller, told));
        let told = connector.decode(object, &pair, b"")?;
        let mut decode = pin!(deadline.keep(self.decoding(request, told)));
        let (mut prefilled, mut held) = (false, None);
        loop {
            tokio::select! {
                biased;
                answered = &mut prefill, if !prefilled => {
                    // On failure decode is dropped here: it would wait for ever.
                    answered?;
                    prefilled = true;
                    if let Some(leg) = held {
                        return Ok(Answer::plain(leg, "handed_over"));
                    }
                }
                leg = &mut decode, if held.is_none() => {
                    let leg = leg?;
                    if !prefilled && connector.order() == Order::Held {
                        held = Some(leg);
                        continue;
                    }
                    let beside = (!prefilled).then(|| -> Beside<'a> {
                        Box::pin(async move {
                            let _ = prefill.await;
                        })
                    });
                    return Ok(Answer { beside, ..Answer::plain(leg, "handed_over") });
                }
            }
        }
    }

    /// Has a prompt computed: the whole answer, which is of status 200.
    async fn prefill(
        &self,
        head: &RequestHeader,
        prefiller: &Target,
        told: EngineRequest,
    ) -> Result<Bytes, Unusable> {
        let body = told.body.into();
        let mut head = headers::for_body(head, &body);
        headers::for_rank(&mut head, told.rank);
        let span = trace::prefill(self.settings.connector, prefiller);
        trace::pass_on(&mut head, &span);
        let started = Instant::now();
        // Where decode waits beside it, it waits for the first attempt.
        let mut retries = match self.settings.connector.order() {
            Order::InTurn => self.settings.retries,
            Order::AtOnce | Order::Held => 0,
        };
        let answer = self.within(async {
            loop {
                let answered = self.asked(prefiller, &head, &body).await;
                if retries == 0 || !answered.as_ref().is_err_and(Unusable::is_passing) {
                    return answered;
                }
                drop(answered);
                retries -= 1;
                tokio::time::sleep(self.settings.backoff).await;
            }
        });
        let answer = answer.instrument(span.clone()).await?;
        let took = started.elapsed();
        trace::prefilled(&span, took);
        self.metrics.prefill_duration.observe(took.as_secs_f64());
        Ok(answer)
    }

    /// Asks a prefill engine once.
    async fn asked(
        &self,
        prefiller: &Target,
        head: &RequestHeader,
        body: &Bytes,
    ) -> Result<Bytes, Unusable> {
        let peer = self.engines.prefiller(prefiller).await.map_err(Unusable::Prefill)?;
        let leg = self.engines.send(&peer, head, body).await.map_err(Unusable::Prefill)?;
        match leg.head().status {
            StatusCode::OK => self.whole(leg, ANSWER_MAX_BYTES).await,
            status => Err(Unusable::Status { status, answer: Box::new(leg) }),
        }
    }

    /// Reads an answer to its end and keeps the connection.
    pub(super) async fn whole(&self, mut leg: Leg, limit: usize) -> Result<Bytes, Unusable> {
        let body = leg.whole(limit).await.map_err(Unusable::Prefill)?;
        self.engines.keep(leg).await;
        Ok(body)
    }

    pub(super) async fn within<T>(
        &self,
        prefill: impl Future<Output = Result<T, Unusable>>,
    ) -> Result<T, Unusable> {
        let limit: Duration = self.settings.timeout;
        let late = |_| Unusable::TimedOut { limit_ms: limit.as_millis() };
        timeout(limit, prefill).await.map_err(late)?
    }

    pub(super) fn pair(&self, prefiller: &Target) -> Pair {
        Pair {
            id: rand::random(),
            host: prefiller.host.clone(),
            url_host: prefiller.url_host(),
            bootstrap_port: self.settings.bootstrap_port,
            p2p_port: self.settings.p2p_port(prefiller),
            engine_id: String::new(),
            rank: None,
            meeting: Meeting::default(),
        }
    }
}
