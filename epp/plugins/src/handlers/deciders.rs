//! Deciders say whether a request is split.
//!
//! `placement`'s `Split` decides the same for the proxy, which knows what a transfer takes. Gateways
//! send KV between engines that tell the picker nothing of it: here the configuration decides.

use crate::context::{BuildContext, PrefixSource};
use crate::params::Params;
use crate::scorers::tokens::uncached_tokens;
use stator_epp_scheduler::plugin::{Decider, PluginParts};
use stator_epp_scheduler::{Candidate, Request};
use std::sync::Arc;

/// `always-disagg-pd-decider`: every prompt is computed apart.
pub(crate) fn always(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    decider(Always)
}

/// `always-disagg-multimodal-decider`: every prompt with images, sound or video is encoded apart.
pub(crate) fn multimodal(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    decider(Multimodal)
}

/// `prefix-based-pd-decider`: prompts are computed apart that are long, and mostly new to the
/// endpoint that will answer.
///
/// Splits if the prompt has `promptTokens` or more, and `nonCachedTokens` or more of them are not
/// held by the endpoint. With `nonCachedTokens` 0, the default, nothing is split.
pub(crate) fn prefix_based(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    decider(PrefixBased {
        uncached: params.whole("nonCachedTokens", 0, 0..=u64::MAX),
        prompt: params.whole("promptTokens", 0, 0..=u64::MAX),
        prefix: context.prefix_source(params),
    })
}

fn decider(decider: impl Decider + 'static) -> PluginParts {
    PluginParts { decider: Some(Arc::new(decider)), ..PluginParts::default() }
}

struct Always;

impl Decider for Always {
    fn split(&self, _: &Request<'_>, _: &Candidate<'_>) -> bool {
        true
    }
}

struct Multimodal;

impl Decider for Multimodal {
    fn split(&self, request: &Request<'_>, _: &Candidate<'_>) -> bool {
        !request.prompt.multimodal.is_empty()
    }
}

struct PrefixBased {
    uncached: u64,
    prompt: u64,
    prefix: PrefixSource,
}

impl Decider for PrefixBased {
    fn split(&self, request: &Request<'_>, decode: &Candidate<'_>) -> bool {
        let uncached = uncached_tokens(request, decode, self.prefix);
        self.uncached > 0
            && u64::from(request.prompt.tokens) >= self.prompt
            && uncached >= self.uncached
    }
}
