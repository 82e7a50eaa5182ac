//! Tables of operations for tests, as files of the form that the AIConfigurator's wheel has.
//!
//! The rows are the tests' own. Start reading at [`write_table`].

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::{File, create_dir_all};
use std::path::Path;
use std::sync::Arc;

/// Values of a column, one a row; `None` is an empty cell.
#[derive(Clone, Debug)]
pub enum TableColumn {
    /// Words.
    Words(Vec<Option<String>>),
    /// Whole numbers.
    Counts(Vec<Option<i64>>),
    /// Numbers.
    Numbers(Vec<Option<f64>>),
}

impl TableColumn {
    /// A column of one word in all rows.
    pub fn word(word: &str, rows: usize) -> Self {
        Self::Words(vec![Some(word.to_owned()); rows])
    }

    /// A column of whole numbers without empty cells.
    pub fn counts(counts: impl IntoIterator<Item = u32>) -> Self {
        Self::Counts(counts.into_iter().map(|count| Some(count.into())).collect())
    }

    /// A column of numbers without empty cells.
    pub fn numbers(numbers: impl IntoIterator<Item = f64>) -> Self {
        Self::Numbers(numbers.into_iter().map(Some).collect())
    }

    fn form(&self) -> &'static str {
        match self {
            Self::Words(_) => "BYTE_ARRAY",
            Self::Counts(_) => "INT64",
            Self::Numbers(_) => "DOUBLE",
        }
    }
}

/// Writes a table with these columns, and the folders that lead to it.
///
/// # Panics
///
/// The file cannot be written, or columns differ in length.
pub fn write_table(path: &Path, columns: &[(&str, TableColumn)]) {
    try_write(path, columns).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Writes a table of matrix products in 16 bits: rows of tokens, outputs, inputs and milliseconds.
///
/// # Panics
///
/// As [`write_table`].
pub fn write_products(path: &Path, rows: &[([u32; 3], f64)]) {
    let axis = |place: usize| TableColumn::counts(rows.iter().map(|(at, _)| at[place]));
    let columns = [
        ("gemm_dtype", TableColumn::word("bfloat16", rows.len())),
        ("m", axis(0)),
        ("n", axis(1)),
        ("k", axis(2)),
        ("latency", TableColumn::numbers(rows.iter().map(|(_, ms)| *ms))),
    ];
    write_table(path, &columns);
}

fn try_write(path: &Path, columns: &[(&str, TableColumn)]) -> Result<(), ParquetError> {
    if let Some(folder) = path.parent() {
        create_dir_all(folder)?;
    }
    let fields = columns.iter().map(|(name, of)| format!("OPTIONAL {} {name};", of.form()));
    let schema = format!("message table {{ {} }}", fields.collect::<String>());
    let packed = Compression::ZSTD(ZstdLevel::default());
    let properties = WriterProperties::builder().set_compression(packed).build();
    let schema = Arc::new(parse_message_type(&schema)?);
    let mut file = SerializedFileWriter::new(File::create(path)?, schema, Arc::new(properties))?;
    let mut group = file.next_row_group()?;
    for (_, column) in columns {
        let mut writer = group.next_column()?.expect("the schema has a place for each column");
        match column {
            TableColumn::Words(words) => {
                let (levels, words) = split(words.iter().map(|word| word.as_deref()));
                let words: Vec<ByteArray> = words.into_iter().map(ByteArray::from).collect();
                writer.typed::<ByteArrayType>().write_batch(&words, Some(&levels), None)?
            }
            TableColumn::Counts(counts) => {
                let (levels, counts) = split(counts.iter().copied());
                writer.typed::<Int64Type>().write_batch(&counts, Some(&levels), None)?
            }
            TableColumn::Numbers(numbers) => {
                let (levels, numbers) = split(numbers.iter().copied());
                writer.typed::<DoubleType>().write_batch(&numbers, Some(&levels), None)?
            }
        };
        writer.close()?;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

/// Levels of cells, 0 for an empty one, and the values of the others.
fn split<T>(cells: impl Iterator<Item = Option<T>>) -> (Vec<i16>, Vec<T>) {
    let mut levels = Vec::new();
    let values = cells.filter_map(|cell| {
        levels.push(i16::from(cell.is_some()));
        cell
    });
    let values = values.collect();
    (levels, values)
}
