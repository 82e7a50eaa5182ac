//! Profile handlers run profiles and make one routing of their picks.

pub(crate) mod data_parallel;
pub(crate) mod deciders;
pub(crate) mod disagg;
pub(crate) mod header_profile;
pub(crate) mod single;

use stator_epp_scheduler::plugin::{Pick, PluginParts, ProfileHandler};
use std::sync::Arc;

/// Header that names the rank which a request is for, where one port takes requests for all.
const RANK_HEADER: &str = "x-data-parallel-host-port";

/// A plug-in that is a profile handler and nothing else.
fn handler(handler: impl ProfileHandler + 'static) -> PluginParts {
    PluginParts { handler: Some(Arc::new(handler)), ..PluginParts::default() }
}

/// `ip:port` of the first target, with brackets around an IPv6 address.
fn host_port(pick: &Pick<'_>) -> Option<String> {
    pick.targets.first().map(|target| target.endpoint.address.to_string())
}
