//! The service itself: `Check`, `List` and `Watch`.

use super::Health;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use http::{Request, Response as HttpResponse};
use stator_runtime::shutdown::Shutdown;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio_stream::wrappers::WatchStream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_prost::ProstCodec;

const LIST: &str = "/grpc.health.v1.Health/List";

/// `HealthListRequest`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HealthListRequest {}

/// `HealthListResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthListResponse {
    /// All services and how they are.
    #[prost(map = "string, message", tag = "1")]
    pub statuses: HashMap<String, HealthCheckResponse>,
}

/// `grpc.health.v1.Health`.
#[derive(Clone)]
pub struct HealthService {
    answers: Answers,
    generated: HealthServer<Answers>,
}

#[derive(Clone)]
struct Answers {
    health: Health,
    until: Shutdown,
}

impl HealthService {
    pub(super) fn new(health: Health, until: Shutdown) -> Self {
        let answers = Answers { health, until };
        let generated = HealthServer::from_arc(Arc::new(answers.clone()));
        Self { answers, generated }
    }
}

#[tonic::async_trait]
impl health_server::Health for Answers {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        match self.health.is_serving(&service) {
            Some(serving) => Ok(Response::new(response(status(serving)))),
            None => Err(Status::not_found(format!("no service {service:?}"))),
        }
    }

    async fn watch(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let service = request.into_inner().service;
        let health = self.health.clone();
        let mut last = None;
        let changes =
            WatchStream::new(health.readiness_of(&service).clone()).filter_map(move |_| {
                let serving = health.is_serving(&service);
                let new = last.replace(serving) != Some(serving);
                // As the protocol has it, the watch of an unknown name waits for it to be known.
                let status = serving.map_or(ServingStatus::ServiceUnknown, status);
                std::future::ready(new.then(|| Ok(response(status))))
            });
        // Otherwise a watch would hold up the server's end until it is cut off.
        let until = self.until.clone();
        let changes = changes.chain(stream::pending());
        Ok(Response::new(changes.take_until(async move { until.wait().await }).boxed()))
    }
}

impl UnaryService<HealthListRequest> for Answers {
    type Response = HealthListResponse;
    type Future = std::future::Ready<Result<Response<HealthListResponse>, Status>>;

    fn call(&mut self, _: tonic::Request<HealthListRequest>) -> Self::Future {
        let of = |name: &str| {
            response(self.health.is_serving(name).map_or(ServingStatus::Unknown, status))
        };
        let statuses = self.health.names().map(|name| (name.to_owned(), of(name))).collect();
        std::future::ready(Ok(Response::new(HealthListResponse { statuses })))
    }
}

impl NamedService for HealthService {
    const NAME: &'static str = "grpc.health.v1.Health";
}

impl tonic::codegen::Service<Request<Body>> for HealthService {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<HttpResponse<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path() != LIST {
            return self.generated.call(request);
        }
        let answers = self.answers.clone();
        Box::pin(async move {
            let codec = ProstCodec::<HealthListResponse, HealthListRequest>::default();
            Ok(Grpc::new(codec).unary(answers, request).await)
        })
    }
}

fn status(serving: bool) -> ServingStatus {
    if serving { ServingStatus::Serving } else { ServingStatus::NotServing }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
