//! The request path: from a request's head and body to the endpoint that takes it.
//!
//! Read [`PoolDirector::route`]: a line per stage.

use crate::exchange::{Director, Head, Interest, Refusal, Routed};
use crate::observe::{Observe, Told};
use crate::pool::Pool;
use crate::prompt::{self, Measure, Measured};
use crate::refuse;
use crate::text;
use crate::watch::AnswerWatch;
use bytes::Bytes;
use stator_epp_body::{Api, Body, Field, Parsed, ParsedBody, ParserSet, write_token_ids};
use stator_epp_metrics::RequestLabels;
use stator_epp_plugins::IdSource;
use stator_epp_plugins::settings::InFlightLoad;
use stator_epp_pool::PoolView;
use stator_epp_scheduler::{Decision, Headers, Prompt, Request};
use stator_epp_signals::tokenizer::Renderer;
use stator_protos::header;
use stator_runtime::trace;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest piece that an edited body is cut into; the data plane's protocol cuts smaller.
const PIECE_BYTES: usize = 1 << 20;
/// Bodies up to this size are measured where they are read, in bytes; the prompts of larger ones
/// take milliseconds to tokenize, which other requests need not wait for.
const INLINE_BODY_MAX_BYTES: usize = 256 << 10;
/// Whose a request is that does not say.
const DEFAULT_FAIRNESS_ID: &str = "default-flow";

/// What an operator chose about requests.
#[derive(Clone)]
pub struct DirectorSettings {
    /// Which APIs are read.
    pub parsers: ParserSet,
    /// What somebody wants to see of every answer.
    pub interest: Interest,
    /// Whether all candidates' scores go to the data plane.
    pub scores: bool,
    /// Whether token ids travel on in `nvext.token_data` to endpoints that take them.
    pub token_ids: bool,
    /// What a request counts for while it is in flight.
    pub in_flight: InFlightLoad,
    /// Where the fairness identity of a request comes from if no header says it, first to last.
    pub identities: Vec<IdSource>,
    /// The server that renders prompts to tokens, where the configuration names one.
    pub renderer: Option<Arc<Renderer>>,
    /// Whether answers tell the client which endpoint served them.
    pub verify_served: bool,
    /// Whether a request may ask for an endpoint that holds a part of its prompt, and be refused
    /// where there is none: `prefer: if-available`.
    pub conditional: bool,
}

/// Decides for one pool.
pub struct PoolDirector {
    pool: Arc<Pool>,
    settings: DirectorSettings,
    observe: Observe,
}

/// A request as far as its head and its body's fields tell.
struct Asked {
    parsed: Option<ParsedBody>,
    /// The model that the client names; empty where nobody read the body.
    model: String,
    /// The model that is asked for in its place, and the rewrite that says so, if not a header.
    rewritten: Option<(String, Option<String>)>,
    priority: i32,
    fairness_id: String,
}

impl Asked {
    /// The model that the endpoint is asked for.
    fn target(&self) -> &str {
        self.rewritten.as_ref().map_or(&self.model, |(target, _)| target)
    }
}

impl PoolDirector {
    /// A director of a pool.
    pub fn new(pool: Arc<Pool>, settings: DirectorSettings, observe: Observe) -> Self {
        Self { pool, settings, observe }
    }

    /// The request path.
    async fn decide(&self, head: &Head, body: &Body) -> Result<Routed<AnswerWatch>, Refusal> {
        let view = self.pool.view();
        let bytes = body.contiguous();
        let asked = self
            .read(head, &bytes, &view)
            .inspect_err(|refusal| self.observe.refused(None, refusal))?;
        let told = self.begin(head, &asked);
        let rendered = self.render(&asked, &bytes).await;
        let measured = self.measure(&asked, &bytes, rendered, &told);
        let interest = self.interest(&asked);
        let decision = self
            .place(head, &asked, &measured, &bytes, &told)
            .inspect_err(|refusal| self.observe.refused(Some(&told), refusal))?;
        let pieces = self.edit(body, &bytes, &asked, &measured, &decision);
        self.observe.routed(&told, &decision);
        Ok(self.routed(head, asked, decision, pieces, (told, interest)))
    }

