//! `header-profile-handler`.

use super::handler;
use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::Request;
use stator_epp_scheduler::plugin::{Pick, PluginParts, ProfileHandler, RouteError, Routing};

/// `header-profile-handler`: runs the profile that the header `headerName` names, or
/// `defaultProfile` without one. For coordinators that ask for each stage apart.
pub(crate) fn header_profile(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let header = params.text("headerName").unwrap_or_else(|| "EPP-Profile".to_owned());
    handler(HeaderProfile {
        header: header.to_ascii_lowercase(),
        default: context.profile(params, "defaultProfile", "decode"),
        profiles: context.profiles.clone(),
    })
}

struct HeaderProfile {
    header: String,
    default: String,
    profiles: Vec<String>,
}

impl ProfileHandler for HeaderProfile {
    fn route<'a>(
        &self,
        request: &Request<'_>,
        run: &mut dyn FnMut(&str) -> Option<Pick<'a>>,
    ) -> Result<Routing<'a>, RouteError> {
        let profile = request.headers.get(&self.header).unwrap_or(&self.default);
        if !self.profiles.iter().any(|known| known == profile) {
            return Err(RouteError::UnknownProfile(profile.to_owned()));
        }
        run(profile).map(Routing::to).ok_or(RouteError::Drained)
    }
}
