//! Experts: the products of those that tokens go to.

use crate::error::TableError;
use crate::file::{TableFile, TableTimes};
use crate::surface::Surface;
use std::collections::BTreeMap;

/// Experts of one layer, and how GPUs share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpertShape {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Inner width of an expert.
    pub inner: u32,
    /// Experts that a token goes to.
    pub active: u32,
    /// Experts of the layer.
    pub count: u32,
    /// GPUs that share each expert.
    pub tensor: u32,
    /// Groups of GPUs with experts of their own.
    pub spread: u32,
}

/// Milliseconds of experts by shape and format, over the tokens of all GPUs, at the most uneven
/// spread of tokens over experts that was measured.
#[derive(Debug)]
pub(crate) struct ExpertTimes(BTreeMap<ExpertShape, BTreeMap<String, Surface<1>>>);

/// Spreads of tokens over experts, the one that is nearest to real text last.
const SPREADS: [&str; 3] = ["balanced", "power_law_1.01", "power_law_1.2"];

impl TableTimes for ExpertTimes {
    fn read(file: &TableFile) -> Result<Self, TableError> {
        let (formats, spreads) = (file.words("moe_dtype")?, file.words("distribution")?);
        let [hidden, inner, active, count, tensor, spread, tokens] = file.positive([
            "hidden_size",
            "inter_size",
            "topk",
            "num_experts",
            "moe_tp_size",
            "moe_ep_size",
            "num_tokens",
        ])?;
        let [latency] = file.positive(["latency"])?;
        let mut points: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for row in 0..file.rows() {
            let rank = SPREADS.iter().position(|known| *known == spreads.of(row));
            let Some(rank) = rank else { continue };
            let shape = ExpertShape {
                hidden: hidden[row] as u32,
                inner: inner[row] as u32,
                active: active[row] as u32,
                count: count[row] as u32,
                tensor: tensor[row] as u32,
                spread: spread[row] as u32,
            };
            let of = points.entry((shape, formats.rows[row], rank)).or_default();
            of.push(([tokens[row]], latency[row]));
        }
        let mut times: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        // Ranks rise, so that a later one takes the place of an earlier one.
        for ((shape, format, _), points) in points {
            let name = formats.names[format].clone();
            times.entry(shape).or_default().extend(Surface::new(points).map(|of| (name, of)));
        }
        Ok(Self(times))
    }

    fn gap_errors(&self) -> Vec<f64> {
        self.0.values().flat_map(BTreeMap::values).flat_map(Surface::gap_errors).collect()
    }
}

impl ExpertTimes {
    pub(crate) fn time(&self, shape: ExpertShape, formats: &[&str], tokens: f64) -> Option<f64> {
        let of_shape = self.0.get(&shape)?;
        Some(formats.iter().find_map(|format| of_shape.get(*format))?.time([tokens]))
    }
}
