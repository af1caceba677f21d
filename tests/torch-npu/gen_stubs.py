#!/usr/bin/env python3
"""Finds what a set of ELF files needs and none provides, and writes it as C stubs.

usage: gen_stubs.py [--provided LIB.so]... [--opens LIB.so]... --out DIR ROOT.so ...

Every missing library becomes DIR/<soname>.c, and DIR/<soname>.map where its symbols carry a version, as CUDA's do.
A stub returns 0 and is weak, so that what is written by hand comes before it. Nothing but names is taken from the
inputs. What a provided library lacks, though it is its by name, goes into libascendcl.so: symbols are looked up in all
libraries. CANN's functions that a library of --opens names in a text (it calls dlsym) are stubbed as well.
"""
import argparse
import collections
import os
import re
import sys

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

SYSTEM = ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64"]

# Where a symbol without a version belongs; the first match wins.
OWNERS = [
    (r"^nccl", "libnccl.so.2"),
    (r"^(Hccl|hccl|Hcom)", "libhccl.so"),
    (r"^(aclop|aclGen|aclSetCompile)", "libacl_op_compiler.so"),
    (r"^acltdt", "libacl_tdt_channel.so"),
    (r"^Msprof", "libprofapi.so"),
    (r"^rt[A-Z]", "libruntime.so"),
    (r"^hal", "libascend_hal.so"),
    (r"^mstx", "libms_tools_ext.so"),
    (r"^acl", "libascendcl.so"),
    (r"_ZN3atb", "libatb.so"),
    (r"^cusparseLt", "libcusparseLt.so.0"),
    (r"^nvshmem", "libnvshmem_host.so.3"),
    (r"^cuFile", "libcufile.so.0"),
    (r"^cu[A-Z]", "libcuda.so.1"),
    (r"", "libgraph.so"),
]

# Where libraries that are opened by name look.
OPENED = [(r"^aclprof", "libmsprofiler.so"), (r"^aclnn", None), *OWNERS]

File = collections.namedtuple("File", "needed undefined defined")


def load(path):
    """Needed sonames, undefined symbols (name: (version, type)), and names of defined ones."""
    with open(path, "rb") as file:
        elf = ELFFile(file)
        needed = [t.needed for t in elf.get_section_by_name(".dynamic").iter_tags() if t.entry.d_tag == "DT_NEEDED"]
        versions = {}
        requirements = elf.get_section_by_name(".gnu.version_r")
        if isinstance(requirements, GNUVerNeedSection):
            for library, entries in requirements.iter_versions():
                for entry in entries:
                    versions[entry.entry.vna_other & 0x7FFF] = (library.name, entry.name)
        numbers = elf.get_section_by_name(".gnu.version")
        undefined, defined = {}, set()
        for index, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            if not symbol.name:
                continue
            if symbol.entry.st_shndx != "SHN_UNDEF":
                defined.add(symbol.name)
                continue
            number = numbers.get_symbol(index)["ndx"] if numbers else 0
            version = versions.get(number & 0x7FFF) if isinstance(number, int) else None
            # A weak one may stay undefined, unless its library has to define the version.
            if version or symbol.entry.st_info.bind != "STB_WEAK":
                undefined[symbol.name] = (version, symbol.entry.st_info.type)
    return File(needed, undefined, defined)


def closure(roots, provided):
    """All files that get loaded, by path, and the sonames that are nowhere."""
    folders = list(dict.fromkeys(os.path.dirname(os.path.abspath(root)) for root in roots)) + SYSTEM
    files, missing, todo = {}, set(), list(roots)
    while todo:
        path = os.path.realpath(todo.pop())
        if path in files:
            continue
        files[path] = load(path)
        for soname in files[path].needed:
            found = [os.path.join(folder, soname) for folder in folders if os.path.exists(os.path.join(folder, soname))]
            if found:
                todo.append(found[0])
            elif soname not in provided:
                missing.add(soname)
    return files, missing


def wanted(files, missing, defined):
    """Symbols to be stubbed, by library: {soname: {name: (version, type)}}."""
    libraries = collections.defaultdict(dict)
    for file in files.values():
        for name, (version, kind) in file.undefined.items():
            if name in defined or re.match(r"_?Py[A-Z_]", name) or (version and version[0] not in missing):
                continue
            soname = version[0] if version else owner(name, OWNERS)
            libraries[soname][name] = (version[1] if version else None, kind)
    return libraries


def looked_up(path):
    """Functions of CANN that a library may look up by name."""
    with open(path, "rb") as file:
        texts = re.findall(rb"(?<![A-Za-z0-9_])(?:acl[a-z]*[A-Z]|rt[A-Z]|hal[A-Z]|Hccl)[A-Za-z0-9]+(?=\0)", file.read())
    return {text.decode() for text in texts}


def owner(name, owners):
    return next(soname for form, soname in owners if re.search(form, name))


def stub(name, kind):
    if re.match(r"_ZT[VISC]", name) or kind == "STT_OBJECT":
        return f"__attribute__((weak)) char {name}[4096];\n"
    return f"__attribute__((weak)) long {name}(void) {{ return 0; }}\n"


def write(folder, soname, symbols):
    with open(os.path.join(folder, soname + ".c"), "w") as file:
        file.writelines(stub(name, kind) for name, (_, kind) in sorted(symbols.items()))
    versions = collections.defaultdict(list)
    for name, (version, _) in sorted(symbols.items()):
        if version:
            versions[version].append(name)
    if versions:
        with open(os.path.join(folder, soname + ".map"), "w") as file:
            file.writelines(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in versions.items())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--provided", action="append", default=[])
    parser.add_argument("--opens", action="append", default=[])
    parser.add_argument("--out", required=True)
    parser.add_argument("roots", nargs="+")
    arguments = parser.parse_args()
    provided = {os.path.basename(path): load(path) for path in arguments.provided}
    files, missing = closure(arguments.roots, provided)
    defined = set(load(os.path.realpath(sys.executable)).defined)
    for file in list(files.values()) + list(provided.values()):
        defined |= file.defined
    libraries = wanted(files, missing, defined)
    for name in set().union(*map(looked_up, arguments.opens)) - defined:
        if soname := owner(name, OPENED):
            libraries[soname].setdefault(name, (None, "STT_FUNC"))
    for soname in provided:
        libraries["libascendcl.so"].update(libraries.pop(soname, {}))
    os.makedirs(arguments.out, exist_ok=True)
    for soname in sorted(missing | set(libraries)):
        write(arguments.out, soname, libraries.get(soname, {}))


if __name__ == "__main__":
    main()
