//! One Parquet file, written row by row.
//!
//! It is a tool: tables of a run (`report`) and those of the agent (`agent`) have one way to be written.

use std::{fs::File, io, sync::Arc};

use parquet::{
    basic::{Compression, Encoding, Repetition, Type as Physical},
    data_type::{BoolType, ByteArray, ByteArrayType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        metadata::{KeyValue, SortingColumn},
        properties::WriterProperties,
        writer::SerializedFileWriter,
    },
    schema::{parser::parse_message_type, types::ColumnDescPtr},
};

use crate::hash::HashMap;

/// Rows that are held in memory until they are written: about 30 MB of events.
const ROWS_OF_A_GROUP: usize = 1 << 18;

/// Form of a file.
pub(crate) struct Form {
    /// Parquet's own text of a schema.
    pub(crate) schema: &'static str,
    /// Numbers of the columns that rows are in order of, the first one first; nulls last. Empty: rows have no order.
    pub(crate) sorted_by: &'static [i32],
    /// Columns with small differences between neighbours.
    pub(crate) delta: &'static [&'static str],
}

/// A value of a row.
#[derive(Clone, Copy)]
pub(crate) enum Cell<'a> {
    Null,
    Bool(bool),
    /// Unsigned numbers of 64 bits keep their bits.
    Number(i64),
    Text(&'a str),
    Texts(&'a [&'a str]),
}

impl Cell<'_> {
    pub(crate) const fn unsigned(number: u64) -> Self {
        Self::Number(number.cast_signed())
    }

    pub(crate) fn optional(number: Option<u64>) -> Self {
        number.map_or(Self::Null, Self::unsigned)
    }
}

/// A file that grows by rows.
pub(crate) struct Table {
    writer: SerializedFileWriter<File>,
    columns: Vec<Column>,
    rows: usize,
    pub(crate) written: u64,
}

/// Values of the rows that are not written yet.
struct Column {
    values: Values,
    is_optional: bool,
    is_repeated: bool,
    /// Parquet's levels: whether there is a value, and whether it goes on with the list of the row.
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
}

enum Values {
    Bools(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Texts(Vec<ByteArray>, HashMap<Box<str>, ByteArray>),
}

impl Table {
    pub(crate) fn new(file: File, form: &Form, about: &[(String, String)]) -> io::Result<Self> {
        let schema = Arc::new(parse_message_type(form.schema).map_err(failed)?);
        let about = about.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
        let in_order =
            |column_idx: &i32| SortingColumn { column_idx: *column_idx, descending: false, nulls_first: false };
        let sorted: Vec<SortingColumn> = form.sorted_by.iter().map(in_order).collect();
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::LZ4_RAW)
            .set_created_by(concat!("memscope-bpf ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(about))
            .set_sorting_columns((!sorted.is_empty()).then_some(sorted));
        for name in form.delta {
            let column = (*name).into();
            properties = properties.set_column_dictionary_enabled(column, false);
            properties = properties.set_column_encoding((*name).into(), Encoding::DELTA_BINARY_PACKED);
        }
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build())).map_err(failed)?;
        let columns = writer.schema_descr().columns().iter().map(Column::of).collect();
        Ok(Self { writer, columns, rows: 0, written: 0 })
    }

    /// Adds a row, with a cell for each column of the schema.
    pub(crate) fn row<'a>(&mut self, cells: impl IntoIterator<Item = Cell<'a>>) -> io::Result<()> {
        let mut cells = cells.into_iter();
        for column in &mut self.columns {
            let cell = cells.next();
            debug_assert!(cell.is_some(), "a cell for each column");
            if let Some(cell) = cell {
                column.push(cell);
            }
        }
        debug_assert!(cells.next().is_none(), "a column for each cell");
        self.rows += 1;
        self.written += 1;
        if self.rows >= ROWS_OF_A_GROUP { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.rows = 0;
        let mut group = self.writer.next_row_group().map_err(failed)?;
        for column in &mut self.columns {
            let definitions = (column.is_optional || column.is_repeated).then_some(&*column.definitions);
            let repetitions = column.is_repeated.then_some(&*column.repetitions);
            let mut out = group.next_column().map_err(failed)?.ok_or_else(|| io::Error::other("a column less"))?;
            match &mut column.values {
                Values::Bools(values) => out.typed::<BoolType>().write_batch(values, definitions, repetitions),
                Values::Int32(values) => out.typed::<Int32Type>().write_batch(values, definitions, repetitions),
                Values::Int64(values) => out.typed::<Int64Type>().write_batch(values, definitions, repetitions),
                Values::Texts(values, _) => out.typed::<ByteArrayType>().write_batch(values, definitions, repetitions),
            }
            .map_err(failed)?;
            out.close().map_err(failed)?;
            column.clear();
        }
        group.close().map(drop).map_err(failed)
    }

    /// Keeps a figure in the file, beside what it is about.
    pub(crate) fn note(&mut self, key: &str, figure: u64) {
        self.writer.append_key_value_metadata(KeyValue::new(key.to_owned(), figure.to_string()));
    }

    /// Writes the rest and the footer.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        if self.rows > 0 {
            self.flush()?;
        }
        self.writer.close().map_err(failed)?;
        Ok(self.written)
    }
}

impl Column {
    fn of(descriptor: &ColumnDescPtr) -> Self {
        let values = match descriptor.physical_type() {
            Physical::BOOLEAN => Values::Bools(Vec::new()),
            Physical::INT32 => Values::Int32(Vec::new()),
            Physical::INT64 => Values::Int64(Vec::new()),
            _ => Values::Texts(Vec::new(), HashMap::default()),
        };
        let is_repeated = descriptor.max_rep_level() > 0;
        let is_optional = descriptor.self_type().get_basic_info().repetition() == Repetition::OPTIONAL;
        Self { values, is_optional, is_repeated, definitions: Vec::new(), repetitions: Vec::new() }
    }

    fn push(&mut self, cell: Cell<'_>) {
        if let Cell::Texts(texts) = cell {
            // An empty list has one level, and no value.
            self.repetitions.extend((0..texts.len().max(1)).map(|at| i16::from(at > 0)));
            self.definitions.extend(std::iter::repeat_n(i16::from(!texts.is_empty()), texts.len().max(1)));
            for text in texts {
                self.values.text(text);
            }
            return;
        }
        self.definitions.push(i16::from(!matches!(cell, Cell::Null)));
        match (cell, &mut self.values) {
            (Cell::Text(text), values) => values.text(text),
            (Cell::Bool(value), Values::Bools(values)) => values.push(value),
            (Cell::Number(number), Values::Int32(values)) => values.push(number as i32),
            (Cell::Number(number), Values::Int64(values)) => values.push(number),
            _ => {}
        }
    }

    fn clear(&mut self) {
        self.definitions.clear();
        self.repetitions.clear();
        match &mut self.values {
            Values::Bools(values) => values.clear(),
            Values::Int32(values) => values.clear(),
            Values::Int64(values) => values.clear(),
            Values::Texts(values, known) => {
                values.clear();
                known.clear();
            }
        }
    }
}

impl Values {
    fn text(&mut self, text: &str) {
        if let Self::Texts(values, known) = self {
            if let Some(known) = known.get(text) {
                values.push(known.clone());
                return;
            }
            let new = ByteArray::from(text);
            known.insert(text.into(), new.clone());
            values.push(new);
        }
    }
}

fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}
