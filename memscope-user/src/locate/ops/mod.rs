//! Operators of libtorch: which functions to probe, where their tensors are, and where they end.
//!
//! Every operator has a function `at::_ops::<operator>::call`, through which Python and C++ call it. `signature` has
//! the places of its arguments, `schema` their use, `code` its returns and the layout of tensors.
//!
//! Ends are probed at return instructions: a return probe would end a program with an operator that throws, because the
//! unwinder does not get past the kernel's trampoline. Operators that are made up of others on every device (`linear`
//! calls `addmm`) are not probed: without them, the outermost operator of a thread is the one that a
//! `TorchDispatchMode` sees.

mod code;
mod schema;
mod signature;

use std::collections::{HashMap, HashSet};

use memscope_common::{
    Fetch, ObjectShape, ProbeRow, Source, When,
    row::{RESULT_SLOT, RETURNED_SLOT, STACK_SLOTS},
};

use self::{
    schema::{Alias, Schema},
    signature::{Param, Place, Tensors},
};
use super::site::{self, Function, SiteUse};
use crate::{
    os::elf::{ElfError, ElfFile, Machine, Resolved},
    probes::{
        CallKind, TorchCall,
        ops::{CATCH, MAX_USES, OpInfo, TensorLayout, Use, place_row},
    },
};

/// `at::_ops::`.
const OPS: &[u8] = b"_ZN2at4_ops";
/// `::call(`.
const CALL: &[u8] = b"4callE";
/// `at::compositeimplicitautograd::`: functions of operators that are made up of others.
const COMPOSITES: &[u8] = b"_ZN2at25compositeimplicitautograd";
/// Operators that one library may have; real ones have about 3200.
const MAX_OPS: usize = 16_384;
/// Most functions examined for the layout of tensors.
const LAYOUT_WITNESSES: usize = 64;
/// The device kind of host memory in a tensor.
const DEVICE_CPU: u8 = 0;

/// Which operators are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OpsChoice {
    /// No operators.
    #[default]
    None,
    /// Operators that `torch_npu` submits to the device, by name only.
    Npu,
    /// The same, and all of libtorch.
    All,
    /// These of libtorch: `add.Tensor`, or `add` for all its overloads.
    Named(Vec<String>),
}

impl OpsChoice {
    /// Whether operators of libtorch are among them.
    #[must_use]
    pub const fn torch(&self) -> bool {
        matches!(self, Self::All | Self::Named(_))
    }

    /// Whether those of `torch_npu` are among them.
    #[must_use]
    pub const fn npu(&self) -> bool {
        matches!(self, Self::All | Self::Npu)
    }

    fn takes(&self, schema_name: &str, composite: bool) -> bool {
        let base = schema_name.split('.').next().unwrap_or(schema_name);
        match self {
            Self::None | Self::Npu => false,
            Self::All => !composite,
            Self::Named(names) => names.iter().any(|name| {
                let name = ["torch.ops.", "torch._ops.", "aten::", "aten."]
                    .iter()
                    .fold(name.as_str(), |name, prefix| name.strip_prefix(prefix).unwrap_or(name));
                name.strip_suffix(".default").map_or(name == schema_name || name == base, |name| name == schema_name)
            }),
        }
    }
}

/// Options of tracing operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpsOptions {
    /// Which.
    pub choice: OpsChoice,
    /// Their tensors too.
    pub accesses: bool,
    /// Also tensors in host memory.
    pub cpu: bool,
}

/// A place in an operator's function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpPoint {
    /// Index of its row in [`OpsPlan::rows`].
    pub row: usize,
    /// Index of the operator in [`OpsPlan::ops`].
    pub op: usize,
    /// Offset in the file, in bytes.
    pub file_offset: u64,
}

/// Probes for one library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpsPlan {
    /// The rows, and what their calls mean.
    pub rows: Vec<(ProbeRow, CallKind)>,
    /// The operators.
    pub ops: Vec<OpInfo>,
    /// The places: first the ends, then the beginnings.
    pub points: Vec<OpPoint>,
    /// Offsets in the copied bytes of a tensor; `None` when this library's layout is unknown.
    pub layout: Option<TensorLayout>,
    /// Numbers for messages.
    pub figures: OpsFigures,
}

/// Numbers of operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpsFigures {
    /// Functions of the library.
    pub functions: usize,
    /// Made up of others, and left out.
    pub composites: usize,
    /// Without a schema that fits: left out.
    pub without_schema: usize,
    /// Without an end that can be probed.
    pub without_end: usize,
    /// Operators with tensors that could not all be found.
    pub without_tensors: usize,
    /// Operators with a first instruction that the kernel cannot probe.
    pub refused: usize,
}

