//! The profile of a stock engine for the fleet.

use super::openai;
use crate::config::StockSettings;
use stator_dialect::{Description, Pooling};
use stator_protos::discovery::{ProfileRecord, Role};

/// The parts of an engine's description that placement needs.
pub(super) fn profile(settings: &StockSettings, description: &Description) -> ProfileRecord {
    let handover = description.handover.as_ref().filter(|_| settings.role == Role::Prefill);
    ProfileRecord {
        adapters: description.adapters.clone(),
        batch_tokens: description.batch_tokens.unwrap_or(0),
        handover: handover.map(|json| json.get().to_owned()),
        needs_prefill: settings.role == Role::Decode && description.needs_prefill,
        embeds: description.pooling == Some(Pooling::Vector),
        classifies: description.pooling == Some(Pooling::Classes),
        pins: settings.kv_tiers.is_some() && settings.pins.share_percent > 0,
        bounds_thoughts: description.bounds_thoughts,
        only_pools: description.pooling.is_some(),
        api: openai::api(settings, description),
        ..ProfileRecord::default()
    }
}
