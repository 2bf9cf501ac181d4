//! Tables: they fit a terminal of 80 columns, whatever their cells hold.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle, Width};
use sinew_harness::units;

/// Width of a terminal that every table fits, in columns.
pub const WIDTH: u16 = 80;
/// Alignments of the columns after the first: figures to the right, texts to the left.
pub const FIGURES: CellAlignment = CellAlignment::Right;
pub const TEXT: CellAlignment = CellAlignment::Left;

/// Columns between two cells, with their padding.
const GAP: usize = 3;

/// Placeholder for a heading until the columns have their widths; no text contains this character.
const HEADING: &str = "\u{e000}";

/// What a column holds.
#[derive(Default)]
struct Contents {
    longest_word: usize,
    has_address: bool,
}

impl Contents {
    fn of(head: &str) -> Self {
        let mut contents = Self::default();
        contents.add(head);
        contents
    }

    fn add(&mut self, cell: &str) {
        let words = cell.split(' ').map(|word| word.chars().count());
        self.longest_word = words.max().unwrap_or(0).max(self.longest_word);
        self.has_address |= cell.contains("://");
    }

    /// Whether there are addresses, which people copy, as they do names, and no word needs to be broken.
    fn have_room(columns: &[Self]) -> bool {
        let words: usize = columns.iter().map(|column| column.longest_word + GAP).sum();
        columns.iter().any(|column| column.has_address) && words <= usize::from(WIDTH)
    }
}

/// Returns a table with a line below its heads. A row of one cell is a heading, which may be wider than its column.
/// Other cells are wrapped where they do not fit. In a table with addresses they are wrapped between words, if there is
/// room for these.
pub fn of(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>, alignment: CellAlignment) -> String {
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH).set_header(heads);
    let mut headings = Vec::new();
    let mut columns = Vec::from_iter(heads.iter().map(|head| Contents::of(head)));
    for row in rows {
        if row.len() > 1 {
            columns.iter_mut().zip(&row).for_each(|(column, cell)| column.add(cell));
        }
        match <[String; 1]>::try_from(row) {
            Ok([heading]) if heads.len() > 1 => {
                headings.push(heading);
                table.add_row([HEADING]);
            }
            Ok(row) => _ = table.add_row(row),
            Err(row) => _ = table.add_row(row),
        }
    }
    let keeps_words = Contents::have_room(&columns);
    for (index, column) in table.column_iter_mut().enumerate() {
        if keeps_words {
            let least = columns.get(index).map_or(0, |contents| contents.longest_word) as u16 + column.padding_width();
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        } else if index == 0 {
            let most = if heads.len() > 2 { WIDTH / 2 } else { WIDTH / 4 * 3 };
            column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(most)));
        }
        if index > 0 {
            column.set_cell_alignment(alignment);
        }
    }
    let mut headings = headings.iter();
    let lines = table.lines().map(|line| match line.trim() {
        HEADING => format!(" {}", headings.next().map_or("", |heading| heading)),
        _ => line.trim_end().to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The text, wrapped to fit, after an empty line; empty if the text is.
pub fn wrapped(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("\n\n{}", units::wrapped(text, usize::from(WIDTH), 0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_table_is_wider_than_a_terminal() {
        let long = "a name that is as long as names of groups may be, which is a hundred bytes and so is this one here";
        let row = |cell: &str| vec![cell.to_owned(); 7];
        let table = of(&["a"; 7], [row("123.4 Gbps"), row(long), row(&"x".repeat(100))], FIGURES);
        assert!(table.lines().all(|line| line.chars().count() <= usize::from(WIDTH)), "{table}");
    }

    #[test]
    fn a_heading_is_as_wide_as_it_is() {
        let heading = "a heading that is wider than the column that it begins";
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        let table = of(&["", "a", "b"], [row(&[heading]), row(&["x", "1", "2"]), row(&["other"])], FIGURES);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!((lines[2], lines[4]), (&*format!(" {heading}"), " other"));
        assert!(lines[3].starts_with(" x") && lines[3].ends_with('2') && lines[3].len() < heading.len(), "{table}");
    }

    #[test]
    fn an_address_is_not_broken_as_long_as_there_is_room() {
        let rest = ["waits for the state", "17", "12345678", "0", "no"];
        let row =
            |name: &str, address: &str| [name, address].iter().chain(&rest).map(|cell| (*cell).to_owned()).collect();
        let long = format!("udp://{}:7401", "h".repeat(60));
        let (name, address) = ("east-1", "udp://127.0.0.1:7401");
        for (rows, is_whole) in [
            (vec![row(name, address), row("b", address)], true),
            (vec![row(&"n".repeat(64), address)], false),
            (vec![row(name, &long)], false),
            (vec![row(name, address), row("b", &long)], false),
        ] {
            let table = of(&["member", "at", "role", "term", "applied", "behind", "disk"], rows, FIGURES);
            assert_eq!(table.contains(name) && table.contains(address), is_whole, "{table}");
            assert!(!is_whole || table.contains("12345678"), "{table}");
            assert!(table.lines().all(|line| line.chars().count() <= usize::from(WIDTH)), "{table}");
        }
    }

    #[test]
    fn a_text_is_broken_between_words() {
        let text = wrapped(&"word ".repeat(100));
        assert!(text.lines().all(|line| line.chars().count() <= 80) && text.matches("word").count() == 100, "{text}");
        assert_eq!(wrapped(""), "");
    }
}
