//! Settings of where endpoints come from.

use super::PluginSettings;
use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::plugin::PluginParts;

/// Settings of `file-discovery`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDiscovery {
    /// The file with the endpoints.
    pub path: String,
    /// Whether to read it again when it changes; yes unless configured otherwise.
    pub watch: bool,
}

/// `file-discovery`: endpoints from a file instead of a cluster.
pub(crate) fn file_discovery(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let (path, watch) = (params.required_text("path"), params.flag("watchFile", true));
    context.settle(PluginSettings::FileDiscovery(FileDiscovery { path, watch }))
}
