//! Triton's configuration of a model, as far as it says something here.

use stator_api::kserve::{FINISH_REASON, INPUTS, TEXT_OUTPUT};
use stator_protos::inference::{
    DataType, ModelConfig, ModelInput, ModelOutput, ModelTransactionPolicy,
};

/// The configuration of a model: its tensors, each of one element.
pub(super) fn of_model(name: String) -> ModelConfig {
    let input = |(name, datatype, optional): &(&str, &str, bool)| ModelInput {
        name: (*name).into(),
        data_type: data_type(datatype).into(),
        dims: vec![1],
        optional: *optional,
    };
    let output = |name: &str| ModelOutput {
        name: name.into(),
        data_type: DataType::TypeString.into(),
        dims: vec![1],
    };
    ModelConfig {
        name,
        platform: "stator".into(),
        max_batch_size: 0,
        input: INPUTS.iter().map(input).collect(),
        output: [TEXT_OUTPUT, FINISH_REASON].map(output).into(),
        backend: "stator".into(),
        // A stream's call may have many responses.
        model_transaction_policy: Some(ModelTransactionPolicy { decoupled: true }),
    }
}

/// Triton's number of a data type of the protocol.
fn data_type(name: &str) -> DataType {
    match name {
        "BOOL" => DataType::TypeBool,
        "BYTES" => DataType::TypeString,
        _ => DataType::TypeInvalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_has_a_type() {
        let config = of_model("m".into());
        assert_eq!((config.name.as_str(), config.input.len()), ("m", INPUTS.len()));
        let types = config.input.iter().map(ModelInput::data_type);
        assert!(types.clone().all(|kind| kind != DataType::TypeInvalid));
        assert_eq!(types.filter(|kind| *kind == DataType::TypeString).count(), 2);
        let required = config.input.iter().filter(|input| !input.optional);
        assert_eq!(required.map(|input| &*input.name).collect::<Vec<_>>(), ["text_input"]);
    }
}
