//! A request as its head and its body's fields describe it.

use crate::director::settings::DirectorSettings;
use crate::exchange::RequestHead;
use crate::prompt::{MeasuredPrompt, MediaSize};
use crate::tenant::{self, TenantSalt};
use crate::text;
use bytes::Bytes;
use stator_api::agent_headers::unheeded;
use stator_api::openai::ApiError;
use stator_api::passed_fields::{PassingEdge, refuse_pins};
use stator_api::steering::{Pins, Steering, SteeringHeaders, pin_headers};
use stator_api::{FieldNotes, UnknownFields};
use stator_body::{
    BodyDescription, Field, IMAGE, MediaItem, ParseError, ParseOutcome, ParsedBody, ScreenError,
    ScreenOutcome, Screening, VIDEO, session_name,
};
use stator_epp_metrics::RequestLabels;
use stator_epp_plugins::settings::MediaEstimate;
use stator_epp_pool::PoolView;
use stator_epp_scheduler::{EndpointPins, HeaderView, MultimodalItem, Prompt, Request};
use stator_protos::header;
use std::borrow::Cow;

/// Flow of a request that names none.
const DEFAULT_FAIRNESS_ID: &str = "default-flow";
/// Assumed size of the embedding of an image, a sound or a video.
///
/// Source: the multimodal producer of the llm-d router.
const MEDIA_BYTES: u64 = 2 << 20;

/// Source of the models that replace requested ones.
#[derive(Clone, Copy)]
pub(crate) struct RewriteSource<'a> {
    /// The pool's rewrites and objectives.
    pub view: &'a PoolView,
    /// A random number, which decides between the targets of a rewrite.
    pub chance: u64,
}

/// A request that was read.
pub(crate) struct ParsedRequest {
    /// The request's id: its client's, or one that it gets here.
    pub id: String,
    /// The body in one piece.
    pub body: Bytes,
    /// Fields of the body; `None` where nobody read it.
    pub parsed: Option<ParsedBody>,
    /// The model that the client names; empty where nobody read the body.
    pub model: String,
    /// The model that is asked for in its place, and the name of the rewrite, if no header did it.
    pub rewritten: Option<(String, Option<String>)>,
    /// The objective's priority.
    pub priority: i32,
    /// The request's flow.
    pub fairness_id: String,
    /// Images, audio and video of the prompt.
    pub media: Vec<MultimodalItem>,
    /// The fields of the body that do not go on.
    pub screening: Screening,
    /// Names of fields that change nothing, for the client.
    pub ignored: Option<String>,
    /// The salt by which its tenant's prompts are kept apart, where the body takes one.
    pub tenant_salt: Option<TenantSalt>,
    /// Whether nobody here can read the body.
    pub unread: bool,
    /// Bytes and tokens of its images and videos.
    pub media_size: MediaSize,
    /// The endpoints that it wishes for, and how long it may wait.
    pub steering: Steering,
    /// The session that it belongs to.
    pub session: Option<u64>,
}

/// Reason for which a request cannot be read. One variant per answer a client gets.
#[derive(Debug)]
pub(crate) enum UnreadableRequest {
    /// The body is not what its path says.
    Body(ParseError),
    /// The body cannot be screened.
    Screening(ScreenError),
    /// The body is of a kind that nobody can screen, and the operator wants it screened.
    Kind,
    /// A field or a header may not go on, or cannot be meant.
    Refused(ApiError),
}

