//! Numbers of workers, by role.

use serde::{Deserialize, Serialize};
use stator_protos::discovery::Role;

/// Roles that are scaled.
pub const ROLES: [Role; 3] = [Role::Prefill, Role::Decode, Role::Aggregated];

/// Name of a role in flags, files and metrics.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Aggregated => "aggregated",
        Role::Encode => "encode",
    }
}

/// Workers of each role. A graph has either aggregated workers, or prefill and decode workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Replicas {
    /// Workers that only compute prompts.
    pub prefill: u32,
    /// Workers that answer from prompts that others computed.
    pub decode: u32,
    /// Workers that do both.
    pub aggregated: u32,
}

impl Replicas {
    /// As many workers of every role as `of` says.
    pub fn from_fn(of: impl Fn(Role) -> u32) -> Self {
        Self {
            prefill: of(Role::Prefill),
            decode: of(Role::Decode),
            aggregated: of(Role::Aggregated),
        }
    }

    /// Workers of a role; encoders are not scaled.
    pub fn of(&self, role: Role) -> u32 {
        match role {
            Role::Prefill => self.prefill,
            Role::Decode => self.decode,
            Role::Aggregated => self.aggregated,
            Role::Encode => 0,
        }
    }

    /// Sets the workers of a role.
    pub fn set(&mut self, role: Role, workers: u32) {
        match role {
            Role::Prefill => self.prefill = workers,
            Role::Decode => self.decode = workers,
            Role::Aggregated => self.aggregated = workers,
            Role::Encode => {}
        }
    }

    /// GPUs of these workers, if one worker of each role has `each`.
    pub fn gpus(&self, each: &Self) -> u32 {
        ROLES.iter().map(|role| self.of(*role).saturating_mul(each.of(*role))).sum()
    }
}
