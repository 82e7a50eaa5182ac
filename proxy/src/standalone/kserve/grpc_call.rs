//! Calls of the protocol's gRPC service, as they come.

use stator_api::kserve::tensor::{InferTensor, TensorValues};
use stator_api::kserve::{InferCall, MODEL_VERSION};
use stator_api::openai::ApiError;
use stator_protos::inference::infer_parameter::ParameterChoice;
use stator_protos::inference::model_infer_request::InferInputTensor;
use stator_protos::inference::{InferParameter, InferTensorContents, ModelInferRequest};
use std::collections::HashMap;

/// A call as it came.
pub(crate) struct GrpcCall {
    pub model: String,
    pub id: String,
    pub call: InferCall,
    /// Whether its tensors came as raw bytes, and the answer's are to.
    pub raw: bool,
}

impl GrpcCall {
    /// Reads a call.
    ///
    /// # Errors
    ///
    /// 400 with the tensor, parameter or member at fault.
    pub(crate) fn read(request: ModelInferRequest) -> Result<Self, ApiError> {
        let ModelInferRequest {
            model_name,
            model_version,
            id,
            parameters,
            inputs,
            outputs,
            raw_input_contents,
        } = request;
        check_version(&model_version)?;
        let of_inputs = inputs.iter().map(|input| (&input.name, &input.parameters));
        let of_outputs = outputs.iter().map(|output| (&output.name, &output.parameters));
        of_inputs
            .chain(of_outputs)
            .try_for_each(|(name, parameters)| no_parameters(name, parameters))?;
        let raw = !raw_input_contents.is_empty();
        if raw && raw_input_contents.len() != inputs.len() {
            let (found, wanted) = (raw_input_contents.len(), inputs.len());
            let message = format!("raw_input_contents has {found} entries for {wanted} inputs");
            return Err(ApiError::invalid("raw_input_contents", message));
        }
        let mut contents = raw_input_contents.iter();
        let tensors = inputs.iter().map(|input| tensor(input, contents.next().map(|raw| &raw[..])));
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        let parameters = parameters.into_iter().filter_map(|(name, value)| {
            let value = match value.parameter_choice? {
                ParameterChoice::BoolParam(flag) => flag.into(),
                ParameterChoice::Int64Param(number) => number.into(),
                ParameterChoice::Uint64Param(number) => number.into(),
                ParameterChoice::DoubleParam(number) => number.into(),
                ParameterChoice::StringParam(text) => text.into(),
            };
            Some((name, value))
        });
        let outputs = outputs.into_iter().map(|output| output.name).collect();
        let call = InferCall::new(&model_name, tensors, parameters.collect(), outputs)?;
        Ok(Self { model: model_name, id, call, raw })
    }
}

/// Checks the version of a model, of which there is one.
///
/// # Errors
///
/// 400 for any other.
pub(super) fn check_version(version: &str) -> Result<(), ApiError> {
    if version.is_empty() || version == MODEL_VERSION {
        return Ok(());
    }
    let message = format!("a model has no version {version:.40?}, only {MODEL_VERSION:?}");
    Err(ApiError::invalid("model_version", message))
}

/// Refuses parameters of a tensor: none means anything here.
fn no_parameters(
    tensor: &str,
    parameters: &HashMap<String, InferParameter>,
) -> Result<(), ApiError> {
    match parameters.keys().min() {
        None => Ok(()),
        Some(name) => {
            let message =
                format!("tensor {tensor:.40?} has a parameter {name:.40?}, not known here");
            Err(ApiError::unsupported("parameters", message))
        }
    }
}

fn tensor<'a>(
    input: &'a InferInputTensor,
    raw: Option<&'a [u8]>,
) -> Result<InferTensor<'a>, ApiError> {
    let InferInputTensor { name, datatype, shape, contents, .. } = input;
    let odd = |why: &str| ApiError::invalid(name, format!("tensor {name:?}: {why}"));
    let values = match (raw, contents) {
        (Some(_), Some(_)) => return Err(odd("it has contents beside raw_input_contents")),
        (Some(raw), None) => TensorValues::from_raw(datatype, raw)
            .ok_or_else(|| odd(&format!("its raw contents are no elements of {datatype}")))?,
        (None, None) => TensorValues::Other(0),
        (None, Some(contents)) => match &**datatype {
            "BYTES" => TensorValues::Bytes(
                contents.bytes_contents.iter().map(|text| text.as_slice().into()).collect(),
            ),
            "BOOL" => TensorValues::Bools(contents.bool_contents.clone()),
            _ => TensorValues::Other(count(contents)),
        },
    };
    Ok(InferTensor { name: name.into(), datatype: datatype.into(), shape: shape.clone(), values })
}

/// Elements that are numbers.
fn count(contents: &InferTensorContents) -> usize {
    contents.int_contents.len()
        + contents.int64_contents.len()
        + contents.uint_contents.len()
        + contents.uint64_contents.len()
        + contents.fp32_contents.len()
        + contents.fp64_contents.len()
}
