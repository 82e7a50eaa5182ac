//! The protocol as JSON, with tensors of bytes behind it, and Triton's flat form of it.
//!
//! Source: the binary tensor data extension of Triton's HTTP API.

use super::tensor::{InferTensor, TensorValues, raw_text};
use super::{INPUTS, InferCall, InferText, MODEL_VERSION, TEXT_OUTPUT};
use crate::delta::Usage;
use crate::openai::ApiError;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// The header that announces tensors of bytes behind the JSON: the bytes of the JSON.
pub const JSON_LENGTH: &str = "inference-header-content-length";

/// Members of a call of `/infer`.
pub(crate) const INFER_MEMBERS: [&str; 4] = ["id", "inputs", "outputs", "parameters"];

/// A call, and the name that its client gave it.
#[derive(Debug, PartialEq, Eq)]
pub struct JsonCall {
    /// The client's name of the call; may be empty.
    pub id: String,
    /// The call.
    pub call: InferCall,
    /// Outputs that come as bytes behind the JSON.
    binary: BinaryOutputs,
}

/// Choice of the outputs that come as bytes behind the JSON.
#[derive(Debug, Default, PartialEq, Eq)]
struct BinaryOutputs {
    /// Whether outputs that say nothing themselves come as bytes.
    all: bool,
    /// Outputs that say it themselves.
    named: Vec<(String, bool)>,
}

/// An answer of `/infer`.
#[derive(Debug, PartialEq, Eq)]
pub struct InferAnswer {
    /// The JSON, and the tensors of bytes behind it.
    pub body: Vec<u8>,
    /// Bytes of the JSON where tensors follow.
    pub json_bytes: Option<usize>,
}

/// Identity of an answer.
#[derive(Clone, Copy, Debug)]
pub struct InferIdentity<'a> {
    /// The model, as the call named it.
    pub model: &'a str,
    /// The client's name of the call; left out if it is empty.
    pub id: &'a str,
}

/// Reads the body of `/v2/models/{model}/infer`. `json_bytes` is the length of its JSON, where tensors
/// of bytes follow.
///
/// # Errors
///
/// 400 with the member, tensor or parameter at fault.
pub fn read_infer(
    model: &str,
    body: &[u8],
    json_bytes: Option<usize>,
) -> Result<JsonCall, ApiError> {
    let (body, mut tail) =
        body.split_at_checked(json_bytes.unwrap_or(body.len())).ok_or_else(|| {
            let message = format!("it is longer than the body, which has {} bytes", body.len());
            ApiError::invalid(JSON_LENGTH, message)
        })?;
    let mut call = object(body)?;
    if let Some(name) = call.keys().find(|name| !INFER_MEMBERS.contains(&name.as_str())) {
        return Err(unknown(name));
    }
    let inputs = match call.remove("inputs") {
        Some(Value::Array(inputs)) => inputs,
        None => return Err(ApiError::missing("inputs")),
        Some(_) => return Err(ApiError::invalid("inputs", "inputs must be a list of tensors")),
    };
    let tensors = inputs
        .into_iter()
        .enumerate()
        .map(|(at, given)| tensor(at, given, &mut tail))
        .collect::<Result<_, _>>()?;
    if !tail.is_empty() {
        let message = format!("{} bytes behind the JSON belong to no tensor", tail.len());
        return Err(ApiError::invalid("inputs", message));
    }
    let mut binary = BinaryOutputs::default();
    let outputs = match call.remove("outputs") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(outputs)) => {
            outputs.into_iter().map(|given| output(given, &mut binary)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(ApiError::invalid("outputs", "outputs must be a list of objects")),
    };
    let (id, mut parameters) = (text(&mut call, "id")?, parameters(&mut call)?);
    binary.all = flag(&mut parameters, "binary_data_output")?.unwrap_or(false);
    let call = InferCall::new(model, tensors, parameters, outputs)?;
    match call.streams {
        true => Err(ApiError::unsupported("stream", "an answer in pieces needs /generate_stream")),
        false => Ok(JsonCall { id, call, binary }),
    }
}

