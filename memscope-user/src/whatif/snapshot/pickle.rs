//! Python pickles of plain data: numbers, texts, lists, tuples and dictionaries.
//!
//! Nothing is executed: operations that name, build or call anything are refused, and so are unknown ones. Values lie
//! in tables and refer to each other by number, so that neither shared values nor deep nesting cost anything; texts
//! stay in the file.

use std::fmt;

use crate::hash::HashMap;

/// Most values: about 1 GiB of memory.
const MAX_VALUES: usize = 1 << 26;

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Start and length in the file.
    Text(usize, usize),
    /// A list, a tuple or a set, by number.
    List(u32),
    Dict(u32),
}

/// Why a pickle is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPickle {
    /// Byte of the file.
    pub at: usize,
    what: &'static str,
}

impl fmt::Display for BadPickle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a memory snapshot of PyTorch: {} at byte {} of the pickle", self.what, self.at)
    }
}

impl std::error::Error for BadPickle {}

/// The values read.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    bytes: &'a [u8],
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    pub(super) root: Value,
}

impl Pickle<'_> {
    pub(super) fn list(&self, value: Value) -> Option<&[Value]> {
        if let Value::List(number) = value { self.lists.get(number as usize).map(Vec::as_slice) } else { None }
    }

    /// Value of a text key.
    pub(super) fn get(&self, value: Value, key: &str) -> Option<Value> {
        let Value::Dict(number) = value else { return None };
        let entries = self.dicts.get(number as usize)?;
        entries.iter().rev().find(|(known, _)| self.text(*known) == Some(key)).map(|(_, value)| *value)
    }

    pub(super) fn text(&self, value: Value) -> Option<&str> {
        let Value::Text(start, length) = value else { return None };
        std::str::from_utf8(self.bytes.get(start..start + length)?).ok()
    }
}

/// A number that is not negative.
pub(super) const fn number(value: Value) -> Option<u64> {
    match value {
        Value::Int(number) if number >= 0 => Some(number as u64),
        _ => None,
    }
}