    /// Parses the body, rewrites the model, looks the objective up.
    fn read(&self, head: &Head, body: &Bytes, view: &PoolView) -> Result<Asked, Refusal> {
        let parsed = match body.is_empty() && head.header("content-length").is_none_or(|n| n == "0")
        {
            true => None,
            false => match self.settings.parsers.parse(path(head), body) {
                Ok(Parsed::Request(parsed)) => Some(parsed),
                Ok(Parsed::Skip) => None,
                Err(error) => return Err(refuse::unread(&error)),
            },
        };
        let model = parsed.as_ref().map(|parsed| parsed.model.clone()).unwrap_or_default();
        let by_header = text::header_of(head, text::REWRITE).map(|model| (model.to_owned(), None));
        let rewritten = by_header.or_else(|| {
            let found = view.rewrites.rewrite(&model, self.pool.chance())?;
            Some((found.model.to_owned(), Some(found.rewrite.to_owned())))
        });
        let rewritten = rewritten.filter(|(name, _)| !model.is_empty() && *name != model);
        let objective = text::header_of(head, text::OBJECTIVE);
        let priority = objective.and_then(|name| view.priority(name)).unwrap_or_default();
        Ok(Asked { parsed, model, rewritten, priority, fairness_id: self.fairness_id(head) })
    }

    /// Whose request it is: a header says so, or whatever tells its sender apart.
    fn fairness_id(&self, head: &Head) -> String {
        if let Some(id) = text::header_of(head, text::FAIRNESS_ID) {
            return id.to_owned();
        }
        let headers = text::readable(head);
        let mut sources = self.settings.identities.iter();
        let found = sources.find_map(|source| source.read(Headers(&headers)));
        found.unwrap_or(DEFAULT_FAIRNESS_ID).to_owned()
    }

    fn begin(&self, head: &Head, asked: &Asked) -> Told {
        let labels = RequestLabels {
            model: &asked.model,
            target_model: asked.target(),
            fairness_id: &asked.fairness_id,
            priority: asked.priority,
        };
        let streams = asked.parsed.as_ref().is_some_and(|parsed| parsed.stream);
        let told = self.observe.begin(head, &labels, streams);
        if let Some((_, Some(rewrite))) = &asked.rewritten {
            self.observe.rewritten(&told, rewrite);
        }
        told
    }

    /// The prompt's tokens from the renderer; `None` where there is none, or it does not answer.
    async fn render(&self, asked: &Asked, body: &Bytes) -> Option<Vec<u32>> {
        let renderer = self.settings.renderer.as_ref()?;
        let route = match asked.parsed.as_ref()?.api {
            Api::ChatCompletions => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
            _ => return None,
        };
        let rendered = renderer.render(route, body).await;
        rendered.inspect_err(|error| tracing::debug!(%error, "a prompt was not rendered")).ok()
    }

    fn measure(
        &self,
        asked: &Asked,
        body: &Bytes,
        rendered: Option<Vec<u32>>,
        told: &Told,
    ) -> Measured {
        let Some(parsed) = &asked.parsed else {
            self.observe.measured(told, Measure::None, body.len());
            return Measured::nothing();
        };
        let adapter = Some(asked.target()).filter(|model| self.pool.is_adapter(model));
        let measure = || match rendered {
            Some(ids) => prompt::measured(&self.pool, parsed, ids, adapter),
            None => prompt::measure(&self.pool, parsed, body, adapter),
        };
        let measured = match body.len() > INLINE_BODY_MAX_BYTES {
            true => tokio::task::block_in_place(measure),
            false => measure(),
        };
        self.observe.measured(told, measured.measure, body.len());
        measured
    }

    /// Chooses and books.
    fn place(
        &self,
        head: &Head,
        asked: &Asked,
        measured: &Measured,
        body: &Bytes,
        told: &Told,
    ) -> Result<Decision, Refusal> {
        let headers = text::readable(head);
        let parsed = asked.parsed.as_ref();
        let pieces: Vec<&[u8]> =
            parsed.map(|parsed| parsed.prompt_bytes(body).collect()).unwrap_or_default();
        let mut request = Request {
            id: head.header(header::REQUEST_ID).unwrap_or_default(),
            model: asked.target(),
            headers: Headers(&headers),
            priority: asked.priority,
            fairness_id: &asked.fairness_id,
            subset: head.subset.as_ref(),
            prompt: Prompt {
                tokens: measured.tokens,
                token_ids: measured.token_ids.as_deref(),
                sequence: &measured.sequence,
                text: &pieces,
                multimodal: &[],
                cache_salt: parsed.and_then(|parsed| parsed.cache_salt.as_deref()),
            },
            max_output_tokens: parsed.and_then(|parsed| parsed.max_output_tokens),
            expected_output_tokens: 0,
            stream: parsed.is_some_and(|parsed| parsed.stream),
            size_bytes: body.len(),
            slo_ttft: text::header_of(head, text::SLO_TTFT).and_then(milliseconds),
            slo_tpot: text::header_of(head, text::SLO_TPOT).and_then(milliseconds),
        };
        request.expected_output_tokens = self.settings.in_flight.output_tokens(&request);
        let watched = self.interest(asked) == Interest::Body;
        let orchestration = tracing::info_span!(
            target: trace::TARGET, parent: told.span(), "gateway.request_orchestration",
        );
        let started = Instant::now();
        let scheduled =
            orchestration.in_scope(|| self.pool.schedule(&request, watched, self.settings.scores));
        self.observe.scheduled(told, scheduled.as_ref().ok(), started.elapsed());
        let decision = scheduled.map_err(|refused| refuse::unplaced(&refused))?;
        match self.settings.conditional && if_available(head) && decision.cached_tokens == 0 {
            true => {
                self.pool.give_back(&decision);
                Err(refuse::nothing_cached())
            }
            false => Ok(decision),
        }
    }

