//! Sources of the KV events of an engine's ranks.

use super::engine::StockEngine;
use stator_dialect::{EventSource, Kind};
use stator_events::subscribe::Subscription;
use stator_http::{Bearer, TlsOptions, Url};
use stator_signals::events::{FollowSettings, Source, TrtLlmDrain, TrtLlmSettings};
use std::collections::VecDeque;
use std::num::NonZeroU32;
use tokio::task::JoinSet;

/// Blocks of tiers that a rank publishes at most.
const TIER_BLOCKS_MAX: usize = 1 << 22;

/// A source for each rank, in order; none where the engine publishes no events. Tasks that the
/// sources need are spawned into `beside`.
pub(super) fn sources(engine: &StockEngine, beside: &mut JoinSet<()>) -> VecDeque<Source> {
    match engine.settings.kind {
        Kind::Vllm | Kind::Sglang => engine.description.events.iter().map(subscribed).collect(),
        Kind::Trtllm => drained(engine, beside),
        Kind::Openai => VecDeque::new(),
    }
}

/// Limits for following a rank with this many blocks: room for blocks whose removal is not reported
/// yet, for duplicates, and for those of tiers.
pub(super) fn settings(block_size: u32, total_blocks: u32, has_tiers: bool) -> FollowSettings {
    let own = (total_blocks as usize).saturating_mul(4).max(1024);
    let blocks_max = own + if has_tiers { TIER_BLOCKS_MAX } else { 0 };
    FollowSettings { blocks_max, ..FollowSettings::new(tokens(block_size)) }
}

fn subscribed(source: &EventSource) -> Source {
    let subscription = Subscription {
        endpoint: source.endpoint.clone(),
        prefixes: vec![source.topic.clone()],
        silence: None,
    };
    Source::Zmq { subscription, replay_endpoint: source.replay.clone() }
}

/// TensorRT-LLM has one list for all ranks.
fn drained(engine: &StockEngine, beside: &mut JoinSet<()>) -> VecDeque<Source> {
    let url = Url::parse(&engine.place.url()).ok();
    let origin = url.and_then(|url| url.origin(&TlsOptions::default()).ok());
    let Some(origin) = origin else { return VecDeque::new() };
    let bearer = engine.settings.api_key.as_ref().and_then(|key| Bearer::new(&key.0));
    let settings =
        TrtLlmSettings { bearer, ..TrtLlmSettings::new(origin, tokens(engine.block_size)) };
    let (drain, sources) = TrtLlmDrain::new(settings, engine.description.ranks.max(1));
    beside.spawn(drain.run());
    sources.into()
}

/// Tokens per block; an engine that says 0 is refused before.
fn tokens(block_size: u32) -> NonZeroU32 {
    NonZeroU32::new(block_size).unwrap_or(NonZeroU32::MIN)
}
