//! Matrix products.

use crate::error::TableError;
use crate::file::{TableFile, TableTimes};
use crate::surface::Surface;
use std::collections::BTreeMap;

/// Milliseconds of products by the format of the weights, over outputs, inputs and tokens.
#[derive(Debug)]
pub(crate) struct ProductTimes(BTreeMap<String, Surface<3>>);

impl TableTimes for ProductTimes {
    fn read(file: &TableFile) -> Result<Self, TableError> {
        let formats = file.words("gemm_dtype")?;
        let [outputs, inputs, tokens] = file.positive(["n", "k", "m"])?;
        let [latency] = file.positive(["latency"])?;
        let mut points: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for name in &formats.names {
            points.insert(name.clone(), Vec::new());
        }
        for row in 0..file.rows() {
            let of_format = points.get_mut(formats.of(row)).expect("every word has a list");
            of_format.push(([outputs[row], inputs[row], tokens[row]], latency[row]));
        }
        let surfaces = points.into_iter().filter_map(|(name, of)| Some((name, Surface::new(of)?)));
        Ok(Self(surfaces.collect()))
    }

    fn gap_errors(&self) -> Vec<f64> {
        self.0.values().flat_map(Surface::gap_errors).collect()
    }
}

impl ProductTimes {
    pub(crate) fn time(&self, formats: &[&str], at: [f64; 3]) -> Option<f64> {
        Some(formats.iter().find_map(|format| self.0.get(*format))?.time(at))
    }
}
