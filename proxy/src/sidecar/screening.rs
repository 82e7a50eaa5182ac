//! The bodies of requests on their way to the engine: without the fields that no engine gets.
//!
//! A client that steers engines is refused. Fields that a proxy of ours has set, and those that a
//! picker has obeyed, are removed.

use super::service::Sidecar;
use super::trace;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::upstream::engines::Leg;
use crate::upstream::passage::Losses;
use crate::upstream::salts::{self, CACHE_SALT};
use bytes::Bytes;
use http::header;
use pingora::http::RequestHeader;
use pingora::upstreams::peer::HttpPeer;
use stator_api::openai::ApiError;
use stator_api::openai::body::EXTENSION_SALT;
use stator_api::passed_fields::PassingEdge;
use stator_body::{Api, FormError, FormScreen, Object, scan};
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
        if screened.len() == body.len() {
            return Ok(screened);
        }
        if !proxy {
            self.metrics.stripped.inc();
        }
        let salt = extension_salt(&body)?;
        if salt.is_none() && !proxy {
            return Ok(screened);
        }
        let object = Object::parse(&screened);
        let object = object.map_err(|error| ApiError::invalid_json(error.to_string()))?;
        let mut edit = object.edit();
        if proxy {
            edit = edit.set(KV_PARAMETERS, nixl::PREFILL);
        }
        if let Some(salt) = salt {
            edit = edit.set(CACHE_SALT, Bytes::copy_from_slice(salt));
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

/// The cache salt of `nvext` as JSON, which goes before the body's own; an empty one counts as none.
fn extension_salt(body: &[u8]) -> Result<Option<&[u8]>, ApiError> {
    let Ok(fields) = scan(body) else { return Ok(None) };
    let raw = stator_body::extension_salt(body, &fields);
    Ok(raw.map(salts::extension).transpose()?.flatten().and(raw))
}
