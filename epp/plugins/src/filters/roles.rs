//! Filters that go by the role label of endpoints.

use super::filter;
use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::plugin::{Filter, Moment, PluginParts};
use stator_epp_scheduler::{Candidate, Request, Roles};

/// `decode-filter`: keeps endpoints that decode; those without a role label do.
pub(crate) fn decode(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    filter(ByRole(|roles| roles.decode))
}

/// `prefill-filter`: keeps endpoints that prefill for others.
pub(crate) fn prefill(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    filter(ByRole(|roles| roles.prefill))
}

/// `encode-filter`: keeps endpoints that encode for others.
pub(crate) fn encode(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    filter(ByRole(|roles| roles.encode))
}

struct ByRole(fn(Roles) -> bool);

impl Filter for ByRole {
    fn filter(&self, _: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, _: Moment<'_>) {
        candidates.retain(|candidate| (self.0)(candidate.endpoint.roles));
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, kept, made};
    use serde_json::{Value, json};
    use stator_epp_scheduler::Request;

    fn check(type_name: &str, wanted: &[u64]) {
        let role = "llm-d.ai/role";
        let fleet = Fleet::labelled(&[
            &[],
            &[(role, "prefill")],
            &[(role, "decode")],
            &[(role, "both")],
            &[(role, "encode-prefill")],
        ]);
        let filter = made(type_name, Value::Null).filter.expect("it is a filter");
        assert_eq!(kept(&*filter, &Request::default(), fleet.candidates()), wanted);
    }

    #[test]
    fn roles_are_kept_by_label() {
        check("decode-filter", &[0, 2, 3]);
        check("prefill-filter", &[1, 3, 4]);
        check("encode-filter", &[4]);
        let wanted = "role: unknown parameter, there are none";
        check_errors("decode-filter", json!({"role": "x"}), &[wanted]);
    }
}
