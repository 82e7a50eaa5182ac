//! A call of KServe's protocol asks for the same completion over gRPC and as JSON.
//!
//! An input is a `ModelInferRequest`.

use prost::Message;
use stator_protos::inference::ModelInferRequest;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    if let Ok(request) = ModelInferRequest::decode(input) {
        stator_proxy::fuzz::grpc_call(request);
    }
}
