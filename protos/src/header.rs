//! Names of HTTP headers and metadata that stator processes read and set.

/// Identity of a request, kept or made at the edge and returned to the client.
pub const REQUEST_ID: &str = "x-request-id";
/// W3C trace context, passed on to workers.
pub const TRACEPARENT: &str = "traceparent";
/// The worker that served a request, set on responses.
pub const WORKER_ID: &str = "x-stator-worker-id";
