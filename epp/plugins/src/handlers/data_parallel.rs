//! `data-parallel-profile-handler`.

use super::single::only_profile;
use super::{RANK_HEADER, handler, host_port};
use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::Request;
use stator_epp_scheduler::plugin::{Pick, PluginParts, ProfileHandler, RouteError, Routing};

/// `data-parallel-profile-handler`: runs the only profile there is, and sends the request to
/// `primaryPort` of the pod it picked, with a header that names the rank. For data planes that
/// know one port of a pod; others take `single-profile-handler`.
pub(crate) fn data_parallel(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let profile = only_profile(params, context);
    handler(DataParallel { profile, port: params.whole("primaryPort", 8000, 1..=65535) as u16 })
}

struct DataParallel {
    profile: String,
    port: u16,
}

impl ProfileHandler for DataParallel {
    fn route<'a>(
        &self,
        _: &Request<'_>,
        run: &mut dyn FnMut(&str) -> Option<Pick<'a>>,
    ) -> Result<Routing<'a>, RouteError> {
        let pick = run(&self.profile).ok_or(RouteError::Drained)?;
        Ok(through_primary_port(Routing::to(pick), self.port))
    }
}

/// Sends a request to `port` and says in a header which rank it is for.
pub(super) fn through_primary_port<'a>(mut routing: Routing<'a>, port: u16) -> Routing<'a> {
    routing.headers.extend(host_port(&routing.primary).map(|rank| (RANK_HEADER, rank)));
    routing.port = Some(port);
    routing
}
