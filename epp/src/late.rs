//! The changes of request bodies, also of those that come after the decision.

use crate::director::settings::DirectorSettings;
use crate::exchange::{Refusal, RequestBody, RequestHead};
use crate::parsed_request::{ParsedRequest, RewriteSource, described};
use crate::refuse;
use crate::text;
use bytes::Bytes;
use stator_body::{Body, Field, Screening, write_token_ids};
use stator_epp_pool::PoolView;
use std::sync::Arc;

/// Largest piece that an edited body is cut into; the data plane's protocol cuts smaller.
const PIECE_BYTES: usize = 1 << 20;

/// All that the changes of a body need that comes after the decision.
pub(crate) struct LateEdit {
    /// The request's head.
    pub head: RequestHead,
    /// The operator's choices.
    pub settings: Arc<DirectorSettings>,
}

/// A late body as it goes on.
pub(crate) struct LateBody {
    /// The bytes that are sent on.
    pub body: Vec<Bytes>,
    /// The fields that it lost.
    pub screening: Screening,
    /// Names of fields that changed nothing, for the client.
    pub ignored: Option<String>,
    /// Whether nobody here can say what it holds.
    pub unread: bool,
    /// The model that the client named, where the endpoint is asked for another one.
    pub asked_model: String,
    /// The other model, and the rewrite that names it, unless a header does.
    pub rewritten: Option<(String, Option<String>)>,
}

impl LateEdit {
    /// The changes of a body that is still to come; nothing where it comes unchanged.
    pub(crate) fn of(
        head: &RequestHead,
        settings: &Arc<DirectorSettings>,
        view: &PoolView,
    ) -> Option<Self> {
        let changes = described(head).is_readable() || may_rewrite(head, view);
        (head.body == RequestBody::Late && changes)
            .then(|| Self { head: head.clone(), settings: settings.clone() })
    }

    /// Removes what must not reach an engine from the body that came, and rewrites the model.
    ///
    /// # Errors
    ///
    /// The refusal of what [`ParsedRequest::read`] cannot read.
    pub(crate) fn apply(
        &self,
        pieces: &[Bytes],
        source: RewriteSource<'_>,
    ) -> Result<LateBody, Refusal> {
        let mut body = Body::new(usize::MAX);
        for piece in pieces {
            body.push(piece.clone()).expect("nothing is longer than all memory");
        }
        let request = ParsedRequest::read(&self.head, body.contiguous(), &self.settings, source)
            .map_err(|error| refuse::unreadable(&error, &self.head))?;
        let body = edited(&body, &request, None);
        let ParsedRequest { model, rewritten, screening, ignored, unread, .. } = request;
        Ok(LateBody { body, screening, ignored, unread, asked_model: model, rewritten })
    }
}

/// Whether the model of a request may be rewritten, whatever its body says.
pub(crate) fn may_rewrite(head: &RequestHead, view: &PoolView) -> bool {
    text::header_of(head, text::REWRITE).is_some() || !view.rewrites.is_empty()
}

/// The body that is sent on: what came, but for the model's name, the tenant's salt, the token ids and
/// the fields that must not reach an engine.
pub(crate) fn edited(body: &Body, request: &ParsedRequest, ids: Option<&[u32]>) -> Vec<Bytes> {
    let salt = request.tenant_salt.as_ref();
    // One member of `nvext` can be written, and isolation goes before speed.
    let ids = ids.filter(|_| salt.is_none_or(|salt| !salt.is_extended));
    let changes = request.rewritten.is_some()
        || salt.is_some()
        || ids.is_some()
        || !request.screening.is_empty();
    if !changes {
        return body.chunks().to_vec();
    }
    let editor = request.parsed.as_ref().and_then(|parsed| parsed.editor(&request.body));
    let Some(mut editor) = editor else {
        return request.screening.edits().pieces(body, PIECE_BYTES).collect();
    };
    editor.screen(&request.screening);
    if let Some((model, _)) = &request.rewritten {
        editor.set_string(Field::Model, model);
    }
    if let Some(salt) = salt {
        salt.write(&mut editor);
    }
    if let Some(ids) = ids {
        let mut json = Vec::with_capacity(ids.len() * 6 + 2);
        write_token_ids(ids, &mut json);
        editor.merge(Field::Nvext, "token_data", json);
    }
    editor.finish().pieces(body, PIECE_BYTES).collect()
}