/// Reads the body of Triton's `/v2/models/{model}/generate`: tensors of one element are members of
/// their names.
///
/// # Errors
///
/// 400 with the member, tensor or parameter at fault.
pub fn read_generate(model: &str, body: &[u8]) -> Result<JsonCall, ApiError> {
    let mut call = object(body)?;
    let (id, parameters) = (text(&mut call, "id")?, parameters(&mut call)?);
    let mut tensors = Vec::new();
    for (name, value) in call {
        let (datatype, values) = match value {
            Value::String(text) => ("BYTES", TensorValues::Bytes(vec![text.into_bytes().into()])),
            Value::Bool(flag) => ("BOOL", TensorValues::Bools(vec![flag])),
            // Triton's clients write the parameters of sampling as they are.
            Value::Object(members) => {
                let text = Value::Object(members).to_string();
                ("BYTES", TensorValues::Bytes(vec![text.into_bytes().into()]))
            }
            _ => {
                return Err(ApiError::invalid(
                    &name,
                    format!("{name} must be a text or a boolean"),
                ));
            }
        };
        tensors.push(InferTensor {
            name: name.into(),
            datatype: datatype.into(),
            shape: vec![1],
            values,
        });
    }
    let call = InferCall::new(model, tensors, parameters, Vec::new())?;
    Ok(JsonCall { id, call, binary: BinaryOutputs::default() })
}

fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::invalid_json(format!("the body is no JSON object: {error}")))
}

fn text(call: &mut Map<String, Value>, name: &str) -> Result<String, ApiError> {
    match call.remove(name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(ApiError::invalid(name, format!("{name} must be a string"))),
    }
}

fn parameters(call: &mut Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    match call.remove("parameters") {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(parameters)) => Ok(parameters),
        Some(_) => Err(ApiError::invalid("parameters", "parameters must be an object")),
    }
}

fn flag(object: &mut Map<String, Value>, name: &str) -> Result<Option<bool>, ApiError> {
    match object.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(flag)),
        Some(_) => Err(ApiError::invalid(name, format!("{name} must be a boolean"))),
    }
}

fn nothing_left(object: &Map<String, Value>) -> Result<(), ApiError> {
    object.keys().next().map_or(Ok(()), |name| Err(unknown(name)))
}

fn unknown(name: &str) -> ApiError {
    let message = format!("{name} is not a field of this API");
    ApiError::bad_request(message).with_code("unknown_parameter").with_param(name)
}

/// A tensor, whose elements may be the next bytes of `tail`.
fn tensor<'a>(at: usize, tensor: Value, tail: &mut &'a [u8]) -> Result<InferTensor<'a>, ApiError> {
    let path = format!("inputs[{at}]");
    let odd = |what: &str| ApiError::invalid(&path, format!("{path} {what}"));
    let Value::Object(mut tensor) = tensor else { return Err(odd("must be an object")) };
    let (name, datatype) = (text(&mut tensor, "name")?, text(&mut tensor, "datatype")?);
    let shape = match tensor.remove("shape") {
        Some(Value::Array(shape)) => shape.iter().map(Value::as_i64).collect::<Option<Vec<_>>>(),
        _ => None,
    };
    let shape = shape.ok_or_else(|| odd("needs a shape, a list of integers"))?;
    let mut parameters = parameters(&mut tensor)?;
    let size = parameters.remove("binary_data_size");
    let data = tensor.remove("data");
    nothing_left(&parameters)?;
    nothing_left(&tensor)?;
    let mut values = Vec::new();
    match (data, size) {
        (None, None) => return Err(odd("has no data")),
        (Some(_), Some(_)) => return Err(odd("has data beside binary_data_size")),
        (Some(data), None) => flatten(data, &mut values),
        (None, Some(size)) => {
            let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
            let size = size.ok_or_else(|| odd("has a binary_data_size that is no number"))?;
            let split = tail.split_at_checked(size);
            let (raw, rest) = split.ok_or_else(|| odd("has fewer bytes than binary_data_size"))?;
            *tail = rest;
            let values = TensorValues::from_raw(&datatype, raw);
            let values =
                values.ok_or_else(|| odd(&format!("has bytes of no elements of {datatype}")))?;
            return Ok(InferTensor { name: name.into(), datatype: datatype.into(), shape, values });
        }
    }
    let values = match &*datatype {
        "BYTES" => {
            let bytes = |value| match value {
                Value::String(text) => Some(Cow::Owned(text.into_bytes())),
                _ => None,
            };
            values.into_iter().map(bytes).collect::<Option<_>>().map(TensorValues::Bytes)
        }
        "BOOL" => values.iter().map(Value::as_bool).collect::<Option<_>>().map(TensorValues::Bools),
        _ => Some(TensorValues::Other(values.len())),
    };
    let values = values.ok_or_else(|| odd(&format!("has data of another type than {datatype}")))?;
    Ok(InferTensor { name: name.into(), datatype: datatype.into(), shape, values })
}

