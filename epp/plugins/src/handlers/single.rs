//! `single-profile-handler`.

use super::handler;
use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::Request;
use stator_epp_scheduler::plugin::{Pick, PluginParts, ProfileHandler, RouteError, Routing};

/// `single-profile-handler`: runs the only profile there is; its pick answers.
pub(crate) fn single(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    handler(Single { profile: only_profile(params, context) })
}

/// The only profile of the configuration; it is an error if there are several.
pub(super) fn only_profile(params: &mut Params<'_>, context: &BuildContext) -> String {
    if context.profiles.len() > 1 {
        let count = context.profiles.len();
        params.wrong("type", format!("is for one scheduling profile, there are {count}"));
    }
    context.profiles.first().cloned().unwrap_or_else(|| "default".to_owned())
}

struct Single {
    profile: String,
}

impl ProfileHandler for Single {
    fn route<'a>(
        &self,
        _: &Request<'_>,
        run: &mut dyn FnMut(&str) -> Option<Pick<'a>>,
    ) -> Result<Routing<'a>, RouteError> {
        run(&self.profile).map(Routing::to).ok_or(RouteError::Drained)
    }
}
