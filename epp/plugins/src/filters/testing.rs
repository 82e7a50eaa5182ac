//! `header-based-testing-filter`.

use super::filter;
use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::plugin::{Filter, Moment, PluginParts};
use stator_epp_scheduler::{Candidate, Request};
use std::net::{IpAddr, SocketAddr};

/// Header that names the endpoints to keep.
///
/// Source: the conformance tests of the Gateway API inference extension.
const HEADER: &str = "test-epp-endpoint-selection";

/// `header-based-testing-filter`: keeps the endpoints that a header names, as `ip` (all of its
/// ports) or `ip:port`, separated by commas; addresses of others are passed over. Without the
/// header, or with nothing in it, all are kept. For conformance tests only.
pub(crate) fn header_based_testing(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    filter(ByHeader)
}

struct ByHeader;

impl Filter for ByHeader {
    fn filter(&self, request: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, _: Moment<'_>) {
        let header = request.headers.get(HEADER).unwrap_or_default();
        let wanted: Vec<_> = header.split(',').map(str::trim).filter(|w| !w.is_empty()).collect();
        if !wanted.is_empty() {
            candidates.retain(|c| wanted.iter().any(|wanted| names(wanted, c.endpoint.address)));
        }
    }
}

fn names(wanted: &str, address: SocketAddr) -> bool {
    match wanted.parse::<SocketAddr>() {
        Ok(wanted) => wanted == address,
        Err(_) => wanted.parse::<IpAddr>() == Ok(address.ip()),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, kept, made};
    use serde_json::Value;
    use stator_epp_scheduler::{HeaderView, Request};

    fn check(header: Option<&str>, wanted: &[u64]) {
        let headers: Vec<_> = header.map(|h| (super::HEADER, h)).into_iter().collect();
        let request = Request { headers: HeaderView(&headers), ..Request::default() };
        let plugin = made("header-based-testing-filter", Value::Null);
        let filter = plugin.filter.expect("it is a filter");
        assert_eq!(kept(&*filter, &request, Fleet::of(3).candidates()), wanted);
    }

    #[test]
    fn named_endpoints_are_kept() {
        check(None, &[0, 1, 2]);
        check(Some(" "), &[0, 1, 2]);
        check(Some("10.0.0.2"), &[1]);
        check(Some("10.0.0.1:8000, 10.0.0.3"), &[0, 2]);
        check(Some("10.0.0.1:8001,192.168.0.1"), &[]);
    }
}
