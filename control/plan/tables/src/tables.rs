//! All tables of one engine on one GPU.

use crate::attention::{AttentionShape, AttentionTimes};
use crate::error::TableError;
use crate::experts::{ExpertShape, ExpertTimes};
use crate::file::{TableFile, TableTimes};
use crate::folder::TablesFolder;
use crate::latent::{LatentShape, LatentTimes};
use crate::products::ProductTimes;
use crate::reduce::ReduceTimes;

/// Measured times of one engine's operations on one GPU. A time is `None` where no table has the
/// operation, or no row a shape that leads to it.
#[derive(Debug, Default)]
pub struct EngineTables {
    products: Option<ProductTimes>,
    prompts: Option<AttentionTimes>,
    decoding: Option<AttentionTimes>,
    latent_prompts: Option<LatentTimes>,
    latent_decoding: Option<LatentTimes>,
    experts: Option<ExpertTimes>,
    reduce: Option<ReduceTimes>,
    sources: Vec<TableSource>,
}

/// Kinds of tables that a model needs beside those of every model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableNeeds {
    /// Tables of experts.
    pub experts: bool,
    /// Tables of latent attention, in the place of those of heads with a KV of their own.
    pub latent: bool,
}

/// A table that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSource {
    /// Name of its file, without the ending.
    pub table: &'static str,
    /// Version of the engine that was measured.
    pub version: String,
    /// Rows of the file.
    pub rows: usize,
    /// Median error, as a share, of rows that are taken away and read from their neighbours; `None`
    /// without three rows in a line.
    pub gap_error: Option<f64>,
}

/// Milliseconds of the tables, seconds of the answers.
const MS: f64 = 1e-3;

impl EngineTables {
    /// Reads the newest complete tables of an engine (`vllm`, `sglang`, `trtllm`) on a GPU
    /// (`h100-sxm`), those that a model needs. Tables that are not there are left out.
    ///
    /// # Errors
    ///
    /// [`TableError`] names the file, and its column and row, that cannot be used.
    pub fn read(
        folder: &TablesFolder,
        gpu: &str,
        engine: &str,
        needs: TableNeeds,
    ) -> Result<Self, TableError> {
        let mut shelf = Shelf { folder, gpu, engine, sources: Vec::new() };
        let mut tables = Self { products: shelf.table("gemm", "gemm_perf")?, ..Self::default() };
        if needs.latent {
            // Engines were measured with the matrix products of the attention, or without.
            tables.latent_prompts = shelf.table("mla", "mla_context_module_perf")?;
            tables.latent_decoding = shelf.table("mla", "mla_generation_module_perf")?;
            if tables.latent_prompts.is_none() {
                tables.latent_prompts = shelf.table("mla", "context_mla_perf")?;
                tables.latent_decoding = shelf.table("mla", "generation_mla_perf")?;
            }
        } else {
            tables.prompts = shelf.table("attention", "context_attention_perf")?;
            tables.decoding = shelf.table("attention", "generation_attention_perf")?;
        }
        if needs.experts {
            tables.experts = shelf.table("moe", "moe_perf")?;
        }
        tables.reduce = shelf.table("comm", "custom_allreduce_perf")?;
        tables.sources = shelf.sources;
        Ok(tables)
    }

    /// Tables that were read.
    pub fn sources(&self) -> &[TableSource] {
        &self.sources
    }

    /// Seconds of a matrix product with weights of the first of these formats that the table has.
    pub fn product_s(
        &self,
        formats: &[&str],
        tokens: f64,
        outputs: f64,
        inputs: f64,
    ) -> Option<f64> {
        Some(self.products.as_ref()?.time(formats, [outputs, inputs, tokens])? * MS)
    }

    /// Seconds of one layer's attention over a whole prompt of `tokens` tokens.
    pub fn prompt_attention_s(&self, shape: AttentionShape, tokens: f64) -> Option<f64> {
        Some(self.prompts.as_ref()?.time(shape, 1.0, tokens)? * MS)
    }

    /// Seconds of one layer's attention of `sequences` sequences that decode, each with `tokens`
    /// tokens.
    pub fn decode_attention_s(
        &self,
        shape: AttentionShape,
        sequences: f64,
        tokens: f64,
    ) -> Option<f64> {
        Some(self.decoding.as_ref()?.time(shape, sequences, tokens)? * MS)
    }

    /// Whether times of latent attention include its matrix products.
    pub fn latent_includes_products(&self) -> bool {
        self.latent_prompts.as_ref().is_some_and(LatentTimes::includes_products)
    }

    /// Seconds of one layer's latent attention over a whole prompt, of so many heads.
    pub fn latent_prompt_s(&self, shape: LatentShape<'_>, tokens: f64) -> Option<f64> {
        Some(self.latent_prompts.as_ref()?.time(shape, [1.0, tokens])? * MS)
    }

    /// Seconds of one layer's latent attention of `sequences` sequences that decode.
    pub fn latent_decode_s(
        &self,
        shape: LatentShape<'_>,
        sequences: f64,
        tokens: f64,
    ) -> Option<f64> {
        Some(self.latent_decoding.as_ref()?.time(shape, [sequences, tokens])? * MS)
    }

    /// Seconds of one layer's experts over `tokens` tokens of all GPUs together, with weights of the
    /// first of these formats that the table has.
    pub fn experts_s(&self, shape: ExpertShape, formats: &[&str], tokens: f64) -> Option<f64> {
        Some(self.experts.as_ref()?.time(shape, formats, tokens)? * MS)
    }

    /// Seconds of a sum over `gpus` GPUs of `numbers` numbers of 16 bits each.
    pub fn reduce_s(&self, gpus: u32, numbers: f64) -> Option<f64> {
        Some(self.reduce.as_ref()?.time(gpus, numbers)? * MS)
    }
}

/// Tables of one engine on one GPU, and what was read of them.
struct Shelf<'a> {
    folder: &'a TablesFolder,
    gpu: &'a str,
    engine: &'a str,
    sources: Vec<TableSource>,
}

impl Shelf<'_> {
    /// A table, if the engine has it.
    fn table<T: TableTimes>(
        &mut self,
        family: &str,
        name: &'static str,
    ) -> Result<Option<T>, TableError> {
        let file = format!("{name}.parquet");
        let Some((path, version)) = self.folder.newest(self.gpu, self.engine, family, &file)?
        else {
            return Ok(None);
        };
        let file = TableFile::open(&path)?;
        let times = T::read(&file)?;
        let gap_error = median(times.gap_errors());
        self.sources.push(TableSource { table: name, version, rows: file.rows(), gap_error });
        Ok(Some(times))
    }
}

fn median(mut errors: Vec<f64>) -> Option<f64> {
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() / 2).copied()
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
