//! The protocol's gRPC service.

use super::config;
use super::grpc_call::{GrpcCall, check_version};
use super::piece::{self, AnswerReader};
use crate::exchange::{HangUp, new_request_id};
use crate::failure::Failure;
use crate::standalone::client::{AdmittedCall, Client, ClientHead};
use crate::standalone::service::Service;
use crate::standalone::trace;
use anyhow::Context;
use http::{HeaderMap, StatusCode};
use stator_api::Api;
use stator_api::delta::Usage;
use stator_api::kserve::tensor::raw_text;
use stator_api::kserve::{FINISH_REASON, INPUTS, InferText, MODEL_VERSION, TEXT_OUTPUT};
use stator_api::openai::ApiError;
use stator_protos::header::{IGNORED, TRACEPARENT, TRACESTATE};
use stator_protos::inference::grpc_inference_service_server::{
    GrpcInferenceService, GrpcInferenceServiceServer,
};
use stator_protos::inference::infer_parameter::ParameterChoice;
use stator_protos::inference::model_infer_response::InferOutputTensor;
use stator_protos::inference::model_metadata_response::TensorMetadata;
use stator_protos::inference::{
    InferParameter, InferTensorContents, ModelConfigRequest, ModelConfigResponse,
    ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse,
    ModelReadyRequest, ModelReadyResponse, ModelStreamInferResponse, ServerLiveRequest,
    ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest,
    ServerReadyResponse,
};
use stator_runtime::Shutdown;
use stator_runtime::trace::{Stages, parent_from};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status, Streaming};

/// Responses of a stream that wait for its client; a client that reads slowly holds its call back.
const RESPONSES_MAX: usize = 16;

/// Serves the protocol at `listen` until `shutdown`; the task ends when its last call has.
///
/// # Errors
///
/// When the address cannot be bound.
pub(crate) async fn serve(
    listen: SocketAddr,
    service: Arc<Service>,
    shutdown: Shutdown,
) -> anyhow::Result<JoinHandle<()>> {
    let incoming =
        TcpIncoming::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let address = incoming.local_addr()?;
    tracing::info!(%address, "listening for KServe's gRPC");
    let limit = service.door().limits().body_bytes;
    let server = GrpcInferenceServiceServer::new(InferenceService(service));
    let router =
        tonic::transport::Server::builder().add_service(server.max_decoding_message_size(limit));
    Ok(tokio::spawn(async move {
        let ended = async move { shutdown.wait().await };
        if let Err(error) = router.serve_with_incoming_shutdown(incoming, ended).await {
            tracing::error!(%error, "KServe's gRPC service failed");
        }
    }))
}

/// The gRPC service; all its clones serve one proxy.
#[derive(Clone)]
struct InferenceService(Arc<Service>);

/// A client of the service, with what its call holds while it runs.
struct Caller {
    headers: HeaderMap,
    request_id: String,
    admitted: AdmittedCall,
}

impl InferenceService {
    /// Lets the client of a request in.
    fn enter<T>(&self, request: &Request<T>) -> Result<Caller, ApiError> {
        let headers = request.metadata().clone().into_headers();
        let id = new_request_id();
        let request_id = id.to_str().unwrap_or_default().to_owned();
        let trace = Stages::default();
        let head = ClientHead { headers: &headers, request_id: &request_id, trace: &trace };
        let address = request.remote_addr().map(|address| address.ip());
        let admitted = self.0.admit_call(&head, address)?;
        Ok(Caller { headers, request_id, admitted })
    }

