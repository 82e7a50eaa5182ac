//! Plug-ins of which nothing is to be known but that they are named.

use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::plugin::PluginParts;

/// A plug-in without parameters, whose work is done wherever its type name is known.
pub(crate) fn plain(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    PluginParts::default()
}

/// `k8s-notification-source`: endpoints are watched in any case, whatever object is named here.
pub(crate) fn k8s_source(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    for name in ["group", "version", "kind"] {
        params.text(name);
    }
    PluginParts::default()
}