impl From<ApiError> for UnreadableRequest {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

impl ParsedRequest {
    /// Parses the body, rewrites the model, looks the objective up.
    ///
    /// # Errors
    ///
    /// [`UnreadableRequest`] says what is wrong with it.
    pub(crate) fn read(
        head: &RequestHead,
        body: Bytes,
        settings: &DirectorSettings,
        source: RewriteSource<'_>,
    ) -> Result<Self, UnreadableRequest> {
        let RewriteSource { view, chance } = source;
        // A body that the data plane keeps to itself is as good as none.
        let mut parsed = match body.is_empty() {
            true => None,
            false => match settings.parsers.parse(path(head), &body) {
                Ok(ParseOutcome::Request(parsed)) => Some(parsed),
                Ok(ParseOutcome::Skip) => None,
                Err(error) => return Err(UnreadableRequest::Body(error)),
            },
        };
        let (screening, unread) = screen(head, &body, settings, parsed.as_ref())?;
        let notes = FieldNotes::new(unknown_fields(settings, head));
        settle(parsed.as_ref(), &screening, &notes)?;
        ignore_headers(head, settings.pins, &notes);
        let tenant = tenant::tenant(head)?;
        let tenant_salt = salt_of_tenant(tenant, parsed.as_mut(), &body)?;
        let model = parsed.as_ref().map(|parsed| parsed.model.clone()).unwrap_or_default();
        let by_header = text::header_of(head, text::REWRITE).map(|model| (model.to_owned(), None));
        let rewritten = by_header.or_else(|| {
            let found = view.rewrites.rewrite(&model, chance)?;
            Some((found.model.to_owned(), Some(found.rewrite.to_owned())))
        });
        let rewritten = rewritten.filter(|(name, _)| !model.is_empty() && *name != model);
        let objective = text::header_of(head, text::OBJECTIVE);
        let priority = objective.and_then(|name| view.priority(name)).unwrap_or_default();
        let media = parsed.as_ref().map(|parsed| parsed.media(&body)).unwrap_or_default();
        let media_size = media_size(&media, head, &settings.media);
        let media = media.iter().map(multimodal).collect();
        let fairness_id = fairness_id(head, settings);
        let said = SteeringHeaders::of(|name| head.header(name));
        let json = parsed.as_ref().and_then(|parsed| parsed.json(&body));
        if let Some((json, _)) = json.filter(|(_, fields)| fields.get(Field::Nvext).is_some()) {
            refuse_pins(json)?;
        }
        let steering = steering(head, json.map(|(json, _)| json), said, settings.pins)?;
        let session = said.session().map(Cow::Borrowed);
        let session =
            session.or_else(|| json.and_then(|(json, fields)| session_name(json, fields)));
        let session = session.map(|name| tenant::session(tenant, &name));
        let id = head.header(header::REQUEST_ID).map(str::to_owned);
        let id = id.unwrap_or_else(|| text::request_id(chance));
        Ok(Self {
            id,
            body,
            parsed,
            model,
            rewritten,
            priority,
            fairness_id,
            media,
            screening,
            ignored: notes.ignored(),
            tenant_salt,
            unread,
            media_size,
            steering,
            session,
        })
    }

    /// The model that the endpoint is asked for.
    pub(crate) fn target(&self) -> &str {
        self.rewritten.as_ref().map_or(&self.model, |(target, _)| target)
    }

    /// Whether the answer is to be streamed.
    pub(crate) fn streams(&self) -> bool {
        self.parsed.as_ref().is_some_and(|parsed| parsed.stream)
    }

    /// The request's labels in metrics.
    pub(crate) fn labels(&self) -> RequestLabels<'_> {
        RequestLabels {
            model: &self.model,
            target_model: self.target(),
            fairness_id: &self.fairness_id,
            priority: self.priority,
        }
    }

    /// The request as the scheduler sees it. `text` is the prompt in pieces, where a plug-in
    /// reads it.
    pub(crate) fn for_scheduler<'a>(
        &'a self,
        head: &'a RequestHead,
        measured: &'a MeasuredPrompt,
        headers: &'a [(&'a str, &'a str)],
        text: &'a [&'a [u8]],
    ) -> Request<'a> {
        let parsed = self.parsed.as_ref();
        Request {
            id: &self.id,
            model: self.target(),
            asked_model: &self.model,
            headers: HeaderView(headers),
            priority: self.priority,
            fairness_id: &self.fairness_id,
            subset: head.subset.as_ref(),
            prompt: Prompt {
                tokens: measured.tokens,
                token_ids: measured.token_ids.as_deref(),
                sequence: &measured.sequence,
                given_hashes: &head.prefix_hashes,
                overlaps: None,
                text,
                multimodal: &self.media,
                cache_salt: parsed.and_then(|parsed| parsed.cache_salt.as_deref()),
            },
            only_cached: text::if_available(head),
            max_output_tokens: parsed.and_then(|parsed| parsed.max_output_tokens),
            needs: self.steering.needs.as_deref(),
            session: self.session,
            pins: EndpointPins {
                answer: self.steering.pins.worker,
                prefill: self.steering.pins.prefill,
            },
            // Set by the placer, which knows the pool's adapters and what an answer counts for.
            adapter: None,
            expected_output_tokens: 0,
            stream: self.streams(),
            size_bytes: self.body.len(),
            slo_ttft: self.steering.objective,
            slo_tpot: text::slo_tpot(head),
        }
    }
}

