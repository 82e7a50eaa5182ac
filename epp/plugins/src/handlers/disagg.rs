//! `disagg-profile-handler` and `pd-profile-handler`.

use super::data_parallel::through_primary_port;
use super::{handler, host_port};
use crate::SPANS;
use crate::context::BuildContext;
use crate::location::PeerEndpoint;
use crate::params::Params;
use stator_epp_scheduler::Request;
use stator_epp_scheduler::plugin::{
    Decider, Pick, PluginParts, ProfileHandler, RouteError, Routing,
};
use std::sync::Arc;
use tracing::field::Empty;
use tracing::info_span;

/// Header that names the endpoint which computes the prompt.
const PREFILL_HEADER: &str = "x-prefiller-host-port";
/// Header that names the endpoints which encode images, sound and video.
const ENCODE_HEADER: &str = "x-encoder-hosts-ports";

/// `disagg-profile-handler`: one endpoint answers, others may compute the prompt's KV or encode
/// its images for it.
///
/// With `stageOrder: decode-first` the decode profile runs first. Then `deciders.encode` and
/// `deciders.prefill`, where given, look at the endpoint that it chose and say whether the encode
/// and prefill profiles run. With `prefill-first` the prefill profile runs first and always. A
/// profile without a pick leaves its work to the endpoint that answers, which learns of the others
/// by headers.
///
/// Source: the disaggregation headers of the llm-d routing sidecar.
pub(crate) fn disagg(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let order = [("decode-first", false), ("prefill-first", true)];
    let prefill_first = params.choice("stageOrder", &order);
    let [decode, prefill, encode] = params.within("profiles", |params| {
        ["decode", "prefill", "encode"].map(|stage| context.profile(params, stage, stage))
    });
    let (decide_prefill, decide_encode) = params.within("deciders", |params| {
        (context.decider(params, "prefill"), context.decider(params, "encode"))
    });
    if prefill_first && decide_prefill.is_some() {
        params.wrong("deciders.prefill", "cannot decide before prefill with prefill-first");
    }
    // Profiles that no decider leads to need not be there.
    require(params, context, "profiles.decode", Some(&decode));
    let prefills = prefill_first || decide_prefill.is_some();
    require(params, context, "profiles.prefill", prefills.then_some(&prefill));
    require(params, context, "profiles.encode", decide_encode.as_ref().map(|_| &encode));
    let peer = context.peer.clone();
    handler(Disagg {
        decode,
        prefill,
        encode,
        decide_prefill,
        decide_encode,
        prefill_first,
        port: None,
        peer,
    })
}

/// `pd-profile-handler`: the older form of `disagg-profile-handler`, without encoding.
pub(crate) fn pd(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    // Never had an effect, but configurations carry them.
    params.ignore("prefixPluginType");
    params.ignore("prefixPluginName");
    params.text("prefixMatchInfoProducerName");
    let named = params.has("deciderPluginName");
    let decider = context.decider(params, "deciderPluginName");
    let default = || context.built.get("prefix-based-pd-decider")?.decider.clone();
    let decide_prefill = if named { decider } else { default() };
    if decide_prefill.is_none() && !named {
        params.wrong("deciderPluginName", "no plug-in is called \"prefix-based-pd-decider\"");
    }
    let port = params.has("primaryPort").then(|| params.whole("primaryPort", 8000, 1..=65535));
    let decode = context.profile(params, "decodeProfile", "decode");
    let prefill = context.profile(params, "prefillProfile", "prefill");
    require(params, context, "decodeProfile", Some(&decode));
    require(params, context, "prefillProfile", Some(&prefill));
    handler(Disagg {
        decode,
        prefill,
        encode: "encode".to_owned(),
        decide_prefill,
        decide_encode: None,
        prefill_first: false,
        port: port.map(|port| port as u16),
        peer: context.peer.clone(),
    })
}