/// A function of an operator.
struct OpFunction<'a> {
    symbol: &'a [u8],
    /// `add_Tensor`.
    name: &'a str,
    types: Vec<String>,
}

/// Plans the probes of a libtorch.
pub fn plan(elf: &ElfFile<'_>, options: &OpsOptions, sites: site::Kernel) -> Result<OpsPlan, ElfError> {
    let functions = functions(elf)?;
    let names: Vec<&str> = functions.iter().filter_map(|function| std::str::from_utf8(function.symbol).ok()).collect();
    let mut resolved: HashMap<String, Resolved> = HashMap::new();
    for place in elf.resolve(&names)? {
        resolved.entry(place.name.clone()).or_insert(place);
    }
    let body = |place: &Resolved| {
        let size = usize::try_from(place.size_bytes).ok().filter(|size| *size > 0 && *size <= code::MAX_BODY)?;
        elf.bytes_at(place.vaddr, size).filter(|bytes| bytes.len() == size)
    };
    let place_of = |function: &OpFunction<'_>| resolved.get(std::str::from_utf8(function.symbol).ok()?);
    let with_tensor =
        functions.iter().filter(|function| function.types.first().is_some_and(|first| first == "at::Tensor const&"));
    let witnesses =
        with_tensor.filter_map(|function| place_of(function).and_then(|place| Some((place.vaddr, body(place)?))));
    let witnesses: Vec<_> = witnesses.take(LAYOUT_WITNESSES).collect();
    let layout = options.accesses.then(|| code::tensor_layout(elf, &witnesses));
    let layout = layout.flatten();
    let shape = layout.map(|layout| ObjectShape {
        skip_device: if options.cpu { ObjectShape::SKIP_NONE } else { DEVICE_CPU },
        ..layout.shape
    });

    let wanted: HashSet<&str> = functions.iter().map(|function| function.name).collect();
    let schemas = schema::find(&elf.constants()?, &wanted);
    let composites = composites(elf)?;
    let mut planner = Planner { machine: elf.machine(), shape, plan: OpsPlan::default(), rows: HashMap::new() };
    planner.plan.layout = layout.map(|layout| layout.tensor);
    planner.plan.figures.functions = functions.len();
    let mut starts = Vec::new();
    for function in &functions {
        let texts = schemas.get(function.name).map(Vec::as_slice).unwrap_or_default();
        let fitting = texts.iter().filter_map(|text| Schema::parse(text)).find(|schema| fits(schema, &function.types));
        let Some(schema) = fitting else {
            planner.plan.figures.without_schema += 1;
            continue;
        };
        let composite = is_composite(&composites, schema.name, &function.types);
        if !options.choice.takes(schema.name, composite) {
            planner.plan.figures.composites += usize::from(composite);
            continue;
        }
        let Some(place) = place_of(function) else { continue };
        let Some(site) = entry_site(elf, place, sites) else {
            planner.plan.figures.refused += 1;
            continue;
        };
        let returns = body(place).and_then(|body| code::returns(elf.machine(), body)).unwrap_or_default();
        let start = planner.add(&schema, &function.types, place.file_offset, &returns);
        starts.push(OpPoint { file_offset: place.file_offset + site, ..start });
    }
    planner.plan.points.extend(starts);
    Ok(planner.plan)
}

/// Plans the probe for operators that were left by an exception.
pub fn plan_catch(elf: &ElfFile<'_>, sites: site::Kernel) -> Result<OpsPlan, ElfError> {
    let mut plan = OpsPlan::default();
    for place in elf.resolve(&[CATCH])? {
        if let Some(site) = entry_site(elf, &place, sites) {
            plan.points.push(OpPoint { row: 0, op: 0, file_offset: place.file_offset + site });
        }
    }
    plan.rows.push((place_row(When::ObjectsCatch, &[], 0), CallKind::Torch(TorchCall::Catch)));
    Ok(plan)
}

/// The cheapest place before the stack pointer moves, as an offset from the function's start.
fn entry_site(elf: &ElfFile<'_>, place: &Resolved, sites: site::Kernel) -> Option<u64> {
    let usage = SiteUse { args: 0xff, stack_args: true, ..SiteUse::default() };
    let function = Function::in_file(elf, place)?;
    site::choose(&function, usage, sites).ok().map(|site| site.offset.into())
}

