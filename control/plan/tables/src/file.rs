//! One table file: a Parquet file of flat columns, read within limits.

use crate::error::TableError;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Limits of a file. The largest table of the wheel has 1 MB and 260,756 rows.
const FILE_BYTES_MAX: u64 = 64 << 20;
const ROWS_MAX: usize = 2_000_000;
/// Unpacked bytes of one column.
const COLUMN_BYTES_MAX: i64 = 128 << 20;
/// Different words of one column.
const WORDS_MAX: usize = 1_024;
/// Rows that are decoded at once.
const BATCH_ROWS: usize = 8_192;

/// Times that a table has for one kind of operation.
pub(crate) trait TableTimes: Sized {
    /// Reads a table.
    ///
    /// # Errors
    ///
    /// [`TableError`] names the column and the row that cannot be used.
    fn read(file: &TableFile) -> Result<Self, TableError>;

    /// Errors, as shares, of rows that are taken away and read from their neighbours.
    fn gap_errors(&self) -> Vec<f64>;
}

/// A table file.
pub(crate) struct TableFile {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    rows: usize,
}

/// A column of words: each row has the place of its word among the different ones.
pub(crate) struct TableWords {
    /// The different words.
    pub(crate) names: Vec<String>,
    /// Place of each row's word in `names`.
    pub(crate) rows: Vec<usize>,
}

impl TableFile {
    /// Opens a file and reads its metadata.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is no Parquet file, or is beyond the limits.
    pub(crate) fn open(path: &Path) -> Result<Self, TableError> {
        let file = File::open(path).map_err(|error| TableError::file(path, error))?;
        let bytes = file.metadata().map_err(|error| TableError::file(path, error))?.len();
        if bytes > FILE_BYTES_MAX {
            let reason = format!("{bytes} bytes are above the limit of {FILE_BYTES_MAX}");
            return Err(TableError::file(path, reason));
        }
        let reader = caught(|| SerializedFileReader::new(file).map_err(|error| error.to_string()))
            .map_err(|reason| TableError::file(path, reason))?;
        let told = reader.metadata().file_metadata().num_rows();
        let rows = usize::try_from(told).ok().filter(|rows| (1..=ROWS_MAX).contains(rows));
        let outside = || TableError::file(path, format!("{told} rows are not in 1..={ROWS_MAX}"));
        Ok(Self { path: path.to_owned(), rows: rows.ok_or_else(outside)?, reader })
    }

    /// Rows of the file.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether there is a column of this name.
    pub(crate) fn has(&self, column: &str) -> bool {
        self.place(column).is_some()
    }

