//! `header-label-affinity-scorer`.

use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::plugin::{Moment, PluginParts, ResponseHeaders, Routing, Scorer};
use stator_epp_scheduler::{Candidate, Request};
use std::sync::Arc;

/// `header-label-affinity-scorer`: prefers endpoints with a label that a request's header names.
///
/// Score: 1 where the label `labelKey` equals the header `headerName`, else 0. Unless
/// `stampResponseHeader` is false the answer carries the label of the chosen endpoint in that
/// header, for the client to send again.
pub(crate) fn header_label_affinity(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    let plugin = Arc::new(HeaderLabel {
        // Headers on answers have names that live as long as the process; there are as many of
        // these as plug-ins are configured.
        header: params.required_text("headerName").to_ascii_lowercase().leak(),
        label: params.required_text("labelKey"),
    });
    let stamps = params.flag("stampResponseHeader", true);
    PluginParts {
        scorer: Some(plugin.clone()),
        response_headers: stamps.then_some(plugin),
        ..PluginParts::default()
    }
}

struct HeaderLabel {
    header: &'static str,
    label: String,
}

impl Scorer for HeaderLabel {
    fn score(
        &self,
        request: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        let wanted = request.headers.get(self.header);
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            let label = candidate.endpoint.label(&self.label);
            *score = f64::from(u8::from(wanted.is_some() && label == wanted));
        }
    }
}

impl ResponseHeaders for HeaderLabel {
    fn response_headers(
        &self,
        _: &Request<'_>,
        routing: &Routing<'_>,
    ) -> Vec<(&'static str, String)> {
        let chosen = routing.primary.targets.first();
        let label = chosen.and_then(|chosen| chosen.endpoint.label(&self.label));
        label.map(|label| (self.header, label.to_owned())).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, check_scores, made, routed};
    use serde_json::json;
    use stator_epp_scheduler::{HeaderView, Request};

    #[test]
    fn endpoints_with_the_named_label_score_one() {
        let fleet = Fleet::labelled(&[&[("zone", "a")], &[("zone", "b")], &[]]);
        let parameters = json!({"headerName": "X-Zone", "labelKey": "zone"});
        let plugin = made("header-label-affinity-scorer", parameters);
        let scorer = plugin.scorer.expect("it is a scorer");
        let headers = [("x-zone", "b")];
        let request = Request { headers: HeaderView(&headers), ..Request::default() };
        check_scores(&*scorer, &request, &fleet.candidates(), &[0.0, 1.0, 0.0]);
        check_scores(&*scorer, &Request::default(), &fleet.candidates(), &[0.0; 3]);
        let stamped = plugin
            .response_headers
            .expect("it stamps answers")
            .response_headers(&request, &routed(&fleet.candidates()[0]));
        assert_eq!(stamped, [("x-zone", "a".to_owned())]);
    }

    #[test]
    fn header_and_label_are_required() {
        check_errors(
            "header-label-affinity-scorer",
            json!({}),
            &["headerName: is required", "labelKey: is required"],
        );
    }
}
