//! Attention of heads that have keys and values of their own, or share them in groups.

use crate::error::TableError;
use crate::file::{TableFile, TableTimes};
use crate::surface::Surface;
use std::collections::BTreeMap;

/// Format of the KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KvFormat {
    /// 16 bits.
    Bf16,
    /// 8 bits.
    Fp8,
}

/// Attention of one GPU in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: u32,
    /// Heads of keys and values.
    pub kv_heads: u32,
    /// Numbers of a head.
    pub head_dim: u32,
    /// Tokens that a token attends to; 0 for all before it.
    pub window: u32,
    /// Format of the KV.
    pub kv: KvFormat,
}

/// Milliseconds of attention by shape, over sequences and their tokens.
#[derive(Debug)]
pub(crate) struct AttentionTimes(BTreeMap<AttentionShape, Surface<2>>);

/// Format in which attention is computed, the only one that all engines have.
const COMPUTED_IN: &str = "bfloat16";

impl KvFormat {
    /// The format of this name in tables; none if plans do not know it.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "bfloat16" => Some(Self::Bf16),
            "fp8" => Some(Self::Fp8),
            _ => None,
        }
    }
}

impl TableTimes for AttentionTimes {
    fn read(file: &TableFile) -> Result<Self, TableError> {
        let (computed, kv) = (file.words("attn_dtype")?, file.words("kv_cache_dtype")?);
        let [heads, kv_heads, head_dim] =
            file.counts(["num_heads", "num_key_value_heads", "head_dim"])?;
        // Tables of older engines have no windows.
        let windows = if file.has("window_size") {
            let [windows] = file.counts(["window_size"])?;
            windows
        } else {
            vec![0.0; file.rows()]
        };
        let [sequences, new] = file.positive(["batch_size", "isl"])?;
        let [before] = file.counts(["step"])?;
        let [latency] = file.positive(["latency"])?;
        let mut points: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for row in 0..file.rows() {
            let Some(kv) = KvFormat::named(kv.of(row)) else { continue };
            if computed.of(row) != COMPUTED_IN {
                continue;
            }
            let shape = AttentionShape {
                heads: heads[row] as u32,
                kv_heads: kv_heads[row] as u32,
                head_dim: head_dim[row] as u32,
                window: windows[row] as u32,
                kv,
            };
            let at = [sequences[row], new[row] + before[row]];
            points.entry(shape).or_default().push((at, latency[row]));
        }
        let surfaces =
            points.into_iter().filter_map(|(of, points)| Some((of, Surface::new(points)?)));
        Ok(Self(surfaces.collect()))
    }

    fn gap_errors(&self) -> Vec<f64> {
        self.0.values().flat_map(Surface::gap_errors).collect()
    }
}

impl AttentionTimes {
    /// Milliseconds of a layer. A window that was not measured is read as a context that ends with
    /// it.
    pub(crate) fn time(&self, shape: AttentionShape, sequences: f64, tokens: f64) -> Option<f64> {
        if let Some(surface) = self.0.get(&shape) {
            return Some(surface.time([sequences, tokens]));
        }
        let whole = self.0.get(&AttentionShape { window: 0, ..shape })?;
        Some(whole.time([sequences, tokens.min(f64::from(shape.window))]))
    }
}
