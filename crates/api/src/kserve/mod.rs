//! KServe's open inference protocol, version 2: text in and out as tensors, over gRPC or as JSON.
//!
//! A call becomes the body of a completion, so that the names, ranges and refusals of its parameters
//! are those of `/v1/completions`. The names of tensors are NVIDIA Dynamo's and those of Triton's vLLM
//! backend. Start reading at [`InferCall::new`].

pub mod json;
pub mod tensor;
#[cfg(test)]
mod tests;

use crate::delta::FinishReason;
use crate::openai::ApiError;
use serde_json::{Map, Value};
use tensor::InferTensor;

/// Name of the answer's text.
pub const TEXT_OUTPUT: &str = "text_output";
/// Name of the reason for which an answer ended.
pub const FINISH_REASON: &str = "finish_reason";
/// The version of every model.
pub const MODEL_VERSION: &str = "1";
/// The inputs of a model: name, data type, and whether a call may leave it out.
pub const INPUTS: [(&str, &str, bool); 5] = [
    ("text_input", "BYTES", false),
    ("stream", "BOOL", true),
    ("streaming", "BOOL", true),
    ("sampling_parameters", "BYTES", true),
    ("exclude_input_in_output", "BOOL", true),
];
/// Parameters of Triton's that say how a stream is framed, which is decided here.
const FRAMING: &str = "triton_";

/// Whether errors on this path have the protocol's shape.
pub fn owns(path: &str) -> bool {
    let under = |start| path.strip_prefix(start).is_some_and(|rest: &str| rest.starts_with('/'));
    path == "/v2" || under("/v2/health") || under("/v2/models")
}

/// A call, checked as far as it can be without its model.
#[derive(Debug, PartialEq, Eq)]
pub struct InferCall {
    /// The body of a completion.
    pub body: Vec<u8>,
    /// Whether the answer comes in pieces.
    pub streams: bool,
    /// Outputs that are wanted; none named means all.
    outputs: Vec<String>,
}

/// A piece of an answer, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InferText<'a> {
    /// The text.
    pub text: &'a str,
    /// The reason for which the answer ended, with its last piece.
    pub finish: Option<FinishReason>,
}

impl InferCall {
    /// Makes a completion of the tensors and parameters of a call for `model`.
    ///
    /// # Errors
    ///
    /// 400 with the name of the tensor or parameter at fault.
    pub fn new(
        model: &str,
        tensors: Vec<InferTensor<'_>>,
        parameters: Map<String, Value>,
        outputs: Vec<String>,
    ) -> Result<Self, ApiError> {
        let known = [TEXT_OUTPUT, FINISH_REASON];
        if let Some(other) = outputs.iter().find(|name| !known.contains(&name.as_str())) {
            let message = format!("there is no output {other:?}, only {}", known.join(" and "));
            return Err(ApiError::invalid("outputs", message));
        }
        let mut call = Self { body: Vec::new(), streams: false, outputs };
        let (mut text, mut fields, mut echo) = (None, Map::new(), false);
        if let Some(name) = twice(&tensors) {
            let message = format!("there is more than one input {name:?}");
            return Err(ApiError::invalid("inputs", message));
        }
        for tensor in tensors {
            match &*tensor.name {
                "text_input" => text = Some(tensor.text()?),
                "stream" | "streaming" => call.streams |= tensor.flag()?,
                "exclude_input_in_output" => echo = !tensor.flag()?,
                "sampling_parameters" => fields = sampling(&tensor.text()?)?,
                // What is not wanted changes nothing.
                name if name.starts_with("return_") => {
                    if tensor.flag()? && name != "return_finish_reason" {
                        let message = format!("{name} is not supported");
                        return Err(ApiError::unsupported(name, message));
                    }
                }
                name => {
                    let known = INPUTS.map(|(name, ..)| name).join(", ");
                    let message = format!("there is no input {name:?}, only {known}");
                    return Err(ApiError::invalid("inputs", message));
                }
            }
        }
        let text = text.ok_or_else(|| ApiError::missing("text_input"))?;
        for (name, value) in parameters.into_iter().filter(|(name, _)| !name.starts_with(FRAMING)) {
            if fields.get(&name).is_some_and(|said| *said != value) {
                let message =
                    format!("{name}: sampling_parameters and the call say different things");
                return Err(ApiError::invalid(&name, message));
            }
            fields.insert(name, value);
        }
        for own in ["model", "prompt", "stream", "stream_options", "echo"] {
            if fields.contains_key(own) {
                let message = format!("{own} is no parameter here: a tensor or the call says it");
                return Err(ApiError::invalid(own, message));
            }
        }
        let adapter = match fields.remove("lora_name") {
            None => None,
            Some(Value::String(name)) => Some(name),
            Some(_) => return Err(ApiError::invalid("lora_name", "lora_name must be a string")),
        };
        fields.insert("model".into(), adapter.unwrap_or_else(|| model.to_owned()).into());
        fields.insert("prompt".into(), text.into());
        fields.insert("echo".into(), echo.into());
        call.body = Value::Object(fields).to_string().into_bytes();
        Ok(call)
    }

    /// The outputs of a piece of the answer, by name.
    pub fn outputs<'a>(&self, piece: &InferText<'a>) -> Vec<(&'static str, &'a str)> {
        let wanted =
            |name: &str| self.outputs.is_empty() || self.outputs.iter().any(|out| out == name);
        let text = Some((TEXT_OUTPUT, piece.text));
        let finish = piece.finish.map(|reason| (FINISH_REASON, word(reason)));
        [text, finish].into_iter().flatten().filter(|(name, _)| wanted(name)).collect()
    }
}

/// The name of a tensor that has another one's.
fn twice<'a>(tensors: &'a [InferTensor<'_>]) -> Option<&'a str> {
    let mut names: Vec<_> = tensors.iter().map(|tensor| &*tensor.name).collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// The members of an object in the words of completions.
fn sampling(text: &str) -> Result<Map<String, Value>, ApiError> {
    let param = "sampling_parameters";
    serde_json::from_str(text).map_err(|error| {
        ApiError::invalid(param, format!("{param} must be a JSON object: {error}"))
    })
}

fn word(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "content_filter",
    }
}