/// Data may be nested as its shape is, or flat.
fn flatten(data: Value, values: &mut Vec<Value>) {
    match data {
        Value::Array(items) => items.into_iter().for_each(|item| flatten(item, values)),
        value => values.push(value),
    }
}

/// The name of an output, and whether it comes as bytes.
fn output(output: Value, binary: &mut BinaryOutputs) -> Result<String, ApiError> {
    let Value::Object(mut output) = output else {
        return Err(ApiError::invalid("outputs", "an output is no object"));
    };
    let name = text(&mut output, "name")?;
    if name.is_empty() {
        return Err(ApiError::invalid("outputs", "an output has no name"));
    }
    let mut parameters = parameters(&mut output)?;
    if let Some(is_binary) = flag(&mut parameters, "binary_data")? {
        binary.named.push((name.clone(), is_binary));
    }
    nothing_left(&parameters)?;
    nothing_left(&output)?;
    Ok(name)
}

impl BinaryOutputs {
    fn has(&self, name: &str) -> bool {
        let named = self.named.iter().find(|(known, _)| known == name);
        named.map_or(self.all, |(_, is_binary)| *is_binary)
    }
}

/// The answer of `/infer`.
pub fn infer_answer(
    identity: &InferIdentity<'_>,
    asked: &JsonCall,
    piece: &InferText<'_>,
    usage: Usage,
) -> InferAnswer {
    let mut tail = Vec::new();
    let output = |(name, text): (&str, &str)| {
        let mut output = json!({"name": name, "datatype": "BYTES", "shape": [1]});
        if asked.binary.has(name) {
            let raw = raw_text(text);
            output["parameters"] = json!({"binary_data_size": raw.len()});
            tail.extend(raw);
        } else {
            output["data"] = json!([text]);
        }
        output
    };
    let mut answer = json!({
        "model_name": identity.model,
        "model_version": MODEL_VERSION,
        "parameters": usage_parameters(usage),
        "outputs": asked.call.outputs(piece).into_iter().map(output).collect::<Vec<_>>(),
    });
    if !identity.id.is_empty() {
        answer["id"] = identity.id.into();
    }
    let mut body = answer.to_string().into_bytes();
    let json_bytes = (!tail.is_empty()).then_some(body.len());
    body.extend(tail);
    InferAnswer { body, json_bytes }
}

/// A piece of an answer of `/generate` and `/generate_stream`.
pub fn generate_answer(
    identity: &InferIdentity<'_>,
    call: &InferCall,
    piece: &InferText<'_>,
) -> Vec<u8> {
    let mut answer = json!({"model_name": identity.model, "model_version": MODEL_VERSION});
    if !identity.id.is_empty() {
        answer["id"] = identity.id.into();
    }
    for (name, text) in call.outputs(piece) {
        answer[name] = text.into();
    }
    answer.to_string().into_bytes()
}

/// Tokens that an answer took, as parameters of it.
pub fn usage_parameters(usage: Usage) -> Value {
    let Usage { prompt_tokens, completion_tokens, cached_tokens, .. } = usage;
    json!({
        "input_tokens": prompt_tokens,
        "output_tokens": completion_tokens,
        "cached_tokens": cached_tokens,
    })
}

/// The description of a model.
pub fn metadata(model: &str) -> Vec<u8> {
    let tensor =
        |name: &str, datatype: &str| json!({"name": name, "datatype": datatype, "shape": [1]});
    let inputs: Vec<_> = INPUTS.iter().map(|(name, datatype, _)| tensor(name, datatype)).collect();
    let outputs = [TEXT_OUTPUT, super::FINISH_REASON].map(|name| tensor(name, "BYTES"));
    json!({
        "name": model, "versions": [MODEL_VERSION], "platform": "stator",
        "inputs": inputs, "outputs": outputs,
    })
    .to_string()
    .into_bytes()
}

/// An error in this protocol's shape.
pub fn error(error: &ApiError) -> Vec<u8> {
    json!({"error": error.message}).to_string().into_bytes()
}