/// All functions `at::_ops::…::call`.
fn functions<'a>(elf: &ElfFile<'a>) -> Result<Vec<OpFunction<'a>>, ElfError> {
    let mut seen = HashSet::new();
    let function = |symbol: &'a [u8]| {
        let (name, rest) = identifier(symbol.strip_prefix(OPS)?)?;
        if !rest.starts_with(CALL) || !seen.insert(symbol) {
            return None;
        }
        Some(OpFunction { symbol, name, types: signature::parameter_types(symbol)? })
    };
    let defined = elf.symbols()?.filter(|symbol| symbol.defined).map(|symbol| symbol.name);
    Ok(defined.filter_map(function).take(MAX_OPS).collect())
}

/// A mangled identifier, `3add`, and the rest.
fn identifier(mangled: &[u8]) -> Option<(&str, &[u8])> {
    let digits = mangled.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (len, rest) = mangled.split_at_checked(digits)?;
    let len = std::str::from_utf8(len).ok()?.parse().ok()?;
    let (name, rest) = rest.split_at_checked(len)?;
    Some((std::str::from_utf8(name).ok()?, rest))
}

/// Names and parameters of the functions that make operators up of others.
fn composites(elf: &ElfFile<'_>) -> Result<HashMap<String, Vec<Vec<String>>>, ElfError> {
    let mut found: HashMap<String, Vec<Vec<String>>> = HashMap::new();
    for symbol in elf.symbols()?.filter(|symbol| symbol.defined) {
        let Some((name, _)) = symbol.name.strip_prefix(COMPOSITES).and_then(identifier) else { continue };
        if found.len() < MAX_OPS
            && let Some(types) = signature::parameter_types(symbol.name)
        {
            found.entry(name.to_owned()).or_default().push(types);
        }
    }
    Ok(found)
}

fn is_composite(composites: &HashMap<String, Vec<Vec<String>>>, schema_name: &str, types: &[String]) -> bool {
    let base = schema_name.split('.').next().unwrap_or(schema_name);
    // Those with `out` parameters have them last in `…_outf`, as in the schema.
    ["", "_symint", "_outf", "_symint_outf"].iter().any(|suffix| {
        composites.get(&format!("{base}{suffix}")).is_some_and(|all| all.iter().any(|one| one.as_slice() == types))
    })
}

/// Whether a schema can be that of a function with these parameters.
fn fits(schema: &Schema<'_>, types: &[String]) -> bool {
    schema.params.len() == types.len()
        && schema.params.iter().zip(types).all(|(param, name)| {
            let expected = match param.kind {
                "Tensor" => &["at::Tensor const&", "at::Tensor&"][..],
                "Tensor?" => &["optional<at::Tensor> const&"],
                "Tensor?[]" => &["c10::List<"],
                kind if kind.starts_with("Tensor") => &["c10::ArrayRef<at::Tensor>", "c10::IListRef<"],
                _ => return !name.contains("at::Tensor"),
            };
            expected.iter().any(|part| name.contains(part))
        })
}

struct Planner {
    machine: Machine,
    shape: Option<ObjectShape>,
    plan: OpsPlan,
    rows: HashMap<(When, Vec<Fetch>), usize>,
}

/// Values that lead to tensors, and what happens to those.
#[derive(Default)]
struct Values {
    fetches: Vec<Fetch>,
    uses: Vec<Use>,
    incomplete: bool,
}

impl Values {
    fn push(&mut self, fetch: Option<Fetch>, usage: Use) {
        match fetch {
            Some(fetch) if self.fetches.len() < MAX_USES => {
                self.fetches.push(fetch);
                self.uses.push(usage);
            }
            _ => self.incomplete = true,
        }
    }
}

impl Planner {
    /// Adds an operator and its ends; gives its start, at the function's first byte.
    fn add(&mut self, schema: &Schema<'_>, types: &[String], file_offset: u64, returns: &[u32]) -> OpPoint {
        let ends = !returns.is_empty();
        let result = Returned::of(schema);
        let (mut enter, mut leave) = (Values::default(), Values::default());
        if self.shape.is_some() {
            let params = signature::place(types, result.is_object(), self.machine).ok();
            match (params, ends) {
                (Some(params), true) => {
                    result.values(schema, self.machine, &mut leave);
                    arguments(schema, &params, &mut enter, true);
                }
                (Some(params), false) => arguments(schema, &params, &mut enter, false),
                (None, _) => enter.incomplete = true,
            }
        }
        let figures = &mut self.plan.figures;
        figures.without_end += usize::from(!ends);
        figures.without_tensors += usize::from(enter.incomplete || leave.incomplete);
        let op = self.plan.ops.len();
        let overload = if schema.name.contains('.') { "" } else { ".default" };
        let name = format!("aten.{}{overload}", schema.name);
        let when = if ends { When::Objects } else { When::ObjectsAlone };
        let start = self.row(when, CallKind::Torch(TorchCall::Enter), &enter.fetches);
        let end = self.row(When::ObjectsEnd, CallKind::Torch(TorchCall::Leave), &leave.fetches);
        self.plan.ops.push(OpInfo { name, enter: enter.uses, leave: leave.uses });
        let point = |at: &u32| OpPoint { row: end, op, file_offset: file_offset + u64::from(*at) };
        self.plan.points.extend(returns.iter().map(point));
        OpPoint { row: start, op, file_offset }
    }