    /// Answers a call, in pieces or as one.
    async fn answer(
        &self,
        caller: &Caller,
        call: &mut GrpcCall,
        in_pieces: bool,
        responses: &mut InferResponses<'_>,
    ) -> Result<(), Failure> {
        let _running = self.0.enter();
        let header = |name: &str| caller.headers.get(name)?.to_str().ok();
        let parent = || parent_from(header(TRACEPARENT)?, header(TRACESTATE));
        let trace: Stages = trace::request(Api::Completions, &caller.request_id, parent);
        let head =
            ClientHead { headers: &caller.headers, request_id: &caller.request_id, trace: &trace };
        let AdmittedCall { account, rate, .. } = &caller.admitted;
        let client = Client { head, account: *account, rate: rate.as_ref() };
        let body = std::mem::take(&mut call.call.body);
        let mut run = self.0.begin_call(client, body).await?;
        loop {
            let piece = piece::next(&mut run, in_pieces, &mut Patient).await?;
            let usage = piece.is_last.then(|| run.usage());
            let mut response = response(call, &piece.text(), usage, in_pieces);
            if let Some(names) = run.ignored().filter(|_| piece.is_last) {
                let value = Some(ParameterChoice::StringParam(names.to_owned()));
                let value = InferParameter { parameter_choice: value };
                response.parameters.insert(IGNORED.to_owned(), value);
            }
            responses.put(response).await?;
            if piece.is_last {
                trace::answered(&trace, run.usage());
                return Ok(());
            }
        }
    }
}

/// The responses to calls, on their way to a client.
enum InferResponses<'a> {
    /// The only one is kept.
    Whole(Option<ModelInferResponse>),
    /// Each goes out at once.
    Stream(&'a mpsc::Sender<StreamResponse>),
}

/// A response of a stream.
type StreamResponse = Result<ModelStreamInferResponse, Status>;

impl InferResponses<'_> {
    async fn put(&mut self, response: ModelInferResponse) -> Result<(), HangUp> {
        match self {
            Self::Whole(whole) => {
                *whole = Some(response);
                Ok(())
            }
            Self::Stream(responses) => {
                let error_message = String::new();
                let response =
                    ModelStreamInferResponse { error_message, infer_response: Some(response) };
                responses.send(Ok(response)).await.map_err(|_| HangUp)
            }
        }
    }
}

/// A reader whose end drops the future that works for it.
struct Patient;

