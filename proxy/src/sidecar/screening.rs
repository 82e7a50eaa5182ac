//! The bodies of requests on their way to the engine: without the fields that no engine gets.
//!
//! A client that steers engines is refused. Fields that a proxy of ours has set, and those that a
//! picker has obeyed, are removed. A tenant becomes the cache salt of its prompts.

use super::service::Sidecar;
use super::trace;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::upstream::engines::Leg;
use crate::upstream::passage::Losses;
use bytes::Bytes;
use http::header;
use pingora::http::RequestHeader;
use pingora::upstreams::peer::HttpPeer;
use stator_api::openai::ApiError;
use stator_api::openai::body::EXTENSION_SALT;
use stator_api::passed_fields::PassingEdge;
use stator_api::{salts, space};
use stator_body::{Api, Field, FormError, FormScreen, Object, scan, write_string};
use stator_handover::{KV_PARAMETERS, nixl};
use stator_protos::header::DESTINATION;
use tracing::Span;

/// Field by which an endpoint picker places a request.
const CONSTRAINTS: &str = "nvext.routing_constraints";

impl Sidecar {
    /// A body without the fields that may not reach the engine. The answer names those that change
    /// nothing.
    ///
    /// # Errors
    ///
    /// 400 with the name of a field that steers, or that nobody knows.
    pub(super) fn screened(&self, exchange: &mut Exchange, body: Bytes) -> Result<Bytes, ApiError> {
        let proxy = self.handover.settings.serves && nixl::wants_kept(&body);
        // A picker that has chosen this engine has obeyed what chooses one.
        let picked = exchange.header_bytes(DESTINATION).is_some();
        let obeyed = match (proxy, picked) {
            (true, _) => &[EXTENSION_SALT, KV_PARAMETERS][..],
            (false, true) => &[EXTENSION_SALT, CONSTRAINTS],
            (false, false) => &[EXTENSION_SALT],
        };
        let losses = self.losses(exchange, PassingEdge { obeyed, from_proxy: proxy, api: None });
        let screened = self.settings.passage.screen(body.clone(), &losses)?;
        exchange.ignores(losses.notes.ignored().as_deref());
        let stripped = screened.len() != body.len();
        if stripped && !proxy {
            self.metrics.stripped.inc();
        }
        let salt = match space::tenant(&exchange.request().headers)? {
            Some(tenant) => tenant_salt(exchange, tenant, &body)?,
            None if stripped => extension_salt(&body)?,
            None => None,
        };
        if salt.is_none() && !(stripped && proxy) {
            return Ok(screened);
        }
        let object = Object::parse(&screened);
        let object = object.map_err(|error| ApiError::invalid_json(error.to_string()))?;
        let mut edit = object.edit();
        if stripped && proxy {
            edit = edit.set(KV_PARAMETERS, nixl::PREFILL);
        }
        if let Some(Salt { field, json }) = salt {
            edit = edit.set(field.name(), json);
        }
        Ok(edit.finish().into())
    }

    fn losses<'a>(&'a self, exchange: &Exchange, edge: PassingEdge<'a>) -> Losses<'a> {
        let edge = PassingEdge { api: Api::find(exchange.method(), exchange.path()), ..edge };
        Losses::new(edge, self.settings.unknown_fields, &self.metrics.fields_removed)
    }

    /// Hands a form on as it comes, without the fields that may not reach the engine.
    pub(super) async fn upload(
        &self,
        exchange: &mut Exchange,
        engine: &HttpPeer,
        mut head: RequestHeader,
    ) -> Result<Leg, Failure> {
        let refused = |error: FormError| ApiError::bad_request(error.to_string());
        let refused = |error| refused(error).with_code("not_multipart");
        let limit = self.door().limits().body_bytes;
        let kind = exchange.header(header::CONTENT_TYPE.as_str()).unwrap_or_default();
        let mut screen = FormScreen::new(&self.settings.passage.fields, kind).map_err(refused)?;
        let losses = self.losses(exchange, PassingEdge::default());
        exchange.expect_body().await?;
        trace::pass_on(&mut head, &Span::current());
        let engines = &self.handover.engines;
        let mut leg = engines.begin(engine, &head).await.map_err(ApiError::from)?;
        let (mut came, mut pieces, mut reads, mut settled) = (0, Vec::new(), true, 0);
        while let Some(part) = exchange.part().await? {
            came += part.len();
            let taken = match came > limit {
                true => Err(ApiError::body_too_large(came, limit)),
                false => screen.push(part, &mut pieces).map_err(refused),
            };
            // Before the engine gets the bytes around a field that is refused.
            let taken = taken.and_then(|()| losses.settle_form(&screen.removed()[settled..]));
            if let Err(error) = taken {
                exchange.close_after();
                return Err(error.into());
            }
            settled = screen.removed().len();
            for piece in pieces.drain(..) {
                reads = reads && leg.write(&piece).await;
            }
            // An engine may answer before it has read everything, and then reads no more.
            if !reads {
                exchange.close_after();
                break;
            }
        }
        self.metrics.request_bytes.inc_by(came as u64);
        if reads {
            losses.count(&screen.finish().map_err(refused)?);
        }
        exchange.ignores(losses.notes.ignored().as_deref());
        let answered = tokio::select! {
            biased;
            answered = engines.finish(&mut leg) => answered,
            gone = exchange.gone() => return Err(gone.into()),
        };
        answered.map_err(ApiError::from)?;
        Ok(leg)
    }
}

/// A cache salt that a body gets here.
struct Salt {
    field: Field,
    json: Bytes,
}

/// The cache salt of `nvext`, which goes before the body's own; an empty one counts as none.
fn extension_salt(body: &[u8]) -> Result<Option<Salt>, ApiError> {
    let Ok(fields) = scan(body) else { return Ok(None) };
    let raw = stator_body::extension_salt(body, &fields);
    let raw = raw.map(salts::extension).transpose()?.flatten().and(raw);
    Ok(raw.map(|raw| Salt { field: Field::CacheSalt, json: Bytes::copy_from_slice(raw) }))
}

/// The cache salt of a tenant's request; none for a body without a prompt.
fn tenant_salt(exchange: &Exchange, tenant: &str, body: &[u8]) -> Result<Option<Salt>, ApiError> {
    let api = Api::find(exchange.method(), exchange.path());
    let (Some(field), Ok(fields)) = (api.and_then(space::salt_field), scan(body)) else {
        return Ok(None);
    };
    let own = fields.raw(body, field).map(|raw| salts::own(field, raw)).transpose()?.flatten();
    let extension = stator_body::extension_salt(body, &fields);
    let extension = extension.map(salts::extension).transpose()?.flatten();
    let mut json = Vec::new();
    write_string(&space::tenant_salt(tenant, own.as_deref(), extension.as_deref()), &mut json);
    Ok(Some(Salt { field, json: json.into() }))
}
