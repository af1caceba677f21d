//! Marks of `torch_npu`'s sanitizer about the memory that an operator uses: `sanitizer-op:
//! name=NAME;read=ALIAS:ADDR:SIZE,…;write=…` (contract §11). Texts are the program's: any other form is an ordinary
//! mark.

use crate::backend::{OpUses, Use};
use crate::model::AccessKind;

const PREFIX: &str = "sanitizer-op:";

/// Reads a mark's text. The last, torn part of a cut text is ignored.
pub(super) fn parse(text: &str) -> Option<OpUses<'_>> {
    let (mut name, mut uses) = (None, Vec::new());
    for part in text.strip_prefix(PREFIX)?.trim_start().split(';') {
        let Some((key, value)) = part.split_once('=') else { continue };
        match key.trim() {
            "name" => name = Some(value).filter(|name| !name.is_empty()),
            "read" => uses.extend(value.split(',').filter_map(|text| of_text(AccessKind::Read, text))),
            "write" => uses.extend(value.split(',').filter_map(|text| of_text(AccessKind::Write, text))),
            _ => {}
        }
    }
    Some(OpUses { name: name?, uses })
}

/// `ALIAS:ADDR:SIZE`; the alias is a name among the operator's arguments, unrelated to memory.
fn of_text(kind: AccessKind, text: &str) -> Option<Use> {
    let (rest, size) = text.rsplit_once(':')?;
    let (_, addr) = rest.rsplit_once(':')?;
    Some(Use { kind, addr: number(addr)?, size_bytes: number(size)? }).filter(|memory| memory.addr != 0)
}

/// Decimal, or with `0x`.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None if text.starts_with('+') => None,
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(kind: AccessKind, addr: u64, size_bytes: u64) -> Use {
        Use { kind, addr, size_bytes }
    }

    #[test]
    fn operators_are_read() {
        let text = "sanitizer-op: name=aten::add.Tensor;read=self:0x1000:16,other:8192:4;write=out:0x3000:16";
        let uses = vec![
            memory(AccessKind::Read, 0x1000, 16),
            memory(AccessKind::Read, 8192, 4),
            memory(AccessKind::Write, 0x3000, 16),
        ];
        assert_eq!(parse(text), Some(OpUses { name: "aten::add.Tensor", uses }));
        let alone = OpUses { name: "empty", uses: Vec::new() };
        assert_eq!(parse("sanitizer-op:name=empty;read=;write="), Some(alone));
    }

    /// Values that make no sense are ignored.
    #[test]
    fn what_makes_no_sense_is_left_out() {
        let uses = |text| parse(text).map(|op| op.uses);
        assert_eq!(uses("sanitizer-op: read=a:1:2"), None, "without a name");
        assert_eq!(uses("sanitizer-op: name=;read=a:1:2"), None);
        assert_eq!(uses("another mark"), None);
        let text =
            "sanitizer-op: name=x;what=ever;read=a:0:4,b:-1:4,c:+7:4,d:0x+7:4,e:99999999999999999999:1,f:5,g:16:8";
        assert_eq!(uses(text), Some(vec![memory(AccessKind::Read, 16, 8)]));
        // Cut behind 1016 bytes.
        assert_eq!(uses("sanitizer-op: name=x;write=a:16:8,b:32:…"), Some(vec![memory(AccessKind::Write, 16, 8)]));
    }
}
