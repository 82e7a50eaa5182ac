//! Place of a pod in its graph, as far as its containers depend on it.

use super::Substitutes;
use crate::kinds::beta::ComponentType;

/// Place of a pod in its graph.
#[derive(Clone, Debug)]
pub(crate) struct PodPlace<'a> {
    /// Component of the pod.
    pub(crate) component: &'a str,
    pub(crate) kind: Option<ComponentType>,
    /// Whether one engine spans several nodes.
    pub(crate) is_multinode: bool,
    /// Place where the workers are found, as `--discovery` takes it.
    pub(crate) discovery: String,
    /// Words of a planner's command line that follow from its graph.
    pub(crate) scaled: Vec<String>,
    pub(crate) substitutes: &'a Substitutes,
}
