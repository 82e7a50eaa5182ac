//! Parts of a request that workers are chosen for.

use crate::constraint::Role;
use crate::decision::PlacementRequest;
use stator_protos::WorkerRank;

/// The part of a request's work that a worker is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// To compute the prompt and answer.
    Whole,
    /// To compute the prompt for another worker.
    Prefill,
    /// To answer with what the worker in slot `prefill` computes.
    Decode { prefill: u32 },
    /// To encode media.
    Encode,
}

impl Stage {
    pub(super) fn is_for(self, role: Role) -> bool {
        match self {
            Self::Whole => matches!(role, Role::Aggregated | Role::Decode),
            // An engine takes the KV of others only where it was set up for that.
            Self::Decode { .. } => matches!(role, Role::Decode | Role::DecodeOnly),
            Self::Prefill => role == Role::Prefill,
            Self::Encode => role == Role::Encode,
        }
    }

    /// Whether the worker that is chosen answers the request.
    pub(super) fn answers(self) -> bool {
        matches!(self, Self::Whole | Self::Decode { .. })
    }

    /// Whether the worker that is chosen computes the prompt.
    pub(super) fn computes(self) -> bool {
        matches!(self, Self::Whole | Self::Prefill)
    }

    /// The only worker that the request allows.
    pub(super) fn pinned(self, request: &PlacementRequest<'_>) -> Option<WorkerRank> {
        match self {
            Self::Whole | Self::Decode { .. } => request.pinned,
            Self::Prefill => request.prefill_pinned,
            Self::Encode => None,
        }
    }
}
