//! The operator's settings for requests.

use crate::exchange::Interest;
use stator_api::UnknownFields;
use stator_body::{FieldRules, ParserSet};
use stator_epp_plugins::IdSource;
use stator_epp_plugins::settings::{InFlightLoad, MediaEstimate};
use stator_epp_signals::tokenizer::Renderer;
use std::sync::Arc;

/// The operator's settings for requests.
#[derive(Clone)]
pub struct DirectorSettings {
    /// APIs that are read.
    pub parsers: ParserSet,
    /// Fields that go on, of the bodies that are read.
    pub fields: FieldRules,
    /// Treatment of fields that are on no list.
    pub unknown_fields: UnknownFields,
    /// Whether a request is refused if nobody can screen its body.
    pub refuse_unscreened: bool,
    /// Least part of every answer that is watched.
    pub interest: Interest,
    /// Whether streams end with the request although the answer's body passes through. It spares
    /// the cost of every token, and loses answers that begin at the same moment.
    pub leaves_early: bool,
    /// Whether all candidates' scores go to the data plane.
    pub scores: bool,
    /// Whether the data plane is sent all endpoints of a decision, the fallbacks too. Data planes
    /// that take one address refuse a list.
    pub fallbacks: bool,
    /// Whether token ids travel on in `nvext.token_data` to endpoints that take them.
    pub token_ids: bool,
    /// Load that a request adds while it is in flight.
    pub in_flight: InFlightLoad,
    /// Sources of a request's fairness identity if no header gives it, first to last.
    pub identities: Vec<IdSource>,
    /// Estimates of the tokens of media, for prompts that are measured as text.
    pub media: MediaEstimate,
    /// The server that renders prompts to tokens, where the configuration names one.
    pub renderer: Option<Arc<Renderer>>,
    /// Whether answers tell the client which endpoint served them.
    pub verify_served: bool,
    /// Whether a plug-in reads prompts as text.
    pub reads_text: bool,
    /// Whether requests may name their endpoint.
    pub pins: bool,
}
