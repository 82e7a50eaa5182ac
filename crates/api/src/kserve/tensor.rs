//! Tensors as they come.

use crate::openai::ApiError;
use std::borrow::Cow;

/// A tensor of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferTensor<'a> {
    /// The tensor's name.
    pub name: Cow<'a, str>,
    /// Type of its elements, as `BYTES`.
    pub datatype: Cow<'a, str>,
    /// Length of each of its dimensions.
    pub shape: Vec<i64>,
    /// The elements.
    pub values: TensorValues<'a>,
}

/// Elements of a tensor, in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorValues<'a> {
    /// Strings of bytes.
    Bytes(Vec<Cow<'a, [u8]>>),
    /// Booleans.
    Bools(Vec<bool>),
    /// A number of elements of another type.
    Other(usize),
}

impl<'a> TensorValues<'a> {
    /// Reads elements that came as raw bytes, little end first; none where the bytes are of no such
    /// elements. Strings have their length, of four bytes, before them.
    pub fn from_raw(datatype: &str, mut raw: &'a [u8]) -> Option<Self> {
        match datatype {
            "BOOL" => {
                let flags = raw.iter().map(|byte| (*byte < 2).then_some(*byte == 1));
                Some(Self::Bools(flags.collect::<Option<_>>()?))
            }
            "BYTES" => {
                let mut texts = Vec::new();
                while let Some((length, rest)) = raw.split_first_chunk() {
                    let length = u32::from_le_bytes(*length) as usize;
                    let (text, rest) = rest.split_at_checked(length)?;
                    texts.push(text.into());
                    raw = rest;
                }
                raw.is_empty().then_some(Self::Bytes(texts))
            }
            other => {
                let size = size(other)?;
                raw.len().is_multiple_of(size).then_some(Self::Other(raw.len() / size))
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Bytes(texts) => texts.len(),
            Self::Bools(flags) => flags.len(),
            Self::Other(count) => *count,
        }
    }
}

/// A text as the only element of a tensor of raw bytes.
pub fn raw_text(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), text.as_bytes()].concat()
}

/// Bytes of an element.
fn size(datatype: &str) -> Option<usize> {
    match datatype {
        "UINT8" | "INT8" => Some(1),
        "UINT16" | "INT16" | "FP16" | "BF16" => Some(2),
        "UINT32" | "INT32" | "FP32" => Some(4),
        "UINT64" | "INT64" | "FP64" => Some(8),
        _ => None,
    }
}

impl InferTensor<'_> {
    /// The only element, which is text.
    ///
    /// # Errors
    ///
    /// 400 for a tensor of another type or shape.
    pub fn text(&self) -> Result<String, ApiError> {
        self.check("BYTES")?;
        match &self.values {
            TensorValues::Bytes(texts) if texts.len() == 1 => {
                let text = str::from_utf8(&texts[0]).map(str::to_owned);
                text.map_err(|_| self.invalid("its element is no UTF-8"))
            }
            values => Err(self.invalid(format!("it has {} elements, 1 is wanted", values.len()))),
        }
    }

    /// The only element, which is a boolean.
    ///
    /// # Errors
    ///
    /// 400 for a tensor of another type or shape.
    pub fn flag(&self) -> Result<bool, ApiError> {
        self.check("BOOL")?;
        match &self.values {
            TensorValues::Bools(flags) if flags.len() == 1 => Ok(flags[0]),
            values => Err(self.invalid(format!("it has {} elements, 1 is wanted", values.len()))),
        }
    }

    fn check(&self, datatype: &str) -> Result<(), ApiError> {
        if self.datatype != datatype {
            return Err(self.invalid(format!("it is of {}, not of {datatype}", self.datatype)));
        }
        let count = self
            .shape
            .iter()
            .try_fold(1, |count: usize, length| count.checked_mul(usize::try_from(*length).ok()?));
        match count {
            Some(count) if count == self.values.len() => Ok(()),
            _ => {
                let (shape, found) = (&self.shape, self.values.len());
                Err(self.invalid(format!("its shape {shape:?} is not that of {found} elements")))
            }
        }
    }

    fn invalid(&self, why: impl std::fmt::Display) -> ApiError {
        ApiError::invalid(&self.name, format!("tensor {:?}: {why}", self.name))
    }
}