    /// How much of the answer must be seen.
    fn interest(&self, asked: &Asked) -> Interest {
        // The client must read the name that it asked for.
        let renamed = if asked.rewritten.is_some() { Interest::Body } else { Interest::Nothing };
        self.settings.interest.max(renamed)
    }

    /// The body that is sent on: what came, but for the model's name and the token ids.
    fn edit(
        &self,
        body: &Body,
        bytes: &Bytes,
        asked: &Asked,
        measured: &Measured,
        decision: &Decision,
    ) -> Vec<Bytes> {
        let takes_ids = || decision.targets.first().is_some_and(|to| text::takes_token_ids(to));
        let ids = measured.token_ids.as_ref().filter(|_| self.settings.token_ids && takes_ids());
        let editor = asked.parsed.as_ref().and_then(|parsed| parsed.editor(bytes));
        let Some(mut editor) = editor.filter(|_| asked.rewritten.is_some() || ids.is_some()) else {
            return body.chunks().to_vec();
        };
        if let Some((model, _)) = &asked.rewritten {
            editor.set_string(Field::Model, model);
        }
        if let Some(ids) = ids {
            let mut json = Vec::with_capacity(ids.len() * 6 + 2);
            write_token_ids(ids, &mut json);
            editor.merge(Field::Nvext, "token_data", json);
        }
        editor.finish().pieces(body, PIECE_BYTES).collect()
    }

    fn routed(
        &self,
        head: &Head,
        asked: Asked,
        decision: Decision,
        body: Vec<Bytes>,
        (told, interest): (Told, Interest),
    ) -> Routed<AnswerWatch> {
        let mut set_headers = decision.headers.clone();
        if head.header(header::REQUEST_ID).is_none() {
            set_headers.push((header::REQUEST_ID, text::request_id(self.pool.chance())));
        }
        if let Some(traceparent) = told.traceparent() {
            set_headers.push((header::TRACEPARENT, traceparent));
        }
        let mut endpoints: Vec<_> = decision.targets.iter().map(|target| target.address).collect();
        if let (Some(port), Some(first)) = (decision.port, endpoints.first_mut()) {
            first.set_port(port);
        }
        let scores = decision.scores.clone();
        let (pool, observe) = (self.pool.clone(), self.observe.clone());
        let mut watch = AnswerWatch::new(pool, observe, decision, (told, interest));
        watch.verify = self.settings.verify_served;
        if let Some((target, _)) = &asked.rewritten {
            watch.rename(target, &asked.model);
        }
        Routed { endpoints, set_headers, body, scores, watch }
    }
}

impl Director for PoolDirector {
    type Watch = AnswerWatch;

    async fn route(
        &self,
        head: Head,
        body: Option<Vec<Bytes>>,
    ) -> Result<Routed<AnswerWatch>, Refusal> {
        // The edge has bounded what it read.
        let mut whole = Body::new(usize::MAX);
        for chunk in body.unwrap_or_default() {
            whole.push(chunk).expect("nothing is longer than all memory");
        }
        self.decide(&head, &whole).await
    }
}

/// The path that says which API it is: proxies that rewrite paths keep the first in a header.
fn path(head: &Head) -> &str {
    match head.path.as_str() {
        "" => ["x-original-path", "x-forwarded-path"]
            .iter()
            .find_map(|name| head.header(name))
            .unwrap_or_default(),
        path => path,
    }
}

fn milliseconds(value: &str) -> Option<Duration> {
    let ms = value.trim().parse::<f64>().ok().filter(|ms| *ms > 0.0)?;
    Duration::try_from_secs_f64(ms / 1000.0).ok()
}

fn if_available(head: &Head) -> bool {
    head.header("prefer").is_some_and(|prefer| {
        prefer.split(',').any(|choice| choice.trim().eq_ignore_ascii_case("if-available"))
    })
}

#[cfg(test)]
#[path = "director_tests.rs"]
mod tests;
