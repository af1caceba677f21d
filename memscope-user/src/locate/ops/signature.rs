//! Where the arguments of a C++ function are, by its mangled name and the calling convention of the machine.
//!
//! x86-64 (System V): six integer registers; a structure of two words takes two of them or none; larger trivial ones lie
//! on the stack; a returned object takes the first register. `AArch64`: eight registers, larger structures are passed by
//! reference, a returned object has a register of its own. Objects that are not trivial are passed by reference on both.

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

use crate::os::elf::Machine;

/// Longest mangled name that is read; the longest real one has about 1000 bytes.
const MAX_MANGLED: usize = 4096;

/// What leads to tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tensors {
    /// `const Tensor&`.
    One,
    /// `const std::optional<Tensor>&`.
    Optional,
    /// The same of `c10`, in older versions.
    OwnOptional,
    /// `ArrayRef<Tensor>`.
    Array,
    /// `const IListRef<Tensor>&`.
    ListRef,
    /// `const List<std::optional<Tensor>>&`.
    List,
}

/// Where an argument lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In this integer register and, if it needs two, in the next one.
    Register(u8),
    /// At this word of the stack's arguments.
    Stack(u16),
    /// In a register for floating-point numbers.
    Elsewhere,
}

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Param {
    pub(super) place: Place,
    pub(super) tensors: Option<Tensors>,
}

/// How a type is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// In one integer register.
    One,
    /// In two.
    Two,
    /// In a floating-point register.
    Float,
    /// One word of each kind.
    FloatAndOne,
    /// A trivial structure of this many words, more than two.
    Large(u16),
}

/// The types of a function's parameters as C++ spells them; `None` if the name is malformed, or of another kind.
pub(super) fn parameter_types(mangled: &[u8]) -> Option<Vec<String>> {
    if mangled.len() > MAX_MANGLED {
        return None;
    }
    let options = ParseOptions::default().recursion_limit(128);
    let symbol = Symbol::new_with_options(mangled, &options).ok()?;
    let name = symbol.demangle_with_options(&DemangleOptions::new().recursion_limit(128)).ok()?;
    // Nothing in front of the parameters has parentheses here.
    let (_, list) = name.split_once('(')?;
    split(list.strip_suffix(')')?)
}

/// The parts between commas outside of brackets.
fn split(list: &str) -> Option<Vec<String>> {
    let (mut parts, mut part, mut depth) = (Vec::new(), String::new(), 0_u32);
    for character in list.chars() {
        match character {
            '<' | '(' => depth += 1,
            '>' | ')' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                parts.push(std::mem::take(&mut part).trim().to_owned());
                continue;
            }
            _ => {}
        }
        part.push(character);
    }
    if !part.trim().is_empty() {
        parts.push(part.trim().to_owned());
    }
    Some(parts)
}

/// Places the parameters; `returns_object`: the caller passes an address for the result. The error is an unknown type.
pub(super) fn place(types: &[String], returns_object: bool, machine: Machine) -> Result<Vec<Param>, &str> {
    let mut registers = Registers::new(machine, returns_object);
    types
        .iter()
        .map(|name| {
            let (class, tensors) = class_of(name, machine).ok_or(name.as_str())?;
            Ok(Param { place: registers.place(class), tensors })
        })
        .collect()
}

/// Registers used so far.
struct Registers {
    machine: Machine,
    integers: u8,
    most_integers: u8,
    floats: u8,
    stack: u16,
}

impl Registers {
    const FLOATS: u8 = 8;

    fn new(machine: Machine, returns_object: bool) -> Self {
        let x86 = machine == Machine::X86_64;
        let integers = u8::from(x86 && returns_object);
        Self { machine, integers, most_integers: if x86 { 6 } else { 8 }, floats: 0, stack: 0 }
    }

