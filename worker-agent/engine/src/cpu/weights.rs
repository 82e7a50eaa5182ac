//! Weights in `*.safetensors` files.

use std::collections::{BTreeSet, HashMap};

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::error::ModelError;
use super::matrix::Matrix;
use super::tensor::Tensor;
use crate::model_files::ModelFiles;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// All weights of a model by name; their bytes stay where they are.
pub(super) struct Weights {
    tensors: HashMap<String, Tensor>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl Weights {
    /// Reads the headers of the files that the index names, or of `model.safetensors`, or, without
    /// either, of all `*.safetensors`.
    pub(super) fn open(files: &ModelFiles) -> Result<Self, ModelError> {
        let mut tensors = HashMap::new();
        for file in weight_files(files)? {
            let missing = || ModelError::MissingFile { file: file.clone() };
            let bytes = files.get(&file).ok_or_else(missing)?;
            let malformed = |error: safetensors::SafeTensorError| ModelError::Malformed {
                file: file.clone(),
                message: error.to_string(),
            };
            for (name, view) in SafeTensors::deserialize(&bytes).map_err(malformed)?.tensors() {
                let tensor = Tensor {
                    file: file.clone(),
                    dtype: view.dtype(),
                    shape: view.shape().to_vec(),
                    bytes: bytes.slice_ref(view.data()),
                };
                tensors.insert(name, tensor);
            }
        }
        Ok(Self { tensors })
    }

    /// Whether there is a weight of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// A vector, in f32.
    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let tensor = self.tensor(name, &[len])?;
        Ok((0..len).map(|i| tensor.read_f32(i)).collect())
    }

    /// A matrix of several weights with the same inputs, one below the other: pairs of name and
    /// outputs.
    pub(super) fn matrix(
        &self,
        inputs: usize,
        parts: &[(&str, usize)],
    ) -> Result<Matrix, ModelError> {
        let tensors = parts.iter().map(|(name, outputs)| self.tensor(name, &[*outputs, inputs]));
        let tensors: Vec<Tensor> = tensors.collect::<Result<_, _>>()?;
        Ok(Matrix::pack(inputs, &tensors))
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let missing = || ModelError::MissingWeight { weight: name.into() };
        let tensor = self.tensors.get(name).ok_or_else(missing)?;
        let wrong = |message: String| {
            Err(ModelError::Weight { file: tensor.file.clone(), weight: name.into(), message })
        };
        if tensor.shape != shape {
            let found = &tensor.shape;
            return wrong(format!("shape {found:?}, but config.json makes it {shape:?}"));
        }
        if !matches!(tensor.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
            let dtype = tensor.dtype;
            return wrong(format!("type {dtype:?} is not supported, only F32, BF16, F16"));
        }
        Ok(tensor.clone())
    }
}

fn weight_files(files: &ModelFiles) -> Result<BTreeSet<String>, ModelError> {
    if let Some(index) = files.get(INDEX) {
        let index: Index = serde_json::from_slice(&index).map_err(|error| {
            ModelError::Malformed { file: INDEX.into(), message: error.to_string() }
        })?;
        return Ok(index.weight_map.into_values().collect());
    }
    if files.get(SINGLE).is_some() {
        return Ok(BTreeSet::from([SINGLE.to_owned()]));
    }
    let all: BTreeSet<String> =
        files.names().filter(|name| name.ends_with(".safetensors")).map(str::to_owned).collect();
    if all.is_empty() {
        return Err(ModelError::MissingFile { file: SINGLE.into() });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;

    /// A file with one-element f32 weights of these names, each with this value.
    fn file(names: &[&str], value: f32) -> Vec<u8> {
        let bytes = value.to_le_bytes();
        let view = || TensorView::new(Dtype::F32, vec![1], &bytes).unwrap();
        safetensors::serialize(names.iter().map(|name| (*name, view())), None).unwrap()
    }

    fn open(files: &[(&str, Vec<u8>)]) -> Result<Weights, ModelError> {
        let leak = |bytes: &Vec<u8>| -> &'static [u8] { bytes.clone().leak() };
        let files: Vec<_> = files.iter().map(|(name, bytes)| (*name, leak(bytes))).collect();
        Weights::open(&ModelFiles::embedded(&files))
    }

    #[track_caller]
    fn check(files: &[(&str, Vec<u8>)], weight: &str, expected: f32) {
        assert_eq!(open(files).unwrap().vector(weight, 1).unwrap(), [expected]);
    }

    #[track_caller]
    fn check_refused(files: &[(&str, Vec<u8>)], start: &str) {
        let message = open(files).err().expect("refused").to_string();
        assert!(message.starts_with(start), "{message}");
    }

    #[test]
    fn all_files_of_a_model_are_read() {
        let files =
            [("x-1.safetensors", file(&["a"], 1.0)), ("x-2.safetensors", file(&["b"], 2.0))];
        check(&files, "a", 1.0);
        check(&files, "b", 2.0);
    }

    #[test]
    fn the_index_says_which_files_are_the_models() {
        let index = br#"{"metadata": {}, "weight_map": {"a": "x.safetensors"}}"#;
        let mut files = vec![
            ("x.safetensors", file(&["a"], 1.0)),
            ("zz-consolidated.safetensors", file(&["a"], 2.0)),
            (INDEX, index.to_vec()),
        ];
        check(&files, "a", 1.0);
        files.remove(0);
        check_refused(&files, "x.safetensors: not found");
    }

    #[test]
    fn one_whole_file_goes_before_others() {
        let files = [(SINGLE, file(&["a"], 1.0)), ("other.safetensors", file(&["a"], 2.0))];
        check(&files, "a", 1.0);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        check_refused(&[], "model.safetensors: not found");
        check_refused(&[(SINGLE, b"garbage".to_vec())], "model.safetensors: ");
        check_refused(&[(INDEX, b"{".to_vec())], "model.safetensors.index.json: EOF");
        let cut = file(&["a"], 1.0);
        check_refused(&[(SINGLE, cut[..cut.len() - 1].to_vec())], "model.safetensors: ");
    }
}