    /// The row that fetches these values.
    fn row(&mut self, when: When, meaning: CallKind, fetches: &[Fetch]) -> usize {
        let rows = &mut self.plan.rows;
        *self.rows.entry((when, fetches.to_vec())).or_insert_with(|| {
            let param = self.shape.map_or(0, ObjectShape::to_param);
            rows.push((place_row(when, fetches, param), meaning));
            rows.len() - 1
        })
    }
}

/// The tensors among the arguments. Changed and returned ones are reported at the end, if that is probed.
fn arguments(schema: &Schema<'_>, params: &[Param], values: &mut Values, ends: bool) {
    for (param, at) in schema.params.iter().zip(params) {
        let Some(tensors) = at.tensors else { continue };
        match &param.alias {
            Alias::View => {}
            Alias::None => values.push(argument(tensors, at.place), Use::Read),
            Alias::Write(set) => {
                let returned = schema.returns.iter().any(|value| value.alias == Alias::Write(set.clone()));
                if !(ends && returned) {
                    values.push(argument(tensors, at.place), Use::Write);
                }
            }
        }
    }
}

fn argument(tensors: Tensors, place: Place) -> Option<Fetch> {
    let arg = match place {
        Place::Register(number) => number,
        Place::Stack(word) => u8::try_from(word).ok()?.checked_add(STACK_SLOTS)?,
        Place::Elsewhere => return None,
    };
    let (source, offset) = match tensors {
        Tensors::One => (Source::Object, 0),
        Tensors::Optional => (Source::OptionalObject, 0),
        Tensors::OwnOptional => (Source::FlaggedObject, 8),
        Tensors::Array => (Source::ObjectPair, 0),
        Tensors::ListRef => (Source::ObjectList, 0),
        Tensors::List => (Source::TaggedObjects, 0),
    };
    Some(Fetch { source: source as u8, arg, offset })
}

/// How a function returns its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Returned {
    /// In a register, or not at all.
    Plain,
    /// A reference to a tensor, in a register.
    Reference,
    /// One object, where the caller wants it.
    Object,
    /// A tuple, in the caller's memory. libstdc++ lays out the last element first; and though a tuple of references is
    /// trivial to copy, it is not trivial to move, so that it is returned in memory, too.
    Tuple,
}

impl Returned {
    fn of(schema: &Schema<'_>) -> Self {
        match schema.returns.as_slice() {
            [one] if one.kind == "Tensor" && matches!(one.alias, Alias::Write(_)) => Self::Reference,
            // Numbers may be symbolic, which is an object.
            [one] if one.is_tensor() || !is_plain(one.kind) => Self::Object,
            [] | [_] => Self::Plain,
            _ => Self::Tuple,
        }
    }

    const fn is_object(self) -> bool {
        matches!(self, Self::Object | Self::Tuple)
    }

    /// The returned tensors.
    fn values(self, schema: &Schema<'_>, machine: Machine, values: &mut Values) {
        let base = match self {
            Self::Plain => return,
            // On x86-64 the address of a returned object is returned, too.
            _ if self == Self::Reference || machine == Machine::X86_64 => RETURNED_SLOT,
            _ => RESULT_SLOT,
        };
        let mut offset = 0;
        for value in schema.returns.iter().rev() {
            let changed = matches!(value.alias, Alias::Write(_));
            // A changed tensor in a tuple is a reference; so is a list of them, but there are none.
            let source = match value.kind {
                "Tensor[]" => Source::ObjectVector,
                _ if changed && self == Self::Tuple => Source::ObjectReference,
                _ => Source::Object,
            };
            if value.is_tensor() && value.alias != Alias::View {
                values.push(Some(Fetch { source: source as u8, arg: base, offset }), Use::Write);
            }
            offset += if source == Source::ObjectVector { 24 } else { 8 };
        }
        // Rows fetch in order of their values: the first element of a tuple comes first.
        values.fetches.reverse();
        values.uses.reverse();
    }
}

/// Whether a returned type has no constructor.
fn is_plain(kind: &str) -> bool {
    matches!(
        kind,
        "bool" | "int" | "float" | "ScalarType" | "Layout" | "Device" | "MemoryFormat" | "QScheme" | "Stream"
    )
}
