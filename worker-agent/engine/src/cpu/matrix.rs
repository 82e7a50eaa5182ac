//! Weight matrices, packed for [`super::kernel`].

use half::bf16;
use rayon::prelude::*;

use super::kernel::{self, Isa, LANES, Out, Panels, Rows};
use super::tensor::Tensor;

/// A matrix of `outputs` rows of `inputs` weights, in panels of [`LANES`] outputs; the last panel
/// is filled up with zeros. Weights stay in bf16 where the files have them so: decode is bound by
/// reading them.
#[derive(Debug)]
pub(super) struct Matrix {
    inputs: usize,
    outputs: usize,
    packed: Packed,
}

#[derive(Debug)]
enum Packed {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

impl Matrix {
    /// Packs tensors of `inputs` columns, one below the other.
    pub(super) fn pack(inputs: usize, tensors: &[Tensor]) -> Self {
        let outputs = tensors.iter().map(Tensor::rows).sum();
        let packed = if tensors.iter().all(Tensor::is_bf16) {
            Packed::Bf16(pack(inputs, outputs, tensors, bf16::ZERO, Tensor::read_bf16))
        } else {
            Packed::F32(pack(inputs, outputs, tensors, 0.0, Tensor::read_f32))
        };
        Self { inputs, outputs, packed }
    }

    /// Outputs, filled up to whole panels: values per row of a product.
    pub(super) fn width(&self) -> usize {
        self.outputs.next_multiple_of(LANES)
    }

    /// Multiplies rows of `inputs` values with the matrix.
    pub(super) fn multiply(&self, isa: Isa, rows: Rows<'_>, out: Out<'_>) {
        match &self.packed {
            Packed::F32(weights) => {
                kernel::multiply_parallel(isa, rows, self.panels(weights), out);
            }
            Packed::Bf16(weights) => {
                kernel::multiply_parallel(isa, rows, self.panels(weights), out);
            }
        }
    }

    /// Copies the weights of one output to `out`, which has room for `inputs` values.
    pub(super) fn row(&self, output: usize, out: &mut [f32]) {
        let start = output / LANES * LANES * self.inputs + output % LANES;
        let places = (start..).step_by(LANES);
        match &self.packed {
            Packed::F32(weights) => out.iter_mut().zip(places).for_each(|(o, i)| *o = weights[i]),
            Packed::Bf16(weights) => {
                out.iter_mut().zip(places).for_each(|(o, i)| *o = weights[i].to_f32());
            }
        }
    }

    fn panels<'a, E>(&self, weights: &'a [E]) -> Panels<'a, E> {
        Panels {
            weights,
            count: self.outputs.div_ceil(LANES),
            stride: self.inputs * LANES,
            depth: self.inputs,
            depth_stride: LANES,
        }
    }
}

fn pack<E: Copy + Send + Sync>(
    inputs: usize,
    outputs: usize,
    tensors: &[Tensor],
    zero: E,
    read: impl Fn(&Tensor, usize) -> E + Sync,
) -> Vec<E> {
    let mut packed = vec![zero; outputs.next_multiple_of(LANES) * inputs];
    packed.par_chunks_mut(inputs * LANES).enumerate().for_each(|(panel, values)| {
        for lane in 0..LANES {
            let mut row = panel * LANES + lane;
            let holder = tensors.iter().find(|tensor| match row.checked_sub(tensor.rows()) {
                Some(below) => {
                    row = below;
                    false
                }
                None => true,
            });
            let Some(tensor) = holder else { continue };
            for k in 0..inputs {
                values[k * LANES + lane] = read(tensor, row * inputs + k);
            }
        }
    });
    packed
}
