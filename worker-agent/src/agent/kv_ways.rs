//! The agent's ways of KV to and from other agents, opened before the agent registers.

use crate::config::AgentSettings;
use crate::kv::handovers::Handovers;
use crate::kv::lending::KvLending;
use crate::kv::offer::KvOffer;
use crate::kv::transfer_room::TransferRoom;
use crate::served_model::ServedModel;
use stator_engine::transfer::KvForm;
use stator_protos::discovery::Role;
use std::sync::Arc;

/// Ways of KV of an agent.
#[derive(Default)]
pub(super) struct KvWays {
    /// Memory for KV on its way, of engines of our own that share requests.
    pub(super) room: Option<TransferRoom>,
    /// Prompts for other agents.
    pub(super) handovers: Option<Arc<Handovers>>,
    /// The socket where KV is lent, which lives as long as this.
    _lending: Option<Arc<KvLending>>,
}

impl KvWays {
    /// Opens the ways of a model whose agent is at `endpoint`, and puts an offer of its KV into the
    /// model's profile.
    pub(super) fn open(
        settings: &AgentSettings,
        served: &mut ServedModel,
        lending: Option<Arc<KvLending>>,
        endpoint: &str,
    ) -> Self {
        let shares = matches!(settings.profile.role, Role::Prefill | Role::Decode);
        let form = served.kv_form().filter(|_| shares);
        let room = form.and_then(|form| open_room(settings, form));
        let mut handovers = None;
        if let (Role::Prefill, Some(form), Some(room)) = (settings.profile.role, form, &room) {
            handovers = open_handovers(settings, lending.as_deref(), room, endpoint);
            if let (Some(_), Some(lending)) = (&handovers, &lending) {
                let offer =
                    KvOffer { form: form.fingerprint, transfer: lending.address().to_owned() };
                served.profile.handover = serde_json::to_string(&offer).ok();
            }
        }
        Self { room, handovers, _lending: lending }
    }
}

/// Memory for KV on its way; `None` on systems that have none to offer.
fn open_room(settings: &AgentSettings, form: KvForm) -> Option<TransferRoom> {
    let key = settings.access.kv.fleet_key.clone();
    let room = TransferRoom::new(form, settings.kv_handover_bytes, key);
    room.inspect_err(|error| tracing::warn!(%error, "KV is not shared with other agents")).ok()
}

/// Prompts for other agents, unless nobody would believe their KV or could reach it.
fn open_handovers(
    settings: &AgentSettings,
    lending: Option<&KvLending>,
    room: &TransferRoom,
    endpoint: &str,
) -> Option<Arc<Handovers>> {
    if !settings.access.kv.covers(endpoint) {
        let advice = "give all agents one --fleet-secret-file, or their request planes mutual TLS";
        tracing::warn!(endpoint, advice, "KV is not shared with agents on other machines");
        return None;
    }
    let Some(lending) = lending else {
        tracing::warn!("KV is not shared with other agents: --kv-transfer-listen is off");
        return None;
    };
    let handovers = Handovers::new(room.clone());
    lending.hand_over(handovers.clone());
    Some(handovers)
}