impl AnswerReader for Patient {
    async fn gone(&mut self) -> HangUp {
        std::future::pending().await
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for InferenceService {
    async fn server_live(
        &self,
        _: Request<ServerLiveRequest>,
    ) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> Result<Response<ServerReadyResponse>, Status> {
        Ok(Response::new(ServerReadyResponse { ready: self.0.is_ready() }))
    }

    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        self.enter(&request).map_err(status)?;
        let ModelReadyRequest { name, version } = request.get_ref();
        check_version(version).map_err(status)?;
        let ready = self.0.is_model_ready(name).map_err(status)?;
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        let (name, version) = ("stator".into(), env!("CARGO_PKG_VERSION").into());
        Ok(Response::new(ServerMetadataResponse { name, version, extensions: Vec::new() }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        self.enter(&request).map_err(status)?;
        let ModelMetadataRequest { name, version } = request.into_inner();
        check_version(&version).map_err(status)?;
        self.0.check_model(&name).map_err(status)?;
        let tensor = |name: &str, datatype: &str| TensorMetadata {
            name: name.into(),
            datatype: datatype.into(),
            shape: vec![1],
        };
        Ok(Response::new(ModelMetadataResponse {
            name,
            versions: vec![MODEL_VERSION.into()],
            platform: "stator".into(),
            inputs: INPUTS.iter().map(|(name, datatype, _)| tensor(name, datatype)).collect(),
            outputs: [TEXT_OUTPUT, FINISH_REASON].map(|name| tensor(name, "BYTES")).into(),
        }))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        self.enter(&request).map_err(status)?;
        let ModelConfigRequest { name, version } = request.into_inner();
        check_version(&version).map_err(status)?;
        self.0.check_model(&name).map_err(status)?;
        Ok(Response::new(ModelConfigResponse { config: Some(config::of_model(name)) }))
    }

    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        let caller = self.enter(&request).map_err(status)?;
        let mut call = GrpcCall::read(request.into_inner()).map_err(status)?;
        if call.call.streams {
            return Err(Status::invalid_argument("an answer in pieces needs ModelStreamInfer"));
        }
        let mut responses = InferResponses::Whole(None);
        match self.answer(&caller, &mut call, false, &mut responses).await {
            Ok(()) => {}
            Err(Failure::Error(error)) => return Err(status(error)),
            Err(Failure::Gone) => return Err(Status::cancelled("the client has gone")),
        }
        match responses {
            InferResponses::Whole(Some(whole)) => Ok(Response::new(whole)),
            _ => Err(Status::internal("no answer came")),
        }
    }

    type ModelStreamInferStream = ReceiverStream<StreamResponse>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        let caller = self.enter(&request).map_err(status)?;
        let (responses, stream) = mpsc::channel(RESPONSES_MAX);
        let service = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                // Who reads no more has its call dropped, and its worker hears of that.
                () = responses.closed() => {}
                () = service.stream(caller, request.into_inner(), &responses) => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

impl InferenceService {
    /// Answers the calls of a stream, one after the other.
    async fn stream(
        &self,
        caller: Caller,
        mut calls: Streaming<ModelInferRequest>,
        responses: &mpsc::Sender<StreamResponse>,
    ) {
        loop {
            let request = match calls.message().await {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(status) => {
                    tracing::debug!(%status, "a client stream broke");
                    return;
                }
            };
            let answered = match GrpcCall::read(request) {
                Err(error) => Err(error.into()),
                Ok(mut call) => {
                    let in_pieces = call.call.streams;
                    let mut responses = InferResponses::Stream(responses);
                    self.answer(&caller, &mut call, in_pieces, &mut responses).await
                }
            };
            match answered {
                Ok(()) => {}
                // The stream goes on: other calls of it may be sound.
                Err(Failure::Error(error)) => {
                    let error_message = error.message;
                    let told = ModelStreamInferResponse { error_message, infer_response: None };
                    if responses.send(Ok(told)).await.is_err() {
                        return;
                    }
                }
                Err(Failure::Gone) => return,
            }
        }
    }
}

/// A piece of an answer; the last one of a call has the usage.
fn response(
    call: &GrpcCall,
    piece: &InferText<'_>,
    usage: Option<Usage>,
    in_pieces: bool,
) -> ModelInferResponse {
    let mut parameters = HashMap::new();
    let mut note = |name: &str, value| {
        parameters.insert(name.to_owned(), InferParameter { parameter_choice: Some(value) });
    };
    if let Some(Usage { prompt_tokens, completion_tokens, cached_tokens, .. }) = usage {
        for (name, count) in [
            ("input_tokens", prompt_tokens),
            ("output_tokens", completion_tokens),
            ("cached_tokens", cached_tokens),
        ] {
            note(name, ParameterChoice::Int64Param(count.into()));
        }
    }
    if in_pieces {
        note("triton_final_response", ParameterChoice::BoolParam(usage.is_some()));
    }
    let texts = call.call.outputs(piece);
    let contents = |text: &str| InferTensorContents {
        bytes_contents: vec![text.as_bytes().to_vec()],
        ..InferTensorContents::default()
    };
    let outputs = texts.iter().map(|(name, text)| InferOutputTensor {
        name: (*name).to_owned(),
        datatype: "BYTES".into(),
        shape: vec![1],
        contents: (!call.raw).then(|| contents(text)),
        ..InferOutputTensor::default()
    });
    let raw = texts.iter().filter(|_| call.raw).map(|(_, text)| raw_text(text));
    ModelInferResponse {
        model_name: call.model.clone(),
        model_version: MODEL_VERSION.into(),
        id: call.id.clone(),
        parameters,
        outputs: outputs.collect(),
        raw_output_contents: raw.collect(),
    }
}

/// An error in the words of gRPC.
fn status(error: ApiError) -> Status {
    let code = match error.status {
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::NOT_IMPLEMENTED => Code::Unimplemented,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        StatusCode::GATEWAY_TIMEOUT => Code::DeadlineExceeded,
        status if status.is_client_error() => Code::InvalidArgument,
        _ => Code::Internal,
    };
    Status::new(code, error.message)
}