/// Reads a pickle.
pub(super) fn read(bytes: &[u8]) -> Result<Pickle<'_>, BadPickle> {
    let mut machine = Machine {
        bytes,
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::default(),
        memoized: 0,
        lists: Vec::new(),
        dicts: Vec::new(),
        values: 0,
    };
    loop {
        if let Some(root) = machine.step()? {
            let Machine { lists, dicts, .. } = machine;
            return Ok(Pickle { bytes, lists, dicts, root });
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    memoized: u32,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    values: usize,
}

impl Machine<'_> {
    const fn bad<T>(&self, what: &'static str) -> Result<T, BadPickle> {
        Err(BadPickle { at: self.at, what })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], BadPickle> {
        let Some(taken) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>()) else {
            return self.bad("the file ends");
        };
        self.at += N;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, BadPickle> {
        Ok(self.take::<1>()?[0])
    }

    fn word(&mut self) -> Result<u32, BadPickle> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn push(&mut self, value: Value) -> Result<(), BadPickle> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return self.bad("more values than are read");
        }
        self.stack.push(value);
        Ok(())
    }

    /// The value on top, above the last mark.
    fn pop(&mut self) -> Result<Value, BadPickle> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return self.bad("a value is missing");
        }
        self.stack.pop().map_or_else(|| self.bad("a value is missing"), Ok)
    }

    /// Values above the last mark, which goes.
    fn marked(&mut self) -> Result<Vec<Value>, BadPickle> {
        let Some(mark) = self.marks.pop() else { return self.bad("a mark is missing") };
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    /// The last `count` values.
    fn last(&mut self, count: usize) -> Result<Vec<Value>, BadPickle> {
        let mut taken = Vec::with_capacity(count);
        for _ in 0..count {
            taken.push(self.pop()?);
        }
        taken.reverse();
        Ok(taken)
    }

    fn new_list(&mut self, values: Vec<Value>) -> Result<(), BadPickle> {
        self.lists.push(values);
        self.push(Value::List((self.lists.len() - 1) as u32))
    }

    fn new_dict(&mut self) -> Result<(), BadPickle> {
        self.dicts.push(Vec::new());
        self.push(Value::Dict((self.dicts.len() - 1) as u32))
    }

    fn text(&mut self, length: usize) -> Result<(), BadPickle> {
        if self.bytes.len() - self.at < length {
            return self.bad("the file ends in a text");
        }
        let start = self.at;
        self.at += length;
        self.push(Value::Text(start, length))
    }

    /// A whole number of any length; larger ones than 64 bits are refused.
    fn long(&mut self) -> Result<(), BadPickle> {
        let length = usize::from(self.byte()?);
        let Some(bytes) = self.bytes.get(self.at..self.at + length) else { return self.bad("the file ends") };
        let fill = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
        let mut wide = [fill; 8];
        // A number without sign of 64 bits has a ninth byte.
        let (low, high) = bytes.split_at(length.min(8));
        wide[..low.len()].copy_from_slice(low);
        if high.iter().any(|byte| *byte != fill) {
            return self.bad("a number of more than 64 bits");
        }
        self.at += length;
        self.push(Value::Int(i64::from_le_bytes(wide)))
    }

    fn append(&mut self, values: Vec<Value>) -> Result<(), BadPickle> {
        self.values += values.len();
        match self.stack.last() {
            Some(Value::List(number)) if self.values <= MAX_VALUES => {
                self.lists[*number as usize].extend(values);
                Ok(())
            }
            _ => self.bad("no list to add to"),
        }
    }

    fn set(&mut self, values: &[Value]) -> Result<(), BadPickle> {
        self.values += values.len();
        match self.stack.last() {
            Some(Value::Dict(number)) if self.values <= MAX_VALUES && values.len().is_multiple_of(2) => {
                let pairs = values.as_chunks::<2>().0.iter().map(|pair| (pair[0], pair[1]));
                self.dicts[*number as usize].extend(pairs);
                Ok(())
            }
            _ => self.bad("no dictionary to add to"),
        }
    }

    fn memoize(&mut self, index: u32) -> Result<(), BadPickle> {
        let Some(top) = self.stack.last() else { return self.bad("a value is missing") };
        self.memo.insert(index, *top);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<(), BadPickle> {
        match self.memo.get(&index).copied() {
            Some(value) => self.push(value),
            None => self.bad("a reference to nothing"),
        }
    }

    /// One operation; the value at the end.
    fn step(&mut self) -> Result<Option<Value>, BadPickle> {
        let code = self.byte()?;
        match code {
            0x80 if self.byte()? <= 5 => {}
            // A frame has the length of the rest.
            0x95 => drop(self.take::<8>()?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.marked()?),
            b'.' => return self.pop().map(Some),
            b'N' | 0x88 | 0x89 | b'K' | b'M' | b'J' | b'G' | 0x8a => self.scalar(code)?,
            0x8c | b'X' | 0x8d | b'C' | b'B' | b'U' | b'T' => self.any_text(code)?,
            b']' | b'}' | b')' | 0x8f | b't' | b'l' | b'd' | 0x85..=0x87 => self.container(code)?,
            b'a' => {
                let value = self.pop()?;
                self.append(vec![value])?;
            }
            b'e' | 0x90 => {
                let values = self.marked()?;
                self.append(values)?;
            }
            b's' => {
                let values = self.last(2)?;
                self.set(&values)?;
            }
            b'u' => {
                let values = self.marked()?;
                self.set(&values)?;
            }
            0x94 => {
                self.memoize(self.memoized)?;
                self.memoized = self.memoized.saturating_add(1);
            }
            b'q' | b'r' => {
                let index = if code == b'q' { self.byte()?.into() } else { self.word()? };
                self.memoize(index)?;
                self.memoized = self.memoized.max(index.saturating_add(1));
            }
            b'h' | b'j' => {
                let index = if code == b'h' { self.byte()?.into() } else { self.word()? };
                self.recall(index)?;
            }
            _ => return self.bad("an operation that plain data does not have"),
        }
        Ok(None)
    }

    fn scalar(&mut self, code: u8) -> Result<(), BadPickle> {
        let value = match code {
            b'N' => Value::None,
            0x88 | 0x89 => Value::Bool(code == 0x88),
            b'K' => Value::Int(self.byte()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(self.take()?).into()),
            b'J' => Value::Int(i32::from_le_bytes(self.take()?).into()),
            b'G' => Value::Float(f64::from_be_bytes(self.take()?)),
            _ => return self.long(),
        };
        self.push(value)
    }

    fn any_text(&mut self, code: u8) -> Result<(), BadPickle> {
        let length = match code {
            0x8c | b'C' | b'U' => self.byte()?.into(),
            b'X' | b'B' | b'T' => self.word()? as usize,
            _ => usize::try_from(u64::from_le_bytes(self.take()?)).unwrap_or(usize::MAX),
        };
        self.text(length)
    }

    fn container(&mut self, code: u8) -> Result<(), BadPickle> {
        let values = match code {
            b'}' => return self.new_dict(),
            b'd' => {
                let values = self.marked()?;
                self.new_dict()?;
                return self.set(&values);
            }
            b't' | b'l' => self.marked()?,
            0x85..=0x87 => self.last(usize::from(code - 0x84))?,
            _ => Vec::new(),
        };
        self.new_list(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pickle.dumps({"a": [1, -2, 300, 70000, 2**40, "x"], "b": (None, True, 1.5), "c": {}, "d": "x"}, 4)`, as Python writes it.
    const PLAIN: &[u8] = b"\x80\x04\x95\x45\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\
        \x8a\x06\x00\x00\x00\x00\x00\x01\x8c\x01x\x94e\x8c\x01b\x94N\x88G?\xf8\x00\x00\x00\x00\x00\x00\x87\x94\x8c\x01c\x94}\x94\x8c\x01d\x94h\x03u.";

    #[test]
    fn plain_data_is_read() {
        let pickle = read(PLAIN).expect("a pickle");
        let list = pickle.list(pickle.get(pickle.root, "a").expect("a")).expect("a list");
        let numbers: Vec<Value> = [1, -2, 300, 70_000, 1 << 40].map(Value::Int).into();
        assert_eq!(list[..5], numbers);
        assert_eq!(pickle.text(list[5]), Some("x"));
        let tuple = pickle.list(pickle.get(pickle.root, "b").expect("b")).expect("a tuple");
        assert_eq!(tuple, [Value::None, Value::Bool(true), Value::Float(1.5)]);
        assert!(matches!(pickle.get(pickle.root, "c"), Some(Value::Dict(_))));
        assert_eq!(pickle.get(pickle.root, "d").and_then(|value| pickle.text(value)), Some("x"));
        assert_eq!(pickle.get(pickle.root, "e"), None);
    }

    /// An operation that names or calls anything is refused: `os.system("…")` in protocols 0 and 4, and an object.
    #[test]
    fn nothing_is_executed() {
        let calls: [&[u8]; 4] = [
            b"cos\nsystem\n(S'true'\ntR.",
            b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
            b"\x80\x02)\x81.",
            b"\x80\x02P1\n.",
        ];
        for bytes in calls {
            let bad = read(bytes).expect_err("refused");
            assert!(bad.to_string().contains("plain data does not have"), "{bad}");
        }
    }

    /// No prefix and no changed byte makes it panic.
    #[test]
    fn damaged_pickles_are_refused_or_read() {
        for length in 0..PLAIN.len() {
            assert!(read(&PLAIN[..length]).is_err(), "{length}");
        }
        for at in 0..PLAIN.len() {
            for byte in 0..=255 {
                let mut bytes = PLAIN.to_vec();
                bytes[at] = byte;
                drop(read(&bytes));
            }
        }
    }

    /// A million nested lists, and a list that holds itself.
    #[test]
    fn nesting_costs_nothing() {
        let mut bytes = b"\x80\x04".to_vec();
        bytes.extend(std::iter::repeat_n(b']', 1_000_000));
        bytes.extend(std::iter::repeat_n(b'a', 999_999));
        bytes.push(b'.');
        assert!(read(&bytes).is_ok());
        let pickle = read(b"\x80\x04]\x94h\x00a.").expect("a pickle");
        assert_eq!(pickle.list(pickle.root), Some(&[pickle.root][..]));
    }
}
