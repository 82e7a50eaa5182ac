//! Calls of KServe's protocol over gRPC.

use crate::standalone::kserve::grpc_call::GrpcCall;
use serde_json::{Map, Value, json};
use stator_api::kserve::MODEL_VERSION;
use stator_api::kserve::json::read_infer;
use stator_protos::inference::infer_parameter::ParameterChoice;
use stator_protos::inference::model_infer_request::InferInputTensor;
use stator_protos::inference::{InferParameter, InferTensorContents, ModelInferRequest};

/// A call is refused by its client's fault, or asks for the completion that the same call as JSON asks
/// for.
pub fn grpc_call(request: ModelInferRequest) {
    let model = request.model_name.clone();
    let twin = twin(&request);
    let read = GrpcCall::read(request);
    match &read {
        Ok(GrpcCall { call, .. }) => {
            let body: Value = serde_json::from_slice(&call.body).expect("a body is JSON");
            assert!(body["prompt"].is_string() && body["model"].is_string(), "{body}");
            // Over JSON, another path asks for answers in pieces.
            if call.streams {
                return;
            }
        }
        Err(error) => assert!(error.status.is_client_error(), "{error}"),
    }
    let Some((body, json_bytes)) = twin else { return };
    let as_json = read_infer(&model, &body, json_bytes);
    let told = (read.as_ref().err().cloned(), as_json.as_ref().err().cloned());
    let read = read.ok().map(|read| (read.id, read.call));
    let as_json = as_json.ok().map(|read| (read.id, read.call));
    assert_eq!(read, as_json, "{told:?}");
}

/// A call in JSON that asks for the same, with the length of the JSON if tensors follow it; none for
/// calls that JSON cannot express or reads differently.
fn twin(request: &ModelInferRequest) -> Option<(Vec<u8>, Option<usize>)> {
    let ModelInferRequest { model_version, id, parameters, inputs, outputs, .. } = request;
    let raw = &request.raw_input_contents;
    let has_parameters = inputs.iter().any(|input| !input.parameters.is_empty())
        || outputs.iter().any(|output| !output.parameters.is_empty());
    let is_version = model_version.is_empty() || model_version == MODEL_VERSION;
    let is_sound = raw.is_empty() || raw.len() == inputs.len();
    let is_read_there = parameters.contains_key("binary_data_output");
    if has_parameters || !is_version || !is_sound || is_read_there {
        return None;
    }
    let mut fields = Map::new();
    for (name, value) in parameters {
        fields.insert(name.clone(), parameter(value)?);
    }
    let mut contents = raw.iter();
    let inputs = inputs.iter().map(|input| tensor(input, contents.next().map(|raw| raw.len())));
    let inputs = inputs.collect::<Option<Vec<_>>>()?;
    let outputs: Vec<_> = outputs.iter().map(|output| json!({"name": output.name})).collect();
    let json = json!({"id": id, "parameters": fields, "inputs": inputs, "outputs": outputs});
    let mut body = json.to_string().into_bytes();
    let json_bytes = (!raw.is_empty()).then_some(body.len());
    raw.iter().for_each(|raw| body.extend_from_slice(raw));
    Some((body, json_bytes))
}

fn parameter(value: &InferParameter) -> Option<Value> {
    Some(match value.parameter_choice.as_ref()? {
        ParameterChoice::BoolParam(flag) => (*flag).into(),
        ParameterChoice::Int64Param(number) => (*number).into(),
        ParameterChoice::Uint64Param(number) => (*number).into(),
        ParameterChoice::StringParam(text) => text.clone().into(),
        ParameterChoice::DoubleParam(number) => {
            let value = Value::from(*number);
            let read: Value = serde_json::from_str(&value.to_string()).ok()?;
            // Some numbers lose their last digit as JSON.
            return (!value.is_null() && read == value).then_some(value);
        }
    })
}

/// A tensor whose elements are its contents, of whatever type, or so many bytes behind the JSON.
fn tensor(input: &InferInputTensor, raw_bytes: Option<usize>) -> Option<Value> {
    let InferInputTensor { name, datatype, shape, contents, .. } = input;
    let mut tensor = json!({"name": name, "datatype": datatype, "shape": shape});
    match (raw_bytes, contents) {
        (Some(_), Some(_)) => return None,
        (Some(bytes), None) => tensor["parameters"] = json!({"binary_data_size": bytes}),
        (None, contents) => {
            let contents = contents.clone().unwrap_or_default();
            let InferTensorContents { bool_contents, bytes_contents, .. } = &contents;
            let mut data: Vec<Value> = bool_contents.iter().map(|flag| (*flag).into()).collect();
            for text in bytes_contents {
                data.push(str::from_utf8(text).ok()?.into());
            }
            let numbers = contents.int_contents.len()
                + contents.int64_contents.len()
                + contents.uint_contents.len()
                + contents.uint64_contents.len()
                + contents.fp32_contents.len()
                + contents.fp64_contents.len();
            data.resize(data.len() + numbers, json!(0));
            tensor["data"] = data.into();
        }
    }
    Some(tensor)
}
