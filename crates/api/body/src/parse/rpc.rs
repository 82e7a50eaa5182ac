//! The APIs over gRPC: vLLM's engine service and Vertex AI's predictions.

use super::http::openai;
use super::{Input, ParseError, ParseOutcome, ParsedBody, Parser};
use crate::api::{Api, ApiFamily};
use crate::grpc::{FrameError, Message, Wire, message_in, push_numbers};
use crate::span::Span;

/// vLLM's engine service. Its other methods are skipped.
///
/// Source: the messages of the `vllm.grpc.engine` package.
pub(super) struct VllmGrpc;

impl Parser for VllmGrpc {
    fn name(&self) -> &'static str {
        "vllmgrpc-parser"
    }

    fn families(&self) -> &'static [ApiFamily] {
        &[ApiFamily::VllmGrpc]
    }

    fn parse(&self, path: &str, body: &[u8]) -> Result<ParseOutcome, ParseError> {
        let request = match Api::by_ending(self.families(), path).map(|known| known.api) {
            Some(Api::GrpcGenerate) => generate(body, message_in(body)?)?,
            Some(Api::GrpcEmbed) => embed(body, message_in(body)?)?,
            _ => return Ok(ParseOutcome::Skip),
        };
        Ok(ParseOutcome::Request(request))
    }
}

/// Reads a `GenerateRequest`: `tokenized` 2, `text` 3, `sampling_params` 4, `stream` 5.
fn generate(body: &[u8], message: Span) -> Result<ParsedBody, ParseError> {
    let mut request = ParsedBody { api: Some(Api::GrpcGenerate), ..ParsedBody::opaque() };
    for field in Message::at(body, message) {
        match field? {
            (2, Wire::Bytes(tokenized)) => add_tokens(body, tokenized, &mut request.input)?,
            (3, Wire::Bytes(text)) => request.input = Input::Text(text),
            (4, Wire::Bytes(params)) => {
                // `max_tokens` is 8. Repeated messages add to each other.
                let tokens = number_in(body, params, 8)?;
                request.max_output_tokens = tokens.or(request.max_output_tokens);
            }
            (5, Wire::Varint(stream)) => request.stream = stream != 0,
            _ => {}
        }
    }
    match request.input {
        Input::Opaque => {
            Err(ParseError::Field { request: "generate", problem: "must have tokenized or text" })
        }
        _ => Ok(request),
    }
}

/// Reads an `EmbedRequest`: `tokenized` 2.
fn embed(body: &[u8], message: Span) -> Result<ParsedBody, ParseError> {
    let mut request = ParsedBody { api: Some(Api::GrpcEmbed), ..ParsedBody::opaque() };
    for field in Message::at(body, message) {
        if let (2, Wire::Bytes(tokenized)) = field? {
            add_tokens(body, tokenized, &mut request.input)?;
        }
    }
    match request.input {
        Input::Opaque => {
            Err(ParseError::Field { request: "embed", problem: "must have tokenized" })
        }
        _ => Ok(request),
    }
}

/// Adds the `input_ids`, 2, of a `TokenizedInput` to those that are there; any other input goes.
fn add_tokens(body: &[u8], tokenized: Span, input: &mut Input) -> Result<(), FrameError> {
    let mut ids = match std::mem::replace(input, Input::Opaque) {
        Input::Tokens(ids) => ids,
        _ => Vec::new(),
    };
    for field in Message::at(body, tokenized) {
        if let (2, wire) = field? {
            push_numbers(body, wire, &mut ids)?;
        }
    }
    *input = Input::Tokens(ids);
    Ok(())
}

/// The last value of a number in a message.
fn number_in(body: &[u8], message: Span, wanted: u64) -> Result<Option<u32>, FrameError> {
    let mut found = None;
    for field in Message::at(body, message) {
        if let (number, Wire::Varint(value)) = field?
            && number == wanted
        {
            found = Some(value as u32);
        }
    }
    Ok(found)
}

/// Vertex AI's prediction service, whose messages carry an OpenAI request in an `HttpBody`. Its
/// other methods are skipped.
///
/// Source: `ChatCompletionsRequest`, `RawPredictRequest` and `StreamRawPredictRequest` of
/// `google.cloud.aiplatform.v1beta1`, which number `http_body` 2, and `google.api.HttpBody`,
/// which numbers `data` 2.
pub(super) struct VertexAi;

impl Parser for VertexAi {
    fn name(&self) -> &'static str {
        "vertexai-parser"
    }

    fn families(&self) -> &'static [ApiFamily] {
        &[ApiFamily::VertexAi]
    }

    fn parse(&self, path: &str, body: &[u8]) -> Result<ParseOutcome, ParseError> {
        let Some(known) = Api::by_ending(self.families(), path) else {
            return Ok(ParseOutcome::Skip);
        };
        let missing = ParseError::Field { request: "predict", problem: "must have http_body" };
        let http_body = bytes_in(body, message_in(body)?)?.ok_or(missing)?;
        // An empty `data` is left out of the message; the JSON that is not there is the error.
        let data = bytes_in(body, http_body)?.unwrap_or_default();
        Ok(ParseOutcome::Request(openai(known.api, body, data)?))
    }
}

/// The last field 2 of a message, where that has bytes.
fn bytes_in(body: &[u8], message: Span) -> Result<Option<Span>, FrameError> {
    let mut found = None;
    for field in Message::at(body, message) {
        if let (2, Wire::Bytes(span)) = field? {
            found = Some(span);
        }
    }
    Ok(found)
}
