//! The gRPC service `envoy.service.ext_proc.v3.ExternalProcessor`.

use super::frames::Frames;
use super::machine::Machine;
use super::session::Session;
use super::settings::ExtProcSettings;
use crate::exchange::Director;
use http::{HeaderValue, Request, Response, header};
use stator_epp_metrics::Streams;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tonic::Status;
use tonic::body::Body;

/// The service's name, on the wire and in health checks.
pub const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Answers data planes; a clone answers alike.
pub struct ExtProc<D> {
    director: Arc<D>,
    settings: Arc<ExtProcSettings>,
    streams: Option<Streams>,
    /// Whether the operator was told that bodies come too late on this connection.
    late_bodies_known: Arc<AtomicBool>,
}

impl<D: Director> ExtProc<D> {
    /// A service that asks `director` for every request, and counts streams where somebody wants
    /// them counted.
    pub fn new(director: Arc<D>, settings: ExtProcSettings, streams: Option<Streams>) -> Self {
        Self { director, settings: Arc::new(settings), streams, late_bodies_known: Arc::default() }
    }

    /// The service of one more connection.
    pub(super) fn of_connection(&self) -> Self {
        Self { late_bodies_known: Arc::default(), ..self.clone() }
    }

    /// Most streams at once on one connection.
    pub(super) fn max_concurrent_streams(&self) -> u32 {
        self.settings.max_concurrent_streams
    }

    /// Begins to answer a request; the answer's body is what works.
    pub fn answer(&self, request: Request<Body>) -> Response<Body> {
        if request.uri().path() != PROCESS {
            let method = request.uri().path();
            return Status::unimplemented(format!("no method {method:?}")).into_http();
        }
        let machine = Machine::new(self.settings.clone(), self.late_bodies_known.clone());
        let frames = Frames::new(request.into_body(), self.settings.max_message_bytes);
        let count = self.streams.as_ref().map(Streams::opened);
        let session = Session::new(self.director.clone(), machine, frames, count);
        let mut response = Response::new(Body::new(session));
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(header::CONTENT_TYPE, grpc);
        response
    }
}

impl<D> Clone for ExtProc<D> {
    fn clone(&self) -> Self {
        Self {
            director: self.director.clone(),
            settings: self.settings.clone(),
            streams: self.streams.clone(),
            late_bodies_known: self.late_bodies_known.clone(),
        }
    }
}
