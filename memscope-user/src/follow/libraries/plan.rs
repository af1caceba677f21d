//! Chooses the instructions of a file that get probes, and their rows.

use std::{fs::File, path::Path};

use memscope_common::{
    ProbeRow, When,
    row::{REGISTER_ARGS, ROW_BOUNDARY, ROW_TEXT},
};

use super::{
    Libraries, Library, LibraryOps, Placed,
    names::{is_loader, matches},
};
use crate::{
    error_chain,
    kernel::{Kernel, KernelError, Point, PointKind, same_file::Likeness, semaphore::Place},
    locate::{
        hidden::{self, CallSite, Evidence, Located, NotLocated},
        mstx_copies,
        ops::{self, OpsPlan},
        site::{self, Function, Site, SiteUse},
        thunks,
    },
    os::elf::{ElfFile, Resolved},
    probes::Locator,
    probes::{Layer, ProbeSpec},
};

/// Called by every glibc and musl loader when the list of libraries changes.
const LOADER_HOOK: &str = "_dl_debug_state";
/// Holds `r_state` at [`R_STATE`] (`struct r_debug` of `link.h`).
const LOADER_STATE: &str = "_r_debug";
const R_STATE: u64 = 24;

/// Plans the probes without a kernel: for `doctor` and for [`Libraries::attach`].
pub(super) struct Plan {
    pub(super) library: Library,
    pub(super) points: Vec<Point>,
    pub(super) ops: OpsPlan,
    pub(super) presence: Option<Place>,
    pub(super) likeness: Option<Likeness>,
    pub(super) file: Option<File>,
}

impl Plan {
    pub(super) fn new(path: &Path) -> Self {
        let (library, ops) = (Library::at(path), OpsPlan::default());
        Self { library, points: Vec::new(), ops, presence: None, likeness: None, file: None }
    }
}

impl Libraries {
    pub(super) fn plan_elf(
        &mut self,
        kernel: Option<&mut Kernel>,
        elf: &ElfFile<'_>,
        plan: &mut Plan,
    ) -> Result<(), KernelError> {
        let name = plan.library.path.file_name().and_then(|name| name.to_str()).unwrap_or("").to_owned();
        if is_loader(&name) {
            return self.plan_loader(kernel, elf, plan);
        }
        if self.has_ops(&name) {
            self.plan_ops(elf, plan);
        } else if self.has_catch(&name)
            && let Ok(found) = ops::plan_catch(elf, self.sites)
        {
            plan.ops = found;
        }
        let with_hidden = kernel.is_none();
        self.plan_copy(elf, &name, plan);
        // A copy of mstx with names needs no stand-in.
        let has_copy = !plan.library.placed.is_empty();
        let placeable =
            |spec: &ProbeSpec| self.takes(spec) && matches(spec, &name) && !(has_copy && spec.is_stand_in());
        let wanted: Vec<_> = self.rows.iter().filter(|(_, spec)| placeable(spec)).copied().collect();
        self.plan_rows(elf, &wanted, plan);
        let seen =
            |placed: &Placed| self.rows.iter().any(|(row, spec)| *row == placed.row && spec.layer == Layer::Mstx);
        let is_marker =
            |placed: &Placed| self.rows.iter().any(|(row, spec)| *row == placed.row && spec.layer == Layer::Script);
        if plan.library.placed.iter().any(is_marker) {
            plan.presence = Place::of(elf);
        }
        if with_hidden {
            plan.library.bypassed = bypassed(elf, &plan.library.placed);
        }
        plan.library.hidden_copy = with_hidden && !plan.library.placed.iter().any(seen) && mstx_copies::is_in(elf);
        Ok(())
    }