/// Leaves an error if a profile is needed that is not there and was not named.
fn require(
    params: &mut Params<'_>,
    context: &BuildContext,
    parameter: &str,
    profile: Option<&String>,
) {
    let missing = profile.filter(|profile| !context.profiles.contains(profile));
    if let Some(profile) = missing {
        let message = format!("{parameter}: no profile is called {profile:?}");
        params.wrong_once(message);
    }
}

struct Disagg {
    decode: String,
    prefill: String,
    encode: String,
    decide_prefill: Option<Arc<dyn Decider>>,
    decide_encode: Option<Arc<dyn Decider>>,
    prefill_first: bool,
    port: Option<u16>,
    peer: PeerEndpoint,
}

impl ProfileHandler for Disagg {
    fn route<'a>(
        &self,
        request: &Request<'_>,
        run: &mut dyn FnMut(&str) -> Option<Pick<'a>>,
    ) -> Result<Routing<'a>, RouteError> {
        // The peer of the request before would pull this one there.
        self.peer.forget();
        let early = if self.prefill_first { run(&self.prefill) } else { None };
        self.peer.meet(early.as_ref());
        let primary = run(&self.decode).ok_or(RouteError::Drained)?;
        let answers = &primary.targets[..1];
        let splits = |decider: &Option<Arc<dyn Decider>>| {
            let decider = decider.as_ref();
            decider.is_some_and(|decider| answers.iter().any(|at| decider.split(request, at)))
        };
        let picking = info_span!(
            target: SPANS, "pick_disagg_profile",
            llm_d.epp.pd.encodes = Empty, llm_d.epp.pd.disaggregation_used = Empty,
            llm_d.epp.pd.reason = Empty,
        );
        let decide = || (splits(&self.decide_encode), splits(&self.decide_prefill));
        let (encodes, prefills) = picking.in_scope(decide);
        picking.record("llm_d.epp.pd.encodes", encodes);
        picking.record("llm_d.epp.pd.disaggregation_used", prefills || early.is_some());
        picking.record("llm_d.epp.pd.reason", self.reason(early.is_some(), prefills));
        drop(picking);
        // The profile that runs second keeps near the choice of the first.
        if !self.prefill_first {
            self.peer.meet(Some(&primary));
        }
        let encode = if encodes { run(&self.encode) } else { None };
        let prefill = if prefills { run(&self.prefill) } else { early };
        Ok(self.routing(primary, encode, prefill))
    }
}

impl Disagg {
    /// Reason for computing a prompt apart, or not, in a word for traces.
    fn reason(&self, early: bool, prefills: bool) -> &'static str {
        match (&self.decide_prefill, prefills) {
            (Some(_), true) => "decider_split",
            _ if early => "prefill_first",
            (Some(_), false) => "decider_declined",
            (None, _) => "no_decider",
        }
    }

    fn routing<'a>(
        &self,
        primary: Pick<'a>,
        encode: Option<Pick<'a>>,
        prefill: Option<Pick<'a>>,
    ) -> Routing<'a> {
        let span = info_span!(
            target: SPANS, "prepare_disaggregation", llm_d.epp.pd.prefill_pod_address = Empty,
        );
        let _entered = span.enter();
        let mut routing = Routing::to(primary);
        // All encoders are named, since a sidecar spreads images over them; one prefiller
        // computes the prompt.
        if let Some(pick) = encode {
            let addresses: Vec<_> =
                pick.targets.iter().map(|target| target.endpoint.address.to_string()).collect();
            routing.headers.push((ENCODE_HEADER, addresses.join(",")));
            routing.others.push((self.encode.clone(), pick));
        }
        if let Some(pick) = prefill {
            if let Some(address) = host_port(&pick) {
                span.record("llm_d.epp.pd.prefill_pod_address", &*address);
                routing.headers.push((PREFILL_HEADER, address));
            }
            routing.others.push((self.prefill.clone(), pick));
        }
        match self.port {
            Some(port) => through_primary_port(routing, port),
            None => routing,
        }
    }
}

#[cfg(test)]
#[path = "handlers_tests.rs"]
mod tests;
