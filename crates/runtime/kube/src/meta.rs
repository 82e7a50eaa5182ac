//! Parts that objects of all kinds have, as far as they are read. Fields that are missing have
//! defaults: a newer or older server must not blind anybody.

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// An object of which `Spec` and `Status` are read; [`NoFields`] stands for either.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound = "Spec: Default + DeserializeOwned, Status: Default + DeserializeOwned")]
pub struct Object<Spec = NoFields, Status = NoFields> {
    /// Name, identity, labels and times.
    pub metadata: Metadata,
    /// The state that is wanted.
    pub spec: Spec,
    /// The state that was found.
    pub status: Status,
}

/// A time as objects have it, in whole seconds.
pub fn timestamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}

/// A part of an object that is not read.
#[derive(Debug, Default, Deserialize)]
pub struct NoFields {}

/// Metadata of every object.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Name within the namespace and kind.
    pub name: String,
    /// Namespace; empty of objects without one.
    pub namespace: String,
    /// Identity in space and time: an object that is made again has another.
    pub uid: String,
    /// Time of its creation, as RFC 3339 writes it.
    pub creation_timestamp: Option<String>,
    /// Time of its deletion, once that was asked for.
    pub deletion_timestamp: Option<String>,
    /// Labels, by name.
    pub labels: BTreeMap<String, String>,
    /// Annotations, by name.
    pub annotations: BTreeMap<String, String>,
    /// Objects that own it.
    pub owner_references: Vec<ObjectReference>,
}

impl Metadata {
    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// A reference to an object in the same namespace.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ObjectReference {
    /// Kind of the object, for example `Pod`.
    pub kind: String,
    /// Identity of the object.
    pub uid: String,
}

/// A condition in the status of an object.
#[derive(Debug, Deserialize)]
pub struct Condition {
    /// Name of the condition, for example `Ready`.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

impl Condition {
    /// Whether `conditions` say that the object is ready.
    pub fn is_ready(conditions: &[Self]) -> bool {
        conditions.iter().any(|one| one.r#type == "Ready" && one.status == "True")
    }
}
