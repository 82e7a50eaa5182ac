//! A weight, read from the bytes of its file.

use bytes::Bytes;
use half::{bf16, f16};
use safetensors::Dtype;

/// A weight as it stands in its file.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) file: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Bytes,
}

impl Tensor {
    /// Length of the first dimension.
    pub(super) fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    pub(super) fn is_bf16(&self) -> bool {
        self.dtype == Dtype::BF16
    }

    /// Element `i` of a weight of any supported type, exactly.
    pub(super) fn read_f32(&self, i: usize) -> f32 {
        match self.dtype {
            Dtype::F32 => f32::from_le_bytes(self.element(i)),
            Dtype::F16 => f16::from_le_bytes(self.element(i)).to_f32(),
            _ => self.read_bf16(i).to_f32(),
        }
    }

    /// Element `i` of a bf16 weight.
    pub(super) fn read_bf16(&self, i: usize) -> bf16 {
        bf16::from_le_bytes(self.element(i))
    }

    fn element<const N: usize>(&self, i: usize) -> [u8; N] {
        self.bytes.as_chunks().0[i]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_read_exactly() {
        let tensor = |dtype, bytes: &[u8]| Tensor {
            file: String::new(),
            dtype,
            shape: vec![1],
            bytes: Bytes::copy_from_slice(bytes),
        };
        assert_eq!(tensor(Dtype::F16, &f16::from_f32(1.5).to_le_bytes()).read_f32(0), 1.5);
        assert_eq!(tensor(Dtype::BF16, &bf16::from_f32(-3.0).to_le_bytes()).read_f32(0), -3.0);
    }
}
