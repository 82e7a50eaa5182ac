//! The objects that a picker watches, for fuzz targets.

use crate::PoolView;
use crate::kubernetes::{PoolRef, objects};

/// Reads an object of the Kubernetes API as a pod, a node, a pool, an objective and a rewrite;
/// tells as which of them it could be read.
pub fn kubernetes_object(json: &str) -> [bool; 5] {
    let of = PoolRef::new("default", "a");
    [
        objects::pod(json).is_ok(),
        objects::node(json, &["zone".to_owned()]).is_ok(),
        objects::pool(json).is_ok(),
        objects::objective(json, &of).is_ok(),
        objects::rewrite(json, &of).is_ok(),
    ]
}

/// Reads the content of a file of endpoints.
///
/// # Errors
///
/// All faults, each with its path in the file.
pub fn endpoints_file(content: &[u8]) -> Result<PoolView, Vec<String>> {
    crate::file::view(content)
}
