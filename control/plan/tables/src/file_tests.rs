use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use stator_tables_testkit::{TableColumn, write_products, write_table};
use std::panic;
use std::sync::Once;
use tempfile::TempDir;

/// The fault of reading one column of numbers above 0.
fn fault(columns: &[(&str, TableColumn)], column: &'static str) -> String {
    let home = TempDir::new().expect("a folder");
    let path = home.path().join("table.parquet");
    write_table(&path, columns);
    let file = TableFile::open(&path).expect("the file is sound");
    file.positive([column]).map(|_| ()).expect_err("a fault").to_string()
}

fn numbers(cells: &[Option<f64>]) -> [(&'static str, TableColumn); 1] {
    [("latency", TableColumn::Numbers(cells.to_vec()))]
}

#[test]
fn columns_come_back_as_they_were_written() {
    let home = TempDir::new().expect("a folder");
    let path = home.path().join("table.parquet");
    let words = ["a", "b", "a"].map(|word| Some(word.to_owned())).to_vec();
    let columns = [
        ("name", TableColumn::Words(words)),
        ("count", TableColumn::counts([1, 2, 3])),
        ("latency", TableColumn::numbers([0.5, 1.5, 2.5])),
    ];
    write_table(&path, &columns);
    let file = TableFile::open(&path).expect("the file is sound");
    assert_eq!(file.rows(), 3);
    let [counts, latency] = file.positive(["count", "latency"]).expect("sound columns");
    assert_eq!((counts, latency), (vec![1.0, 2.0, 3.0], vec![0.5, 1.5, 2.5]));
    let words = file.words("name").expect("a column of words");
    assert_eq!([0, 1, 2].map(|row| words.of(row)), ["a", "b", "a"]);
    assert_eq!(words.names.len(), 2);
    assert!(file.has("name") && !file.has("names"));
}

#[test]
fn a_fault_names_column_and_row() {
    let check = |cells: &[Option<f64>], expected: &str| {
        let fault = fault(&numbers(cells), "latency");
        assert!(fault.ends_with(expected), "{fault}");
    };
    check(&[Some(1.0), Some(0.0)], "table.parquet: column latency, row 2: 0 is not above 0");
    check(&[Some(1.0), Some(1.0), Some(-2.5)], "column latency, row 3: -2.5 is not above 0");
    check(&[Some(f64::NAN)], "column latency, row 1: NaN is not above 0");
    check(&[Some(f64::INFINITY)], "column latency, row 1: inf is not above 0");
    check(&[Some(1.0), None, Some(1.0)], "column latency, row 2: is empty");
}

#[test]
fn a_column_that_is_missing_or_of_another_form_is_named() {
    let one = numbers(&[Some(1.0)]);
    assert!(fault(&one, "m").ends_with("column m: is missing"));
    let words = [("m", TableColumn::word("eight", 1))];
    assert!(fault(&words, "m").ends_with("column m: is of neither INT64 nor DOUBLE"));
}

#[test]
fn too_many_words_are_a_fault() {
    let home = TempDir::new().expect("a folder");
    let path = home.path().join("table.parquet");
    let words = (0..=WORDS_MAX).map(|word| Some(word.to_string())).collect();
    write_table(&path, &[("name", TableColumn::Words(words))]);
    let file = TableFile::open(&path).expect("the file is sound");
    let fault = file.words("name").map(|_| ()).expect_err("a fault").to_string();
    assert!(fault.ends_with("row 1025: has more than 1024 different words"), "{fault}");
}

#[test]
fn a_file_of_another_kind_is_named() {
    let home = TempDir::new().expect("a folder");
    for (name, bytes) in
        [("text", &b"no table at all"[..]), ("empty", &b""[..]), ("magic", &b"PAR1PAR1"[..])]
    {
        let path = home.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        let fault = TableFile::open(&path).map(|_| ()).expect_err("a fault").to_string();
        assert!(fault.starts_with(&format!("tables: {}: ", path.display())), "{fault}");
    }
    let fault = TableFile::open(&home.path().join("nowhere")).map(|_| ()).expect_err("a fault");
    assert!(fault.to_string().contains("nowhere"), "{fault}");
}

/// Lets panics of the Parquet reader pass without a word: a backtrace of each takes a tenth of a second.
fn silence_the_reader() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if info.location().is_none_or(|place| !place.file().contains("/parquet-")) {
                usual(info);
            }
        }));
    });
}

/// Reads what the bytes have, as far as they are a table.
fn read_bytes(path: &Path, bytes: &[u8]) {
    silence_the_reader();
    std::fs::write(path, bytes).expect("a file");
    if let Ok(file) = TableFile::open(path) {
        let read = (file.words("gemm_dtype").is_ok(), file.positive(["m", "latency"]).is_ok());
        assert!(file.rows() > 0, "{read:?}");
    }
}

#[test]
fn a_flipped_bit_ends_nothing() {
    let home = TempDir::new().expect("a folder");
    let path = home.path().join("table.parquet");
    write_products(&path, &[([1, 64, 64], 1.0), ([2, 64, 64], 2.0)]);
    let mut bytes = std::fs::read(&path).expect("the file");
    for bit in 0..bytes.len() * 8 {
        let mask = 1 << (bit % 8);
        bytes[bit / 8] ^= mask;
        read_bytes(&path, &bytes);
        bytes[bit / 8] ^= mask;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A file that is cut short is refused, or reads as far as all its rows.
    #[test]
    fn a_file_that_was_cut_is_a_fault(share in 0.0_f64..1.0) {
        let home = TempDir::new().expect("a folder");
        let path = home.path().join("table.parquet");
        let rows: Vec<_> = (1..200).map(|m| ([m, 64, 64], f64::from(m))).collect();
        write_products(&path, &rows);
        let whole = std::fs::read(&path).expect("the file");
        let length = (whole.len() as f64 * share) as usize;
        std::fs::write(&path, &whole[..length]).expect("a file");
        prop_assert!(TableFile::open(&path).is_err());
    }

    /// A file with a few wrong bytes is read or refused.
    #[test]
    fn a_file_with_wrong_bytes_ends_nothing(wrong in vec((0.0_f64..1.0, any::<u8>()), 1..4)) {
        let home = TempDir::new().expect("a folder");
        let path = home.path().join("table.parquet");
        let rows: Vec<_> = (1..50).map(|m| ([m, 64, 64], f64::from(m))).collect();
        write_products(&path, &rows);
        let mut bytes = std::fs::read(&path).expect("the file");
        let length = bytes.len() as f64;
        for (share, byte) in wrong {
            bytes[(length * share) as usize] = byte;
        }
        read_bytes(&path, &bytes);
    }
}
