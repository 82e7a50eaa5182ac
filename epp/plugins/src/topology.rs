//! Plug-ins that go by where endpoints are.

use crate::context::BuildContext;
use crate::filters::{filter, prefer};
use crate::location::{Levels, PeerEndpoint};
use crate::params::Params;
use crate::scorers::scorer;
use stator_epp_scheduler::plugin::{Filter, Moment, PluginParts, Scorer};
use stator_epp_scheduler::{Candidate, Request};
use std::sync::{Arc, OnceLock};

impl BuildContext {
    /// Labels that tell where an endpoint is; none if no plug-in goes by them.
    pub fn topology_labels(&self) -> Vec<String> {
        match self.topology {
            true => self.levels.get_or_init(Levels::default).0.to_vec(),
            false => Vec::new(),
        }
    }
}

/// `topology-extractor`: names the labels of a pod that tell its `hostname`, `rack`, `zone` and
/// `region`. An endpoint has those of its pod, and of its node where the pod has none.
pub(crate) fn extractor(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let defaults = Levels::default();
    let mut levels = defaults.0.into_iter();
    let labels = ["hostname", "rack", "zone", "region"]
        .map(|name| (params.text(name), levels.next().unwrap_or_default()));
    let labels = labels.map(|(given, default)| given.unwrap_or(default));
    context.claim("topology-extractor", params);
    context.levels.get_or_init(|| Levels(labels));
    PluginParts::default()
}

/// `topology-affinity-filter`: keeps endpoints near the one that the profile before chose: on the
/// same host, or at least in the same rack, zone or region, by `minAffinity`. Where nothing is
/// known of that one, or nobody is near, all are kept.
pub(crate) fn affinity_filter(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    params.text("topologyProducerName");
    let levels = [("host", 0), ("rack", 1), ("zone", 2), ("region", 3)];
    let farthest = params.choice("minAffinity", &levels);
    filter(Near { nearness: Nearness::of(context), farthest })
}

/// `topology-affinity-scorer`: prefers endpoints near the one that the profile before chose.
///
/// Score: 1 on the same host, 0.2 in the same rack, 0.05 in the zone, 0.02 in the region, else 0;
/// about as the bandwidth between them.
pub(crate) fn affinity_scorer(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    params.text("topologyProducerName");
    scorer(Nearness::of(context))
}

struct Nearness {
    peer: PeerEndpoint,
    levels: Arc<OnceLock<Levels>>,
}

impl Nearness {
    fn of(context: &mut BuildContext) -> Self {
        context.topology = true;
        Self { peer: context.peer.clone(), levels: Arc::clone(&context.levels) }
    }

    /// The closest level that each candidate has in common with the peer.
    fn levels<'c>(
        &'c self,
        candidates: &'c [&Candidate<'_>],
    ) -> impl Iterator<Item = Option<usize>> + 'c {
        let levels = self.levels.get_or_init(Levels::default);
        let place = self.peer.0.lock().as_ref().map(|peer| levels.locate(peer));
        candidates.iter().map(move |candidate| {
            place.as_ref().and_then(|place| levels.common(place, candidate.endpoint))
        })
    }
}

impl Scorer for Nearness {
    fn score(
        &self,
        _: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        for (score, level) in scores.iter_mut().zip(self.levels(candidates)) {
            *score = level.map_or(0.0, |level| [1.0, 0.2, 0.05, 0.02][level]);
        }
    }
}

struct Near {
    nearness: Nearness,
    farthest: usize,
}

impl Filter for Near {
    fn filter(&self, _: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, _: Moment<'_>) {
        let levels: Vec<_> = self.nearness.levels(candidates).collect();
        let mut levels = levels.into_iter();
        prefer(candidates, |_| levels.next().flatten().is_some_and(|level| level <= self.farthest));
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, check_scores, kept};
    use crate::{BuildContext, build};
    use serde_json::{Value, json};
    use stator_epp_scheduler::Request;
    use stator_epp_scheduler::plugin::{Pick, PluginParts};

    const HOST: &str = "kubernetes.io/hostname";
    const RACK: &str = "rack";
    const ZONE: &str = "topology.kubernetes.io/zone";

    fn fleet() -> Fleet {
        Fleet::labelled(&[
            &[(HOST, "h1"), (RACK, "r1"), (ZONE, "z1")],
            &[(HOST, "h1"), (RACK, "r1"), (ZONE, "z1")],
            &[(HOST, "h2"), (RACK, "r1"), (ZONE, "z1")],
            &[(HOST, "h3"), (RACK, "r2"), (ZONE, "z1")],
            &[],
        ])
    }

    /// A plug-in whose peer is the first endpoint, if `met`.
    fn built(type_name: &str, parameters: &Value, met: bool) -> PluginParts {
        let mut context = BuildContext::new(vec!["default".to_owned()]);
        let rack = json!({"rack": RACK});
        build("topology-extractor", "levels", &rack, &mut context).expect("it can be built");
        if met {
            let fleet = fleet();
            let targets = fleet.candidates()[..1].to_vec();
            context.peer.meet(Some(&Pick { targets }));
        }
        build(type_name, "near", parameters, &mut context).expect("it can be built")
    }

    #[test]
    fn nearness_is_scored_by_the_closest_common_level() {
        let check = |met, wanted: &[f64]| {
            let scorer = built("topology-affinity-scorer", &Value::Null, met).scorer;
            let scorer = scorer.expect("it is a scorer");
            check_scores(&*scorer, &Request::default(), &fleet().candidates(), wanted);
        };
        check(true, &[1.0, 1.0, 0.2, 0.05, 0.0]);
        check(false, &[0.0; 5]);
    }

    #[test]
    fn far_endpoints_are_dropped_unless_all_are_far() {
        let check = |least: &str, met, wanted: &[u64]| {
            let parameters = json!({"minAffinity": least});
            let filter = built("topology-affinity-filter", &parameters, met).filter;
            let filter = filter.expect("it is a filter");
            assert_eq!(kept(&*filter, &Request::default(), fleet().candidates()), wanted);
        };
        check("host", true, &[0, 1]);
        check("rack", true, &[0, 1, 2]);
        check("zone", true, &[0, 1, 2, 3]);
        check("host", false, &[0, 1, 2, 3, 4]);
        let wanted = "minAffinity: \"near\" is none of host, rack, zone, region";
        check_errors("topology-affinity-filter", json!({"minAffinity": "near"}), &[wanted]);
    }
}