    fn place(&mut self, class: Class) -> Place {
        match class {
            Class::One => self.integer(1),
            Class::Two => self.integer(2),
            Class::Float if self.floats < Self::FLOATS => {
                self.floats += 1;
                Place::Elsewhere
            }
            Class::Float => self.on_stack(1),
            Class::FloatAndOne if self.floats < Self::FLOATS && self.integers < self.most_integers => {
                self.floats += 1;
                self.integers += 1;
                Place::Elsewhere
            }
            Class::FloatAndOne => self.on_stack(2),
            Class::Large(words) => self.on_stack(words),
        }
    }

    fn integer(&mut self, words: u8) -> Place {
        if self.integers + words <= self.most_integers {
            let first = self.integers;
            self.integers += words;
            return Place::Register(first);
        }
        if self.machine != Machine::X86_64 {
            // Once one goes to the stack, the remaining registers are not used.
            self.integers = self.most_integers;
        }
        self.on_stack(words.into())
    }

    fn on_stack(&mut self, words: u16) -> Place {
        let first = self.stack;
        self.stack = self.stack.saturating_add(words);
        Place::Stack(first)
    }
}

/// The passing of a parameter's type. Types of libtorch 2.1 to 2.14 are known.
fn class_of(name: &str, machine: Machine) -> Option<(Class, Option<Tensors>)> {
    // Until 2.3 libtorch had its own optional with the flag first, so that numbers share no word with it.
    let own_optional = name.starts_with("c10::optional<");
    let name = name.replace("c10::optional<", "std::optional<").replace("> >", ">>");
    let large = |words| if machine == Machine::X86_64 { Class::Large(words) } else { Class::One };
    let tensors = match name.as_str() {
        "at::Tensor const&" | "at::Tensor&" => Tensors::One,
        "std::optional<at::Tensor> const&" if own_optional => Tensors::OwnOptional,
        "std::optional<at::Tensor> const&" => Tensors::Optional,
        "c10::ArrayRef<at::Tensor>" => return Some((Class::Two, Some(Tensors::Array))),
        "c10::IListRef<at::Tensor> const&" => Tensors::ListRef,
        "c10::List<std::optional<at::Tensor>> const&" => Tensors::List,
        "std::optional<double>" if own_optional => return Some((Class::Two, None)),
        other => return plain_class(other, machine, large).map(|class| (class, None)),
    };
    Some((Class::One, Some(tensors)))
}

fn plain_class(name: &str, machine: Machine, large: impl Fn(u16) -> Class) -> Option<Class> {
    if name.ends_with('&') || name.ends_with('*') {
        return Some(Class::One);
    }
    if let Some(inner) = name.strip_prefix("std::optional<").and_then(|rest| rest.strip_suffix('>')) {
        return Some(match inner {
            "double" if machine == Machine::X86_64 => Class::FloatAndOne,
            "long" | "double" => Class::Two,
            // Trivial, and more than two words with the flag.
            _ if inner.starts_with("c10::ArrayRef<") || is_string_view(inner) => large(3),
            _ => small_class(inner)?,
        });
    }
    if name.starts_with("c10::OptionalArrayRef<") {
        return Some(large(3));
    }
    match name {
        "double" | "float" => Some(Class::Float),
        "c10::Stream" => Some(Class::Two),
        _ if name.starts_with("c10::ArrayRef<") || is_string_view(name) => Some(Class::Two),
        _ => small_class(name),
    }
}

fn is_string_view(name: &str) -> bool {
    name.contains("basic_string_view<")
}