    /// Finds the functions of these rows.
    pub(super) fn plan_rows(&self, elf: &ElfFile<'_>, wanted: &[(u16, &'static ProbeSpec)], plan: &mut Plan) {
        let exported = wanted.iter().filter(|(_, spec)| spec.locator.is_none());
        let symbols: Vec<&str> = exported.flat_map(|(_, spec)| [Some(spec.symbol), spec.requires]).flatten().collect();
        let resolved = match elf.resolve(&symbols) {
            Ok(resolved) => resolved,
            Err(error) => {
                plan.library.error = Some(error_chain(&error));
                return;
            }
        };
        let defines = |symbol: &str| resolved.iter().any(|place| place.name == symbol);
        let library = hidden::Library::new(elf, self.cache.as_ref());
        for &(row, spec) in wanted {
            if spec.requires.is_some_and(|symbol| !defines(symbol)) {
                continue;
            }
            if let Some(locator) = spec.locator {
                match library.locate(locator, spec.symbol) {
                    Ok(Some(found)) => match found.call {
                        None => self.plan_point(elf, &found.function, row, &spec.row(), Some(found.evidence), plan),
                        Some(call) => self.plan_call(elf, &found, call, row, plan),
                    },
                    // Another row is for it.
                    Ok(None) => {}
                    // Builds without it lack nothing else.
                    Err(NotLocated::NoGraphs) => plan.library.absent.push(spec.symbol),
                    Err(_) if matches!(locator, Locator::PtaMethod { .. }) => plan.library.absent.push(spec.symbol),
                    Err(error) => {
                        let reason = (spec.symbol, error_chain(&error));
                        if !plan.library.not_located.contains(&reason) {
                            plan.library.not_located.push(reason);
                        }
                    }
                }
                continue;
            }
            let mut places = resolved.iter().filter(|place| place.name == spec.symbol).peekable();
            if places.peek().is_none() {
                plan.library.absent.push(spec.symbol);
            }
            for place in places {
                self.plan_point(elf, place, row, &spec.row(), None, plan);
            }
        }
    }

    /// Functions of mstx that are the file's own. The library of that name has only exported ones.
    fn plan_copy(&self, elf: &ElfFile<'_>, name: &str, plan: &mut Plan) {
        let rows: Vec<_> = self.rows.iter().filter(|(_, spec)| mstx_copies::serves(spec)).collect();
        if self.mstx_tool || rows.iter().any(|(_, spec)| matches(spec, name)) {
            return;
        }
        let names: Vec<&str> = rows.iter().map(|(_, spec)| spec.symbol).collect();
        // A file with unreadable symbols has none that could be probed.
        for place in elf.resolve_local(&names).unwrap_or_default() {
            if let Some((row, spec)) = rows.iter().find(|(_, spec)| spec.symbol == place.name) {
                self.plan_point(elf, &place, *row, &spec.row(), None, plan);
            }
        }
    }

    fn plan_ops(&self, elf: &ElfFile<'_>, plan: &mut Plan) {
        match ops::plan(elf, &self.ops, self.sites) {
            Ok(found) => {
                plan.library.ops = Some(LibraryOps {
                    probed: found.ops.len(),
                    probes: found.points.len(),
                    with_tensors: found.layout.is_some(),
                    figures: found.figures,
                });
                plan.ops = found;
            }
            Err(error) => plan.library.error = Some(error_chain(&error)),
        }
    }

    fn plan_point(
        &self,
        elf: &ElfFile<'_>,
        place: &Resolved,
        row: u16,
        needs: &ProbeRow,
        evidence: Option<Evidence>,
        plan: &mut Plan,
    ) {
        let Some(function) = Function::in_file(elf, place) else {
            plan.library.error = Some(format!("`{}` lies outside of the file", place.name));
            return;
        };
        let with_return = needs.has_return();
        let (site, own_returns) = match self.choose(&function, needs) {
            Ok(chosen) => chosen,
            Err(why) => {
                plan.library.error = Some(format!("`{}`{why}", place.name));
                return;
            }
        };
        let file_offset = place.file_offset + u64::from(site.offset);
        let with_text = needs.flags & ROW_TEXT != 0;
        let kind = match with_text && !needs.waits_for_return() {
            _ if needs.has_array() => PointKind::Array,
            true => PointKind::Text,
            false => PointKind::Entry,
        };
        let entry = Point { row, file_offset, with_return, with_text, kind, places: site.places };
        let own = own_returns.iter().map(|offset| Point {
            file_offset: place.file_offset + u64::from(*offset),
            with_text: false,
            kind: PointKind::OwnReturn,
            places: None,
            ..entry
        });
        plan.points.extend(own.chain([entry]));
        let own_returns = own_returns.len();
        plan.library.placed.push(Placed {
            row,
            symbol: place.name.clone(),
            file_offset,
            site,
            with_return,
            located: evidence.map(|evidence| (place.vaddr, evidence)),
            own_returns,
            return_cost: site::return_cost(elf.machine()),
        });
    }

    /// The site of a function, and its own returns; or why it cannot be probed.
    fn choose(&self, function: &Function<'_>, needs: &ProbeRow) -> Result<(Site, Vec<u32>), String> {
        // Entry and own return are matched by the stack pointer, which must not have moved.
        let needs_return = needs.has_return() || needs.has_own_return();
        let usage = SiteUse {
            args: used_args(needs),
            needs_return,
            stack_args: false,
            follows: self.has_cookies && !self.watches && follows(needs),
        };
        let own_returns =
            if needs.has_own_return() { site::ends(function, needs.reads_result()) } else { Some(Vec::new()) };
        let site = site::choose(function, usage, self.sites).map_err(|error| format!(": {error}"))?;
        let none = " has no return instructions that could be probed: it is not traced";
        Ok((site, own_returns.ok_or(none)?))
    }

    /// Probes a call inside of a function, from before it to behind it.
    fn plan_call(&self, elf: &ElfFile<'_>, found: &Located, call: CallSite, row: u16, plan: &mut Plan) {
        let name = &found.function.name;
        let site = |(start, end): (u64, u64)| {
            let size_bytes = end.saturating_sub(start);
            let bytes = elf.bytes_at(start, size_bytes as usize).unwrap_or_default();
            let instruction = Function::new(elf.machine(), start, bytes, size_bytes);
            let site = site::choose(&instruction, SiteUse::default(), self.sites).map_err(|error| error.to_string())?;
            let file_offset = elf.file_offset(start).ok_or("it lies outside of the file")?;
            Ok::<_, String>((site, file_offset))
        };
        let (before, after) = match (site(call.before()), site(call.after())) {
            (Ok(before), Ok((behind, after))) => (before, (behind.cost, after)),
            (Err(error), _) | (_, Err(error)) => {
                plan.library.error = Some(format!("`{name}`: {error}"));
                return;
            }
        };
        let (mut site, file_offset) = before;
        let (return_cost, after) = after;
        site.offset = call.before().0.saturating_sub(found.function.vaddr) as u32;
        // The text is not available yet at the first of the two.
        let point =
            |file_offset, kind| Point { row, file_offset, with_return: false, with_text: false, kind, places: None };
        plan.points.extend([point(after, PointKind::OwnReturn), point(file_offset, PointKind::Entry)]);
        plan.library.placed.push(Placed {
            row,
            symbol: name.clone(),
            file_offset,
            site,
            with_return: false,
            located: Some((found.function.vaddr, found.evidence)),
            own_returns: 1,
            return_cost,
        });
    }

    /// The loader's row carries the distance to its state, so there is one row per distance.
    fn plan_loader(
        &mut self,
        kernel: Option<&mut Kernel>,
        elf: &ElfFile<'_>,
        plan: &mut Plan,
    ) -> Result<(), KernelError> {
        let Ok(found) = elf.resolve(&[LOADER_HOOK]) else { return Ok(()) };
        let Some(hook) = found.first() else {
            plan.library.absent.push(LOADER_HOOK);
            return Ok(());
        };
        let template = ProbeRow { when: When::Library as u8, ..ProbeRow::default() };
        self.plan_point(elf, hook, 0, &template, None, plan);
        let Some(offset) = plan.library.placed.first().map(|placed| placed.site.offset) else { return Ok(()) };
        let state = elf.symbols().ok().and_then(|mut all| {
            all.find(|symbol| symbol.defined && symbol.name == LOADER_STATE.as_bytes()).map(|symbol| symbol.vaddr)
        });
        let site = hook.vaddr + u64::from(offset);
        let param = state.map_or(0, |state| state.wrapping_add(R_STATE).wrapping_sub(site) as i64);
        let row = match (self.loader_rows.get(&param), kernel) {
            (Some(row), _) => *row,
            (None, Some(kernel)) => match kernel.add_row(&ProbeRow { param, ..template }) {
                Ok(row) => {
                    self.loader_rows.insert(param, row);
                    row
                }
                // Only later mappings of this loader go unnoticed.
                Err(error @ KernelError::RowsFull { .. }) => {
                    let why = error_chain(&error);
                    plan.library.error = Some(format!("libraries that it loads later are not noticed: {why}"));
                    plan.points.clear();
                    plan.library.placed.clear();
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
            (None, None) => 0,
        };
        plan.points.iter_mut().for_each(|point| (point.row, point.kind) = (row, PointKind::Loader));
        plan.library.placed.iter_mut().for_each(|placed| placed.row = row);
        Ok(())
    }
}

/// Probed functions with thunks that hold a copy of them.
fn bypassed(elf: &ElfFile<'_>, placed: &[Placed]) -> Vec<(String, String)> {
    let of = |placed: &Placed| {
        let function = placed.file_offset.wrapping_sub(placed.site.offset.into());
        let copies = thunks::copies(elf, &placed.symbol, function).into_iter();
        copies.map(|thunk| (placed.symbol.clone(), thunk)).collect::<Vec<_>>()
    };
    placed.iter().filter(|placed| placed.located.is_none()).flat_map(of).collect()
}

/// Whether a probe of the row may be at a site with moved arguments: a return probe is at the entry's site, the
/// loader's row and arrays have other programs, and block watch wants the caller.
fn follows(row: &ProbeRow) -> bool {
    !row.has_return() && !row.has_array() && row.when != When::Library as u8 && row.flags & ROW_BOUNDARY == 0
}

/// Argument registers that the row reads.
fn used_args(row: &ProbeRow) -> u8 {
    let mut used = 0;
    for fetch in &row.fetch[..usize::from(row.values)] {
        if fetch.source != 0 && usize::from(fetch.arg) < REGISTER_ARGS {
            used |= 1 << fetch.arg;
        }
    }
    if row.flags & ROW_TEXT != 0 {
        used |= 1 << row.text_arg;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend;

    #[test]
    fn used_arguments_are_those_of_values_and_text() {
        let spec = |symbol| backend::builtin().find(|spec| spec.symbol == symbol).expect("built in").row();
        // halMemCreate(handle = 0, size = 1, prop = 2, …)
        assert_eq!(used_args(&spec("halMemCreate")), 0b111);
        // rtFunctionRegister(bin, stub = 1, name = 2, …)
        assert_eq!(used_args(&spec("rtFunctionRegister")), 0b110);
        assert_eq!(used_args(&spec("aclInit")), 0);
    }
}
