//! The model's name in request bodies, also in those that come after the decision.

use crate::asked::Asked;
use crate::director::DirectorSettings;
use crate::exchange::Head;
use crate::text;
use bytes::Bytes;
use stator_body::{Body, Field, write_token_ids};
use stator_epp_pool::PoolView;
use std::sync::Arc;

/// Largest piece that an edited body is cut into; the data plane's protocol cuts smaller.
const PIECE_BYTES: usize = 1 << 20;

/// All that a rewrite of the model needs in a body that comes after the decision.
pub(crate) struct LateRewrite {
    /// The request's head.
    pub head: Head,
    /// The operator's choices.
    pub settings: Arc<DirectorSettings>,
}

/// A late body in which the model was rewritten.
pub(crate) struct Rewritten {
    /// The bytes that are sent on.
    pub body: Vec<Bytes>,
    /// The model that the client named.
    pub asked: String,
    /// The model that the endpoint is asked for.
    pub target: String,
    /// The rewrite that says so, if not a header.
    pub rewrite: Option<String>,
}

impl LateRewrite {
    /// Rewrites the model in the body that came; `None` where it stays. A body that nobody can read
    /// stays as it is: the endpoint says what is wrong with it.
    pub(crate) fn apply(&self, pieces: &[Bytes], sources: (&PoolView, u64)) -> Option<Rewritten> {
        let mut body = Body::new(usize::MAX);
        for piece in pieces {
            body.push(piece.clone()).expect("nothing is longer than all memory");
        }
        let asked = Asked::read(&self.head, body.contiguous(), &self.settings, sources).ok()?;
        let (target, rewrite) = asked.rewritten.clone()?;
        Some(Rewritten { body: edited(&body, &asked, None), asked: asked.model, target, rewrite })
    }
}

/// Whether the model of a request may be rewritten, whatever its body says.
pub(crate) fn may_rewrite(head: &Head, view: &PoolView) -> bool {
    text::header_of(head, text::REWRITE).is_some() || !view.rewrites.is_empty()
}

/// The body that is sent on: what came, but for the model's name, the token ids and the fields that
/// must not reach an engine.
pub(crate) fn edited(body: &Body, asked: &Asked, ids: Option<&[u32]>) -> Vec<Bytes> {
    let editor = asked.parsed.as_ref().and_then(|parsed| parsed.editor(&asked.body));
    let changes = asked.rewritten.is_some() || ids.is_some() || !asked.screening.is_empty();
    let Some(mut editor) = editor.filter(|_| changes) else {
        return body.chunks().to_vec();
    };
    editor.screen(&asked.screening);
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