/// Values that fit one register with a flag beside it, and objects that are not trivial: passed by reference.
fn small_class(name: &str) -> Option<Class> {
    let known = matches!(
        name,
        "bool"
            | "int"
            | "long"
            | "signed char"
            | "unsigned char"
            | "c10::ScalarType"
            | "c10::Layout"
            | "c10::MemoryFormat"
            | "c10::Device"
            | "c10::DeviceType"
            | "c10::QScheme"
            | "at::Dimname"
            | "c10::SymInt"
            | "c10::Scalar"
            | "c10::Storage"
            | "at::Generator"
    );
    (known || name.starts_with("std::array<bool, ")).then_some(Class::One)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(mangled: &str) -> Vec<String> {
        parameter_types(mangled.as_bytes()).expect(mangled)
    }

    fn places(mangled: &str, returns_object: bool, machine: Machine) -> Vec<(Place, Option<Tensors>)> {
        let types = types(mangled);
        let params = place(&types, returns_object, machine).expect(mangled);
        params.into_iter().map(|param| (param.place, param.tensors)).collect()
    }

    const ADD: &str = "_ZN2at4_ops10add_Tensor4callERKNS_6TensorES4_RKN3c106ScalarE";
    /// `convolution(input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups)`.
    const CONVOLUTION: &str =
        "_ZN2at4_ops11convolution4callERKNS_6TensorES4_RKSt8optionalIS2_EN3c108ArrayRefINS9_6SymIntEEESC_SC_bSC_SB_";

    #[test]
    fn names_have_types() {
        assert_eq!(types(ADD), ["at::Tensor const&", "at::Tensor const&", "c10::Scalar const&"]);
        assert_eq!(
            types("_ZN2at4_ops3cat4callERKN3c108IListRefINS_6TensorEEEl"),
            ["c10::IListRef<at::Tensor> const&", "long"]
        );
        assert_eq!(parameter_types(b"_ZN2at4_ops"), None);
        assert_eq!(parameter_types(b"malloc"), None);
        assert_eq!(parameter_types(&[b'Z'; 5000]), None);
    }

    /// A returned object moves the arguments by one register on x86-64, and by none on `AArch64`.
    #[test]
    fn returned_object_takes_a_register() {
        use Place::Register;
        let one = Some(Tensors::One);
        let x86 = |returns| places(ADD, returns, Machine::X86_64);
        assert_eq!(x86(true), [(Register(1), one), (Register(2), one), (Register(3), None)]);
        assert_eq!(x86(false), [(Register(0), one), (Register(1), one), (Register(2), None)]);
        assert_eq!(places(ADD, true, Machine::Aarch64)[0], (Register(0), one));
    }

    /// Pairs that do not fit go to the stack whole; on x86-64 a later single word takes the remaining register.
    #[test]
    fn pairs_are_not_parted() {
        use Place::{Register, Stack};
        let place =
            |machine| places(CONVOLUTION, true, machine).into_iter().map(|(place, _)| place).collect::<Vec<_>>();
        assert_eq!(
            place(Machine::X86_64),
            [Register(1), Register(2), Register(3), Register(4), Stack(0), Stack(2), Stack(4), Stack(5), Stack(7)]
        );
        assert_eq!(place(Machine::Aarch64)[3..], [Register(3), Register(5), Stack(0), Stack(2), Stack(3), Stack(5)]);
    }

    /// `f(double, optional<double>, optional<ArrayRef<double>>, Tensor const&)`.
    #[test]
    fn floats_and_large_structures() {
        use Place::{Elsewhere, Register, Stack};
        let name = "_ZN2at4_ops1f4callEdSt8optionalIdES2_IN3c108ArrayRefIdEEERKNS_6TensorE";
        let place = |machine| places(name, false, machine).into_iter().map(|(place, _)| place).collect::<Vec<_>>();
        // The second takes rdi beside its floating-point register.
        assert_eq!(place(Machine::X86_64), [Elsewhere, Elsewhere, Stack(0), Register(1)]);
        assert_eq!(place(Machine::Aarch64), [Elsewhere, Register(0), Register(2), Register(3)]);
    }

    #[test]
    fn unknown_type_is_an_error() {
        let types = ["at::Tensor const&".to_owned(), "my::Type".to_owned()];
        assert_eq!(place(&types, false, Machine::X86_64), Err("my::Type"));
    }
}
