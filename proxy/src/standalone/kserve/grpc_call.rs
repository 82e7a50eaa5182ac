//! Calls of the protocol's gRPC service, as they come.

use serde_json::Value;
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
        let parameters = parameters.into_iter().map(|(name, value)| {
            let value = parameter(&name, value)?;
            Ok((name, value))
        });
        let parameters = parameters.collect::<Result<_, ApiError>>()?;
        let outputs = outputs.into_iter().map(|output| output.name).collect();
        let call = InferCall::new(&model_name, tensors, parameters, outputs)?;
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

/// The value of a parameter, as JSON has it.
fn parameter(name: &str, value: InferParameter) -> Result<Value, ApiError> {
    let odd = |why| ApiError::invalid(name, format!("parameter {name:.40?} {why}"));
    Ok(match value.parameter_choice {
        None => return Err(odd("has no value")),
        Some(ParameterChoice::BoolParam(flag)) => flag.into(),
        Some(ParameterChoice::Int64Param(number)) => number.into(),
        Some(ParameterChoice::Uint64Param(number)) => number.into(),
        // JSON would have null in place of it, which is no value.
        Some(ParameterChoice::DoubleParam(number)) if !number.is_finite() => {
            return Err(odd("is no finite number"));
        }
        Some(ParameterChoice::DoubleParam(number)) => number.into(),
        Some(ParameterChoice::StringParam(text)) => text.into(),
    })
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
        (None, Some(contents)) => {
            let (texts, flags) = (&contents.bytes_contents, &contents.bool_contents);
            match (&**datatype, texts.len(), flags.len(), numbers(contents)) {
                ("BYTES", _, 0, 0) => {
                    TensorValues::Bytes(texts.iter().map(|text| text.as_slice().into()).collect())
                }
                ("BOOL", 0, _, 0) => TensorValues::Bools(flags.clone()),
                // Contents of two types: one would be dropped in silence.
                ("BYTES" | "BOOL", ..) => {
                    return Err(odd(&format!("its contents are not all elements of {datatype}")));
                }
                (_, texts, flags, numbers) => TensorValues::Other(texts + flags + numbers),
            }
        }
    };
    Ok(InferTensor { name: name.into(), datatype: datatype.into(), shape: shape.clone(), values })
}

/// Elements that are numbers.
fn numbers(contents: &InferTensorContents) -> usize {
    contents.int_contents.len()
        + contents.int64_contents.len()
        + contents.uint_contents.len()
        + contents.uint64_contents.len()
        + contents.fp32_contents.len()
        + contents.fp64_contents.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn input(name: &str, datatype: &str, contents: InferTensorContents) -> InferInputTensor {
        InferInputTensor {
            name: name.into(),
            datatype: datatype.into(),
            shape: vec![1],
            contents: Some(contents),
            ..InferInputTensor::default()
        }
    }

    fn text() -> InferTensorContents {
        InferTensorContents { bytes_contents: vec![b"a".into()], ..InferTensorContents::default() }
    }

    /// The completion's body, or the error.
    fn check(
        inputs: Vec<InferInputTensor>,
        parameters: &[(&str, Option<ParameterChoice>)],
    ) -> Result<Value, String> {
        let parameters = parameters.iter().map(|(name, parameter_choice)| {
            let value = InferParameter { parameter_choice: parameter_choice.clone() };
            ((*name).to_owned(), value)
        });
        let parameters = parameters.collect();
        let request = ModelInferRequest {
            model_name: "m".into(),
            inputs,
            parameters,
            ..ModelInferRequest::default()
        };
        let call = GrpcCall::read(request).map_err(|error| error.message)?;
        Ok(serde_json::from_slice(&call.call.body).expect("JSON"))
    }

    #[test]
    fn contents_of_another_type_than_the_tensors_are_refused() {
        let sound = check(vec![input("text_input", "BYTES", text())], &[]);
        assert_eq!(sound, Ok(json!({"model": "m", "prompt": "a", "echo": false})));
        let refused = |tensor, datatype| {
            Err(format!("tensor {tensor:?}: its contents are not all elements of {datatype}"))
        };
        let mixed = InferTensorContents { int_contents: vec![1], ..text() };
        let read = check(vec![input("text_input", "BYTES", mixed)], &[]);
        assert_eq!(read, refused("text_input", "BYTES"));
        let mixed = InferTensorContents { bool_contents: vec![true], ..text() };
        let inputs = vec![input("text_input", "BYTES", text()), input("stream", "BOOL", mixed)];
        assert_eq!(check(inputs, &[]), refused("stream", "BOOL"));
    }

    #[test]
    fn parameters_that_json_cannot_have_are_refused() {
        let check =
            |name, choice| check(vec![input("text_input", "BYTES", text())], &[(name, choice)]);
        let double = |number| Some(ParameterChoice::DoubleParam(number));
        let body = json!({"model": "m", "prompt": "a", "echo": false, "temperature": 0.5});
        assert_eq!(check("temperature", double(0.5)), Ok(body));
        let refused = |why: &str| Err(format!("parameter {why}"));
        assert_eq!(check("top_p", double(f64::NAN)), refused("\"top_p\" is no finite number"));
        assert_eq!(check("seed", None), refused("\"seed\" has no value"));
    }
}
