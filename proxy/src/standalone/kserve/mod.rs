//! KServe's open inference protocol at the proxy's edge: its paths, and its gRPC service. What a call
//! means is `stator_api::kserve`'s; how it runs is [`piece`]'s.

mod config;
pub(crate) mod grpc;
pub(crate) mod grpc_call;
pub(crate) mod piece;
pub(crate) mod route;
