//! Kinds of the group `nvidia.com`, as Rust types and as custom resource definitions.
//!
//! A definition accepts every document that Dynamo's definition of the same kind accepts. Pods and
//! what stands in them are [`common::FreeObject`]s: the API server checks them when they become
//! Deployments.

pub(crate) mod alpha;
pub(crate) mod beta;
pub(crate) mod common;
mod definition;
mod schema;

pub(crate) use definition::definitions;

/// API group of all kinds.
pub(crate) const GROUP: &str = "nvidia.com";
/// Version that most kinds are stored in.
pub(crate) const BETA: &str = "nvidia.com/v1beta1";
/// Version that older manifests are written in.
pub(crate) const ALPHA: &str = "nvidia.com/v1alpha1";