/// The fields that the body loses, and whether nobody here can read it.
fn screen(
    head: &RequestHead,
    body: &Bytes,
    settings: &DirectorSettings,
    parsed: Option<&ParsedBody>,
) -> Result<(Screening, bool), UnreadableRequest> {
    let screened = settings.fields.screen_body(described(head), body, parsed);
    match screened.map_err(UnreadableRequest::Screening)? {
        ScreenOutcome::Read(screening) => Ok((screening, false)),
        ScreenOutcome::Unread if settings.refuse_unscreened => Err(UnreadableRequest::Kind),
        ScreenOutcome::Unread => Ok((Screening::default(), true)),
    }
}

/// Settles the fields that the body loses: refuses those that ask for something, and names others.
fn settle(
    parsed: Option<&ParsedBody>,
    screening: &Screening,
    notes: &FieldNotes,
) -> Result<(), ApiError> {
    let edge = PassingEdge { api: parsed.and_then(|parsed| parsed.api), ..PassingEdge::default() };
    // The members of `nvext` go on: whoever reads them settles them.
    edge.settle(b"", screening.fields(), notes)
}

/// Notes headers that change nothing: objectives have the priorities that the operator gives them, and whether
/// clients may choose workers is the operator's choice.
fn ignore_headers(head: &RequestHead, pins: bool, notes: &FieldNotes) {
    let names = head.headers.iter().map(|(name, _)| name);
    unheeded(names, false).into_iter().for_each(|name| notes.ignore(name));
    if !pins {
        let sent = pin_headers().filter(|name| head.header(name).is_some());
        sent.for_each(|name| notes.ignore(name));
    }
}

/// The treatment of fields on no list. Those of gRPC have numbers, which tell a client nothing.
fn unknown_fields(settings: &DirectorSettings, head: &RequestHead) -> UnknownFields {
    match text::is_call(head) {
        true => UnknownFields::Ignore,
        false => settings.unknown_fields,
    }
}

/// The salt of the request's tenant, by which `parsed` names its prompt from here on.
fn salt_of_tenant(
    tenant: Option<&str>,
    parsed: Option<&mut ParsedBody>,
    body: &[u8],
) -> Result<Option<TenantSalt>, ApiError> {
    let (Some(tenant), Some(parsed)) = (tenant, parsed) else { return Ok(None) };
    let salt = TenantSalt::of(tenant, parsed, body)?;
    if let Some(salt) = &salt {
        parsed.cache_salt = Some(salt.text.clone());
    }
    Ok(salt)
}

/// The request's wishes for its endpoint; `json` is the body, if it is an object that may have some.
fn steering(
    head: &RequestHead,
    json: Option<&[u8]>,
    said: SteeringHeaders<'_>,
    pins: bool,
) -> Result<Steering, ApiError> {
    let pins = Pins::of(|name| head.headers.bytes(name), pins)?;
    Ok(Steering { pins, ..Steering::read_labels(json.unwrap_or_default(), said)? })
}

fn multimodal(&MediaItem { hash, modality, .. }: &MediaItem) -> MultimodalItem {
    MultimodalItem { hash, modality, size_bytes: MEDIA_BYTES }
}

/// Bytes and estimated tokens of images and videos. Of sounds nothing is known but their bytes.
fn media_size(media: &[MediaItem], head: &RequestHead, estimate: &MediaEstimate) -> MediaSize {
    let facts = text::video(head);
    media.iter().fold(MediaSize::default(), |sum, item| {
        let tokens = match item.modality {
            IMAGE => estimate.image.tokens(item.pixels),
            VIDEO => estimate.video.tokens(facts),
            _ => return sum,
        };
        MediaSize { bytes: sum.bytes + item.size, tokens: sum.tokens.saturating_add(tokens) }
    })
}

/// The request's flow: from a header, or from another mark of its sender.
fn fairness_id(head: &RequestHead, settings: &DirectorSettings) -> String {
    if let Some(id) = text::header_of(head, text::FAIRNESS_ID) {
        return id.to_owned();
    }
    if settings.identities.is_empty() {
        return DEFAULT_FAIRNESS_ID.to_owned();
    }
    let headers = text::readable(head);
    let found = settings.identities.iter().find_map(|source| source.read(HeaderView(&headers)));
    found.unwrap_or(DEFAULT_FAIRNESS_ID).to_owned()
}

/// The head's words about its body.
pub(crate) fn described(head: &RequestHead) -> BodyDescription<'_> {
    BodyDescription { path: path(head), content_type: head.header("content-type") }
}

/// The path that says which API it is: proxies that rewrite paths keep the first in a header.
pub(crate) fn path(head: &RequestHead) -> &str {
    match head.path.as_str() {
        "" => ["x-original-path", "x-forwarded-path"]
            .iter()
            .find_map(|name| head.header(name))
            .unwrap_or_default(),
        path => path,
    }
}
