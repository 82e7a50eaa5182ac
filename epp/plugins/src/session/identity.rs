//! Plug-ins that say where sessions are named.

use super::source::IdSource;
use crate::context::BuildContext;
use crate::params::Params;
use crate::settings::PluginSettings;
use stator_epp_scheduler::plugin::PluginParts;

/// Header of the identity unless configured otherwise.
const ID_HEADER: &str = "x-session-id";
/// Headers by which agents name their sessions.
///
/// Source: the agent identity of the llm-d router.
const AGENT_HEADERS: [&str; 4] =
    ["x-claude-code-session-id", "x-session-affinity", "session-id", "session_id"];

/// `session-id-producer`: takes a session's identity from a header or from a cookie, for plug-ins
/// that name it as an attribute.
pub(crate) fn session_id(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let (header, cookie) = (params.text("headerName"), params.text("cookieName"));
    let source = match (header, cookie) {
        (Some(header), None) => IdSource::Header(header.to_ascii_lowercase()),
        (None, Some(cookie)) => IdSource::Cookie(cookie),
        (None, None) => IdSource::Header(ID_HEADER.to_owned()),
        (Some(header), Some(_)) => {
            params.wrong("cookieName", "cannot be there together with headerName");
            IdSource::Header(header)
        }
    };
    context.new_id_source(vec![source.clone()]);
    context.settle(PluginSettings::SessionId(source))
}

/// `agent-identity`: knows the sessions of agents by the headers that they send, and those of
/// `additionalSessionHeaders`. The identity stands for the request's fairness id where there is
/// none.
pub(crate) fn agent_identity(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let more = params.texts("additionalSessionHeaders").into_iter();
    let headers = AGENT_HEADERS.into_iter().map(str::to_owned).chain(more);
    let sources: Vec<_> =
        headers.map(|header| IdSource::Header(header.to_ascii_lowercase())).collect();
    context.new_id_source(sources.clone());
    context.settle(PluginSettings::AgentIdentity(sources))
}

/// Reads `sources`: headers, or attributes of plug-ins that were built before.
pub(super) fn id_sources(params: &mut Params<'_>, context: &BuildContext) -> Vec<IdSource> {
    let sources = params.list("sources", |params| {
        let (header, attribute) = (params.text("header"), params.text("attribute"));
        let producer = params.text("producer").or_else(|| attribute.clone());
        match (header, attribute) {
            (Some(header), None) => vec![IdSource::Header(header.to_ascii_lowercase())],
            (None, Some(attribute)) => {
                let name = producer.unwrap_or_default();
                // By the name of the plug-in, or else by that of the attribute's own producer.
                let known = context.id_source(&name);
                let known = known.or_else(|| context.id_source(&format!("{attribute}-producer")));
                if known.is_none() {
                    params.wrong("attribute", format!("no plug-in makes {attribute:?}"));
                }
                known.unwrap_or_default().to_vec()
            }
            _ => {
                params.wrong("header", "is required, or attribute, and not both");
                Vec::new()
            }
        }
    });
    match sources.is_empty() {
        true => vec![IdSource::Header(ID_HEADER.to_owned())],
        false => sources.concat(),
    }
}
