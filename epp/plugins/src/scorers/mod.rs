//! What ranks endpoints.

pub(crate) mod context_length;
pub(crate) mod header_label;
pub(crate) mod kv_aware;
pub(crate) mod latency;
pub(crate) mod lmetric;
pub(crate) mod load;
pub(crate) mod lora;
pub(crate) mod no_hit_lru;
pub(crate) mod prefix;
pub(crate) mod tokens;

use stator_epp_scheduler::plugin::{Built, Scorer};
use std::sync::Arc;

/// A plug-in that is a scorer and nothing else.
pub(crate) fn scorer(scorer: impl Scorer + 'static) -> Built {
    Built { scorer: Some(Arc::new(scorer)), ..Built::default() }
}
