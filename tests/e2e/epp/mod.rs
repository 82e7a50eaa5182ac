//! `stator epp` behind a real Envoy and, in [`kube`], beside a real API server. Every test has an
//! Envoy, a picker and simulated engines of its own.

mod bodies;
mod choice;
mod clients;
mod disaggregation;
mod disruption;
mod endpoints;
mod grpc;
mod headers;
mod holders;
mod kube;
mod metrics;
mod refusals;
mod renaming;
mod replicas;
mod screening;
mod secure;
mod streaming;
mod testbed;
mod tokens;
mod traces;
mod waiting;