    /// Columns of numbers above 0, each as long as the file.
    ///
    /// # Errors
    ///
    /// [`TableError`] names the column, and the row whose number cannot be used.
    pub(crate) fn positive<const N: usize>(
        &self,
        columns: [&'static str; N],
    ) -> Result<[Vec<f64>; N], TableError> {
        self.columns(columns, |number| number > 0.0, "is not above 0")
    }

    /// Columns of numbers from 0 on, each as long as the file.
    ///
    /// # Errors
    ///
    /// [`TableError`] names the column, and the row whose number cannot be used.
    pub(crate) fn counts<const N: usize>(
        &self,
        columns: [&'static str; N],
    ) -> Result<[Vec<f64>; N], TableError> {
        self.columns(columns, |number| number >= 0.0, "is below 0")
    }

    /// A column of words.
    ///
    /// # Errors
    ///
    /// [`TableError`] names the column, and the row whose word cannot be used.
    pub(crate) fn words(&self, column: &'static str) -> Result<TableWords, TableError> {
        let mut words = TableWords { names: Vec::new(), rows: Vec::with_capacity(self.rows) };
        self.each_group(column, |reader, first| match reader {
            ColumnReader::ByteArrayColumnReader(reader) => {
                self.records(column, reader, first, |word| words.add(&word))
            }
            _ => Err(TableError::column(&self.path, column, "is not of words")),
        })?;
        Ok(words)
    }

    fn columns<const N: usize>(
        &self,
        columns: [&'static str; N],
        is_sound: fn(f64) -> bool,
        fault: &str,
    ) -> Result<[Vec<f64>; N], TableError> {
        let mut read = [const { Vec::new() }; N];
        for (numbers, column) in read.iter_mut().zip(columns) {
            *numbers = self.numbers(column)?;
            let wrong = |number: &f64| !(number.is_finite() && is_sound(*number));
            if let Some(row) = numbers.iter().position(wrong) {
                let reason = format!("{} {fault}", numbers[row]);
                return Err(TableError::column(&self.path, column, reason).in_row(row + 1));
            }
        }
        Ok(read)
    }

    fn numbers(&self, column: &'static str) -> Result<Vec<f64>, TableError> {
        let mut numbers = Vec::with_capacity(self.rows);
        self.each_group(column, |reader, first| match reader {
            ColumnReader::Int64ColumnReader(reader) => self.records(column, reader, first, |n| {
                numbers.push(n as f64);
                Ok(())
            }),
            ColumnReader::DoubleColumnReader(reader) => self.records(column, reader, first, |n| {
                numbers.push(n);
                Ok(())
            }),
            _ => Err(TableError::column(&self.path, column, "is of neither INT64 nor DOUBLE")),
        })?;
        Ok(numbers)
    }

    /// Place of a column among those of the file.
    fn place(&self, column: &str) -> Option<usize> {
        let columns = self.reader.metadata().file_metadata().schema_descr().columns();
        columns.iter().position(|told| told.name() == column)
    }

    /// Reads the groups of rows of a column; `read` gets the row, from 0, that a group begins with
    /// and returns the row after the group's last.
    fn each_group(
        &self,
        column: &'static str,
        mut read: impl FnMut(ColumnReader, usize) -> Result<usize, TableError>,
    ) -> Result<(), TableError> {
        let fault = |reason: String| TableError::column(&self.path, column, reason);
        let place = self.place(column).ok_or_else(|| fault("is missing".to_owned()))?;
        let metadata = self.reader.metadata();
        let about = metadata.file_metadata().schema_descr().column(place);
        if about.max_rep_level() > 0 || about.max_def_level() > 1 {
            return Err(fault("is nested".to_owned()));
        }
        let mut row = 0;
        for (group, about) in metadata.row_groups().iter().enumerate() {
            let bytes = about.column(place).uncompressed_size();
            if !(0..=COLUMN_BYTES_MAX).contains(&bytes) {
                return Err(fault(format!("{bytes} bytes are not in 0..={COLUMN_BYTES_MAX}")));
            }
            let reader = caught(|| {
                let group = self.reader.get_row_group(group);
                let reader = group.and_then(|group| group.get_column_reader(place));
                reader.map_err(|error| error.to_string())
            });
            row = read(reader.map_err(fault)?, row)?;
        }
        if row != self.rows {
            return Err(fault(format!("has {row} rows, and the file has {}", self.rows)));
        }
        Ok(())
    }

    /// Takes the values of one group; returns the row after the last.
    fn records<T: DataType>(
        &self,
        column: &'static str,
        mut reader: ColumnReaderImpl<T>,
        first: usize,
        mut take: impl FnMut(T::T) -> Result<(), String>,
    ) -> Result<usize, TableError> {
        let fault = |reason: String| TableError::column(&self.path, column, reason);
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let mut row = first;
        loop {
            levels.clear();
            let read = caught(|| {
                let read = reader.read_records(BATCH_ROWS, Some(&mut levels), None, &mut values);
                read.map_err(|error| error.to_string())
            });
            let (records, present, _) = read.map_err(fault)?;
            if records == 0 {
                return Ok(row);
            }
            if present != records {
                let empty = levels.iter().position(|level| *level == 0).unwrap_or(0);
                return Err(fault("is empty".to_owned()).in_row(row + empty + 1));
            }
            if row + records > self.rows {
                return Err(fault(format!("has more rows than the {} of the file", self.rows)));
            }
            for value in values.drain(..) {
                row += 1;
                take(value).map_err(|reason| fault(reason).in_row(row))?;
            }
        }
    }
}

/// Runs a call of the Parquet reader, which panics at many kinds of wrong bytes: a panic becomes a
/// reason like the reader's own errors. What the call was given is not used after a reason.
fn caught<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err("has wrong bytes".to_owned()))
}

impl TableWords {
    /// The word of a row.
    pub(crate) fn of(&self, row: usize) -> &str {
        &self.names[self.rows[row]]
    }

    fn add(&mut self, word: &ByteArray) -> Result<(), String> {
        let word = std::str::from_utf8(word.data()).map_err(|_| "is not UTF-8".to_owned())?;
        // Neighbouring rows mostly have the same word.
        let last = self.rows.last().copied().filter(|last| self.names[*last] == word);
        let place = match last.or_else(|| self.names.iter().position(|name| name == word)) {
            Some(place) => place,
            None if self.names.len() == WORDS_MAX => {
                return Err(format!("has more than {WORDS_MAX} different words"));
            }
            None => {
                self.names.push(word.to_owned());
                self.names.len() - 1
            }
        };
        self.rows.push(place);
        Ok(())
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
