//! A graph's document.

use crate::kinds::beta::{ComponentType, GraphSpec};
use serde_json::Value;

/// A graph as its document says.
pub(super) struct GraphDocument<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) metadata: &'a Value,
    pub(super) spec: GraphSpec,
    /// The specification as it was written.
    pub(super) written: &'a Value,
}

impl<'a> GraphDocument<'a> {
    pub(super) fn read(document: &'a Value) -> Result<Self, String> {
        let metadata = &document["metadata"];
        let spec = &document["spec"];
        Ok(Self {
            name: metadata["name"].as_str().ok_or("metadata.name: is missing")?,
            namespace: metadata["namespace"].as_str().unwrap_or("default"),
            metadata,
            spec: serde_json::from_value(spec.clone()).map_err(|error| format!("spec: {error}"))?,
            written: spec,
        })
    }

    /// Whether the graph has a component of this type.
    pub(super) fn has(&self, kind: ComponentType) -> bool {
        let components = self.spec.components.iter().flatten();
        components.into_iter().any(|component| component.shape.r#type == Some(kind))
    }
}
