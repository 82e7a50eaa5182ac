//! Tables of text.

/// A table: a head and rows of as many cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextTable {
    /// Names of the columns.
    pub head: Vec<String>,
    /// The rows; the first cell is the row's name.
    pub rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table without rows.
    pub fn new<T: Into<String>>(head: impl IntoIterator<Item = T>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        self.rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    }

    /// The table for a terminal: names to the left, values to the right of their columns.
    pub fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.head.len()).map(|column| self.width(column)).collect();
        let line = |cells: &Vec<String>| {
            let cells =
                cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                });
            cells.collect::<String>() + "\n"
        };
        std::iter::once(&self.head).chain(&self.rows).map(line).collect()
    }

    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("|---|{}\n", "---:|".repeat(self.head.len() - 1));
        line(&self.head) + &rule + &self.rows.iter().map(|row| line(row)).collect::<String>()
    }

    fn width(&self, column: usize) -> usize {
        let rows = std::iter::once(&self.head).chain(&self.rows);
        rows.map(|row| row[column].chars().count()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(["", "a", "b|c"]);
        table.row("one", ["1.5".to_owned(), "22 %".to_owned()]);
        table.row("twenty", ["–".to_owned(), "1,000".to_owned()]);
        table
    }

    #[test]
    fn columns_line_up() {
        let expected = "          a    b|c\none     1.5   22 %\ntwenty    –  1,000\n";
        assert_eq!(table().text(), expected);
    }

    #[test]
    fn markdown_has_the_same_cells() {
        let expected =
            "|  | a | b\\|c |\n|---|---:|---:|\n| one | 1.5 | 22 % |\n| twenty | – | 1,000 |\n";
        assert_eq!(table().markdown(), expected);
    }
}
