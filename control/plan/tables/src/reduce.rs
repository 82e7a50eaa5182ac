//! Sums over the GPUs of a worker.

use crate::error::TableError;
use crate::file::{TableFile, TableTimes};
use crate::surface::Surface;
use std::collections::BTreeMap;

/// Milliseconds of an all-reduce by GPUs, over the numbers of 16 bits that each has.
#[derive(Debug)]
pub(crate) struct ReduceTimes(BTreeMap<u32, Surface<1>>);

impl TableTimes for ReduceTimes {
    fn read(file: &TableFile) -> Result<Self, TableError> {
        let [gpus, numbers] = file.positive(["num_gpus", "message_size"])?;
        let [latency] = file.positive(["latency"])?;
        let mut points: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for row in 0..file.rows() {
            let of = points.entry(gpus[row] as u32).or_default();
            of.push(([numbers[row]], latency[row]));
        }
        let surfaces =
            points.into_iter().filter_map(|(of, points)| Some((of, Surface::new(points)?)));
        Ok(Self(surfaces.collect()))
    }

    fn gap_errors(&self) -> Vec<f64> {
        self.0.values().flat_map(Surface::gap_errors).collect()
    }
}

impl ReduceTimes {
    pub(crate) fn time(&self, gpus: u32, numbers: f64) -> Option<f64> {
        Some(self.0.get(&gpus)?.time([numbers]))
    }
}
