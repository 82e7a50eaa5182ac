//! Families of connectors: the ways in which two vLLMs share a request.

use crate::Fault;

/// The connectors that are known, by how a request is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Prefill answers with what decode is told; decode reads the KV from it, or prefill writes it.
    Nixl { reads: bool },
    /// Both are told the same, at once.
    Mooncake,
    /// Decode finds the KV that prefill stored by the prompt, in storage that both see: neither
    /// gets parameters.
    Storage,
    /// Prefill keeps the KV in host memory under a name, and decode reads it there.
    Offloading,
    /// Prefill is told who decodes, and decode what prefill answers.
    Moriio,
}

impl Family {
    /// Whether KV goes from prefill to decode, rather than to a place where decode looks for it.
    pub(super) fn hands_over(self) -> bool {
        matches!(self, Self::Nixl { .. } | Self::Mooncake | Self::Moriio)
    }
}

/// The family of a connector.
///
/// # Errors
///
/// [`Fault::Unsupported`] where that is not known.
pub(super) fn family(connector: &str) -> Result<Family, Fault> {
    match connector {
        "NixlConnector" => Ok(Family::Nixl { reads: true }),
        "NixlPushConnector" => Ok(Family::Nixl { reads: false }),
        "MooncakeConnector" => Ok(Family::Mooncake),
        // The older name of the first is the second.
        "ExampleConnector" | "SharedStorageConnector" => Ok(Family::Storage),
        "LMCacheConnectorV1" | "LMCacheMPConnector" => Ok(Family::Storage),
        "OffloadingConnector" => Ok(Family::Offloading),
        "MoRIIOConnector" => Ok(Family::Moriio),
        _ => Err(Fault::Unsupported(format!("connector {connector:?} is none that is known"))),
    }
}
