//! Tests of `csv`.

use crate::backend::ascend::pools;
use proptest::prelude::*;

use super::*;

const HEADER: &str =
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)\n";

fn read(text: &str) -> (Result<Vec<DumpRow>, String>, Notes) {
    let mut notes = Notes::default();
    let mut rows = Vec::new();
    let mut reader = match CsvReader::new(text.as_bytes(), Path::new("x.csv")) {
        Ok(reader) => reader,
        Err(error) => return (Err(error.to_string()), notes),
    };
    loop {
        match reader.next_row(0, &mut notes) {
            Ok(Some(row)) => rows.push(row),
            Ok(None) => return (Ok(rows), notes),
            Err(error) => return (Err(error.to_string()), notes),
        }
    }
}

fn names(text: &str) -> Vec<String> {
    let (rows, _) = read(&format!("{HEADER}{text}"));
    rows.expect("readable").into_iter().map(|row| row.texts().name.clone()).collect()
}

/// Quotes as RFC 4180 has them, as msMemScope has them, and as other programs leave them.
#[test]
fn names_of_marks_in_all_spellings() {
    let tail = "1746006014361575999,123,1234,0,N/A,,,\n";
    let cases = [
        (r#""step start""#, "step start"),
        ("step start", "step start"),
        (r#""a,b""#, "a,b"),
        (r#""say ""hi"" now""#, r#"say "hi" now"#),
        (r#""say "hi" now""#, r#"say "hi" now"#),
        (r#""say "hi"""#, r#"say "hi""#),
        (r#""a",b""#, r#"a",b"#),
        (r#""""#, ""),
        ("\"two\nlines\"", "two\nlines"),
        ("\"two\n\"lines\"", "two\n\"lines"),
    ];
    for (cell, name) in cases {
        assert_eq!(names(&format!("7,MSTX,Mark,{cell},{tail}8,MSTX,Mark,\"next\",{tail}")), [name, "next"], "{cell}");
    }
}

/// Stacks over many lines, blank lines and carriage returns are passed over; a block keeps its figures.
#[test]
fn blocks_with_stacks() {
    let row = "3,MALLOC,PTA,N/A,12,5,6,1,0x0000000000003039,\"{allocation_id:4,addr:0x0000000000003039,size:10,\
               used:20,total:30}\",\"a.py(1): f\nb.py(2): g\n\",\"lib.so(f+0x1) [0x2]\nlib.so(g, \"\"x\"\") [0x3]\n\"\r\n";
    let (rows, notes) = read(&format!("{HEADER}{row}\n\n{row}"));
    let rows = rows.expect("readable");
    assert_eq!((rows.len(), rows[1].line, notes.torn_rows), (2, 9, 0));
    assert_eq!(rows[0].kind, crate::dump_format::row::Kind::Malloc(pools::PTA));
    assert_eq!((rows[0].allocation_id, rows[0].size_bytes), (Some(4), Some(10)));
    assert_eq!((rows[0].used_bytes, rows[0].total_bytes, rows[0].ptr), (Some(20), Some(30), Some(0x3039)));
}

/// A row torn at the end of the file is left out and counted, wherever it was torn.
#[test]
fn torn_end_is_noted() {
    let row = "3,MALLOC,PTA,N/A,12,5,6,1,0x0000000000003039,\"{allocation_id:4,size:10}\",\"a\nb\n\",\n";
    for cut in 1..row.len() - 1 {
        let (rows, notes) = read(&format!("{HEADER}{row}{}", &row[..cut]));
        // Only a missing newline or empty cells can go unnoticed.
        let whole = rows.expect("readable").len() - 1;
        assert_eq!(whole as u64 + notes.torn_rows, 1, "{cut}");
        assert!(whole == 0 || cut >= row.len() - 2, "{cut}");
    }
}

/// A bad row is dropped, and reported with file, line and column; the rows around it are read.
#[test]
fn bad_rows_are_left_out_with_their_place() {
    let good = "3,MALLOC,PTA,N/A,12,5,6,1,0x0000000000003039,\"{allocation_id:4,size:10}\",,\n";
    let cases = [
        (good.replacen("3,", "x,", 1), "`x.csv` line 3, column ID: `x` is not a decimal number"),
        (good.replace("0x", "0z"), "`x.csv` line 3, column Ptr: `0z0000000000003039` is not an address"),
        (good.replace(",1,0x", ",npu,0x"), "`x.csv` line 3, column Device Id: `npu` is not a decimal number"),
        (good.replace("size:10", "size:-1"), "`x.csv` line 3, column Attr: size: `-1` is not a decimal number"),
        (good.replace(",size:10", ""), "`x.csv` line 3, column Attr: a MALLOC row needs a `size`"),
        (good.replace("12,", "12,,"), "`x.csv` line 3, column ID: the row has 13 cells, the header 12"),
        ("<<<<<<< HEAD\n".to_owned(), "`x.csv` line 3, column ID: the row has 1 cells, the header 12"),
        (good.replace("}\",", "},"), "`x.csv` line 3, column ID: a quote is not closed"),
        (HEADER.to_owned(), "`x.csv` line 3, column Attr: `Attr` is not of the form {key:value,…}"),
    ];
    for (row, message) in cases {
        let (rows, notes) = read(&format!("{HEADER}{good}{row}{good}"));
        let places: Vec<_> = rows.expect("readable").iter().map(|row| row.line).collect();
        assert_eq!(places, [2, 4], "{row}");
        assert_eq!(notes.bad_rows, 1, "{row}");
        assert_eq!(notes.bad_examples[0].to_string(), message);
    }
}

/// A file of another kind is refused with what its first line should be.
#[test]
fn foreign_headers_are_refused() {
    let foreign = [
        ("a,b,c\n", "`x.csv` is no dump: line 1 does not start with the column `ID`"),
        ("", "`x.csv` is no dump: line 1 does not start with the column `ID`"),
        ("ID,Event,Kind\n", "`x.csv` is no dump: in line 1, column 3 is `Kind` instead of `Event Type`"),
    ];
    for (text, message) in foreign {
        assert_eq!(read(text).0, Err(message.to_owned()));
    }
}

/// A quote that is never closed swallows no row after it, even where a later quote seems to close it.
#[test]
fn open_quotes_swallow_nothing() {
    let row = |id: u64| format!("{id},MALLOC,PTA,N/A,12,5,6,1,0x0000000000003039,\"{{allocation_id:4,size:10}}\",,\n");
    let open = row(3).replace("}\"", "}");
    let (rows, notes) = read(&[HEADER, &row(2), &open, &row(4), &open, &row(5)].concat());
    let ids: Vec<u64> = rows.expect("readable").iter().map(|row| row.id).collect();
    assert_eq!(ids, [2, 4, 5]);
    let lines: Vec<u64> = notes.bad_examples.iter().map(|row| row.line).collect();
    assert_eq!((notes.bad_rows, lines), (2, vec![3, 5]));
}

/// A quote that is never closed, and a line without an end, do not fill the memory; the next rows are read.
#[test]
fn huge_cells_are_left_out() {
    let good = "4,MSTX,Mark,\"x\",12,5,6,1,N/A,,,\n";
    let text = format!("{HEADER}{good}3,MSTX,Mark,{}\n{good}", "x".repeat(2 * MAX_ROW_BYTES));
    let (rows, notes) = read(&text);
    assert_eq!(rows.expect("readable").iter().map(|row| row.line).collect::<Vec<_>>(), [2, 4]);
    let message = notes.bad_examples[0].to_string();
    assert!(message.starts_with("`x.csv` line 3, column ID: the row is longer than 4194304 bytes"), "{message}");
    assert_eq!(notes.bad_rows, 1);
}

/// A line without an end is refused, with its number, and not read for ever.
#[test]
fn endless_lines_are_refused() {
    let text = format!("{HEADER}4,MSTX,Mark,\"x\",12,5,6,1,N/A,,,\n");
    let endless = text.as_bytes().chain(std::io::repeat(b'x'));
    let mut reader = CsvReader::new(endless, Path::new("x.csv")).expect("a dump");
    let mut notes = Notes::default();
    assert_eq!(reader.next_row(0, &mut notes).expect("a row").map(|row| row.line), Some(2));
    let refused = reader.next_row(0, &mut notes).expect_err("no end").to_string();
    assert_eq!(refused, "`x.csv` is no dump: line 3 is longer than 64 MiB");
}

/// Open quotes in every line cost no more than the length of the file: swallowed bytes are read again a few times only.
/// They yield no row.
#[test]
fn many_open_quotes_take_bounded_time() {
    let line = "3,MALLOC,\"x\n";
    let text = format!("{HEADER}{}", line.repeat(4 * MAX_ROW_BYTES / line.len()));
    let mut reader = CsvReader::new(text.as_bytes(), Path::new("x.csv")).expect("a dump");
    reader.again_bytes = MAX_ROW_BYTES + 100;
    let mut notes = Notes::default();
    assert_eq!(reader.next_row(0, &mut notes).expect("readable"), None);
    // One line from the rest of the first read, then as much as the longest row, each time.
    assert_eq!((notes.bad_rows, notes.bad_examples.len()), (5, 4));
    assert_eq!(reader.read_bytes(), text.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes are rows or an error, never a panic.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(prop::sample::select(b"\",\n\r013xMALLOCSTX{}:".to_vec()), 0..300)) {
        let text = format!("{HEADER}{}", String::from_utf8_lossy(&bytes));
        let _ = read(&text);
    }

    /// A row split during the search for its end has the same cells as one split line by line.
    #[test]
    fn whole_rows_are_those_of_lines(
        parts in prop::collection::vec(
            prop::sample::select(vec!["\"", "\"", ",", ",", "\n", "\r", "x", "MSTX,", "7,", ",1,2,3,4,N/A,", "\"\n"]),
            0..40,
        ),
        columns in 1..12_usize,
    ) {
        let bytes = parts.concat().into_bytes();
        let mut cells = [Cell::default(); 12];
        if let Some(Parted::Row { len, lines }) = part(&bytes, &mut cells[..columns]) {
            let (mut expected, mut splitter, mut end) = ([Cell::default(); 12], Splitter::default(), 0);
            for line in 1..=lines {
                end += memchr(b'\n', &bytes[end..]).expect("a line") + 1;
                let found = splitter.go_on(trimmed(&bytes[..end]), &mut expected);
                let wanted = if line == lines { Split::Cells(columns) } else { Split::Open };
                prop_assert_eq!(found, wanted);
                // Nor does it end earlier as a mark does.
                prop_assert!(line == lines || bare_mark(trimmed(&bytes[..end])).is_none());
            }
            prop_assert_eq!((len, &cells[..columns]), (end, &expected[..columns]));
        }
    }
}
