//! Multi-head latent attention, of the one width that the tables have: a latent vector of 512
//! numbers, with keys of 128 and 64 and values of 128 numbers a head.

use crate::attention::KvFormat;
use crate::error::TableError;
use crate::file::{TableFile, TableTimes};
use crate::surface::Surface;
use std::collections::BTreeMap;

/// Latent attention of one GPU in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentShape<'a> {
    /// Query heads.
    pub heads: u32,
    /// Format of the KV.
    pub kv: KvFormat,
    /// Formats of the weights; the first that the table has counts.
    pub formats: &'a [&'a str],
}

/// Milliseconds of latent attention by heads, KV and the format of its weights, over sequences and
/// their tokens.
#[derive(Debug)]
pub(crate) struct LatentTimes(BTreeMap<(u32, KvFormat, String), Surface<2>>);

impl TableTimes for LatentTimes {
    /// Reads a table. Without a column of the weights' format, the times are of the attention alone;
    /// with it they include its matrix products.
    fn read(file: &TableFile) -> Result<Self, TableError> {
        let kv = file.words("kv_cache_dtype")?;
        let formats = file.has("gemm_type").then(|| file.words("gemm_type")).transpose()?;
        let [heads, before] = file.counts(["num_heads", "step"])?;
        let [sequences, new] = file.positive(["batch_size", "isl"])?;
        let [latency] = file.positive(["latency"])?;
        let mut points: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for row in 0..file.rows() {
            let Some(kv) = KvFormat::named(kv.of(row)) else { continue };
            let format = formats.as_ref().map_or("", |formats| formats.of(row));
            let of = points.entry((heads[row] as u32, kv, format.to_owned())).or_default();
            of.push(([sequences[row], new[row] + before[row]], latency[row]));
        }
        let surfaces =
            points.into_iter().filter_map(|(of, points)| Some((of, Surface::new(points)?)));
        Ok(Self(surfaces.collect()))
    }

    fn gap_errors(&self) -> Vec<f64> {
        self.0.values().flat_map(Surface::gap_errors).collect()
    }
}

impl LatentTimes {
    /// Whether the times include the attention's matrix products.
    pub(crate) fn includes_products(&self) -> bool {
        self.0.keys().all(|(_, _, format)| !format.is_empty())
    }

    pub(crate) fn time(&self, shape: LatentShape<'_>, at: [f64; 2]) -> Option<f64> {
        let of = |format: &str| self.0.get(&(shape.heads, shape.kv, format.to_owned()));
        let surface = of("").or_else(|| shape.formats.iter().find_map(|format| of(format)))?;
        Some(surface.time(at))
    }
}
