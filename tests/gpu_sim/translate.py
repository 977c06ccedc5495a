#!/usr/bin/env python3
"""Translates PTX, as nvcc emits it, into C++ that runs on the GPU simulator (simulator.hpp).

  tests/gpu_sim/translate.py --out FILE.cpp --name NAME ARCHITECTURE=FILE.ptx...   e.g. --name ring_kernel 90=ring.ptx
      Writes the kernels of a source file, for all architectures. A kernel with the same text for several architectures
      is translated once.
      --instead PTX    the text in place of the first PTX file, and only kernels that differ (mutants)

Each kernel becomes one function that executes one basic block for the lanes of a warp. A register that is used in one
block only is a local variable; the other registers are in one struct per lane. Registers are unsigned; an instruction
converts to the type in its name. An instruction that waits, or that other lanes see, is a block of its own.
Exit codes: 0 success; 2 PTX that the translator does not know. The message names the instruction, the kernel and the line.
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path

WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8}
SPECIAL = {"%tid.x": "w.thread(lane)", "%ntid.x": "w.block_threads()", "%ctaid.x": "w.cta_number()",
           "%nctaid.x": "w.grid_ctas()", "%laneid": "lane"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">",
               "hs": ">="}
MAX_SHOWN = 60


class Unknown(Exception):
    pass


def width(kind):
    """Bytes of a type, e.g. 4 for s32."""
    return 1 if kind == "pred" else WIDTHS[kind[1:]]


def unsigned(kind):
    return f"std::uint{8 * width(kind)}_t"


def type_of(kind):
    if kind == "f32":
        return "float"
    return f"std::int{8 * width(kind)}_t" if kind[0] == "s" else unsigned(kind)


def split(text, separator=","):
    """Splits at separators that are outside of brackets."""
    parts, depth, part = [], 0, ""
    for letter in text:
        depth += (letter in "{[(") - (letter in "}])")
        if letter == separator and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return [*parts, part.strip()] if part.strip() else parts


def statements(text):
    """Yields (line, kind, text): kind is `open`, `close`, `label`, `head` (up to the `{` of a kernel) or `statement`."""
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^[ \t]*\.(version|target|address_size)\b[^\n]*", "", text, flags=re.MULTILINE)
    line, begin, buffer, braces = 1, 1, "", 0
    for place, letter in enumerate(text):
        line += letter == "\n"
        if not buffer.strip():
            buffer, begin = "", line
        if braces:
            braces += (letter == "{") - (letter == "}")
            buffer += letter
        elif letter == "{":
            if not buffer.strip():
                yield line, "open", ""
            elif ".entry" in buffer or ".func" in buffer:
                yield begin, "head", " ".join(buffer.split())
                yield line, "open", ""
                buffer = ""
            else:
                braces = 1
                buffer += letter
        elif letter == "}":
            yield line, "close", buffer.strip()
            buffer = ""
        elif letter == ";":
            yield begin, "statement", " ".join(buffer.split())
            buffer = ""
        elif letter == ":" and re.fullmatch(r"[$\w]+", buffer.strip()) and text[place + 1] != ":":
            yield begin, "label", buffer.strip()
            buffer = ""
        else:
            buffer += letter
    if buffer.strip():
        yield begin, "statement", buffer.strip()


def readable(mangled):
    """Removes the hashes of anonymous namespaces, which depend on the compiler's command line."""
    while (found := re.search(r"(?<!\d)(\d+)(?=_GLOBAL__N__)", mangled)) is not None:
        mangled = mangled[: found.start()] + "12_GLOBAL__N_1" + mangled[found.end() + int(found[1]) :]
    return mangled


class Kernel:
    """One kernel: its declarations and instructions."""

    def __init__(self, line, head, dynamic):
        found = re.fullmatch(r"(?:\.visible |\.weak )*\.entry ([\w$]+)\s*\((.*?)\)(.*)", head)
        if found is None:
            raise Unknown(f"line {line}: `{head[:MAX_SHOWN]}` is no kernel; only kernels are translated")
        self.line, self.name, self.most_threads = line, found[1], 1024
        self.parameters, self.parameter_bytes = {}, 0
        self.shared, self.shared_bytes, self.dynamic = {}, 0, dynamic
        self.registers = {}  # name -> bytes
        self.instructions = []  # (line, None, label) or (line, guard, op, operands, text)
        for parameter in split(found[2]):
            one = re.fullmatch(r"\.param (?:\.align (\d+) )?\.(\w+)(?: \.ptr(?: \.\w+)?(?: \.align \d+)?)? ([\w$]+)(?:\[(\d+)\])?",
                               parameter)
            if one is None:
                raise Unknown(f"line {line}: unknown parameter `{parameter}`")
            size = int(one[4]) if one[4] else width(one[2])
            self.parameter_bytes = rounded_up(self.parameter_bytes, int(one[1] or size))
            self.parameters[one[3]] = (self.parameter_bytes, size)
            self.parameter_bytes += size
        for directive, value in re.findall(r"\.(\w+) ?([\d, ]*)", found[3]):
            if directive == "maxntid":
                self.most_threads = int(value.split(",")[0])
            elif directive not in ("minnctapersm", "maxnreg", "noreturn"):
                raise Unknown(f"line {line}: unknown directive `.{directive}` of a kernel")

    def declare(self, line, text, scope):
        """A declaration in the kernel. `scope` maps names of the innermost braces to registers."""
        found = re.fullmatch(r"\.reg \.(\w+) %(\w+)<(\d+)>", text)
        if found:
            for number in range(int(found[3])):
                self.registers[f"{found[2]}{number}"] = width(found[1])
            return
        found = re.fullmatch(r"\.reg \.(\w+) ([\w, %]+)", text)
        if found:
            for name in split(found[2]):
                scope[name] = f"{name.lstrip('%')}_at_{line}"
                self.registers[scope[name]] = width(found[1])
            return
        found = re.fullmatch(r"\.shared (?:\.align (\d+) )?\.(\w+) ([\w$]+)(?:\[(\d+)\])?", text)
        if found:
            size = int(found[4] or 1) * width(found[2])
            self.shared_bytes = rounded_up(self.shared_bytes, int(found[1] or width(found[2])))
            self.shared[found[3]] = self.shared_bytes
            self.shared_bytes += size
            return
        if not text.startswith(".pragma"):
            raise Unknown(f"unknown declaration `{text}`")


def rounded_up(size, alignment):
    return (size + alignment - 1) // alignment * alignment


def kernels_of(text, file):
    """Returns the kernels of a PTX file."""
    kernels, dynamic, kernel, scopes = [], {}, None, []
    for line, kind, words in statements(text):
        try:
            if kind == "head":
                kernel = Kernel(line, words, dict(dynamic))
                kernels.append(kernel)
            elif kind == "open":
                scopes.append({})
            elif kind == "close":
                if words:
                    raise Unknown(f"`{words}` has no semicolon")
                scopes.pop()
                if not scopes:
                    kernel = None
            elif kernel is None:
                found = re.fullmatch(r"\.extern \.shared \.align (\d+) \.b8 ([\w$]+)\[\]", words)
                if found is None:
                    raise Unknown(f"unknown declaration `{words[:MAX_SHOWN]}`")
                dynamic[found[2]] = int(found[1])
            elif kind == "label":
                kernel.instructions.append((line, None, words, None, None))
            elif words.startswith("."):
                kernel.declare(line, words, scopes[-1])
            else:
                for scope in reversed(scopes):
                    for name, register in scope.items():
                        words = re.sub(rf"(?<![\w%.:$]){re.escape(name)}(?![\w.:])", f"%{register}", words)
                found = re.fullmatch(r"(?:@(!?)%([\w]+) +)?([\w.:]+) *(.*)", words)
                if found is None:
                    raise Unknown(f"unknown instruction `{words[:MAX_SHOWN]}`")
                guard = (found[1] == "!", found[2]) if found[2] else ()
                kernel.instructions.append((line, guard, found[3], split(found[4]), words))
        except Unknown as error:
            where = f" of kernel {kernel.name}" if kernel else ""
            raise Unknown(f"{file}:{line}: {error}{where}") from None
    return kernels


# The instructions that wait for other lanes or copies, or that other lanes see without a race.
OWN_BLOCK = ("bar.", "shfl.", "redux.", "mbarrier.", "cp.async.", "fence.", "nanosleep.", "atom.", "red.")
ENDS = ("bra", "ret", "exit", "trap")


def blocks_of(kernel):
    """Returns the basic blocks, lists of instructions, and the block of each label."""
    blocks, labels = [[]], {}

    def begin():
        if blocks[-1]:
            blocks.append([])

    for one in kernel.instructions:
        if one[1] is None:
            begin()
            labels[one[2]] = len(blocks) - 1
            continue
        own = one[2].startswith(OWN_BLOCK)
        if own:
            begin()
        blocks[-1].append(one)
        if own or one[2].split(".")[0] in ENDS:
            begin()
    if not blocks[-1]:
        blocks[-1].append((kernel.line, (), "ret", [], "ret"))
    return blocks, labels


class Block:
    """Writes the C++ of one basic block, and records the use of registers."""

    def __init__(self, kernel, number, labels, touched):
        self.kernel, self.number, self.labels, self.touched = kernel, number, labels, touched
        self.code = []
        self.next = None  # the only block after this one, or None: each lane sets its own

    # ---- operands ----
    def use(self, register, defines=False, surely=True):
        self.touched.setdefault(register, []).append((self.number, defines and surely))
        return f"R({register})"

    def register(self, text):
        name = text[1:] if text.startswith("%") else None
        return name if name in self.kernel.registers else None

    def value(self, text, kind):
        """An operand as a C++ expression of the type."""
        register = self.register(text)
        if register is not None:
            if kind == "f32":
                return f"as_float({self.use(register)})"
            if kind == "pred":
                return f"({self.use(register)} != 0)"
            if type_of(kind) == f"std::uint{8 * self.kernel.registers[register]}_t":
                return self.use(register)
            return f"static_cast<{type_of(kind)}>({self.use(register)})"
        if text in SPECIAL:
            return f"static_cast<{type_of(kind)}>({SPECIAL[text]})"
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            return f"as_float(0x{text[2:]}u)" if kind == "f32" else f"0x{text[2:]}u"
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", text):
            number = int(text.rstrip("U"), 0)
            if kind == "f32":
                raise Unknown(f"the operand `{text}` of a float")
            if kind == "pred":
                return "true" if number else "false"
            number %= 1 << 8 * width(kind)
            return f"static_cast<{type_of(kind)}>({number}{'u' if width(kind) < 8 else 'ull'})"
        if text in self.kernel.parameters:
            return f"static_cast<{unsigned(kind)}>(w.parameter({self.kernel.parameters[text][0]}))"
        if text in self.kernel.shared:
            return f"static_cast<{unsigned(kind)}>(w.shared({self.kernel.shared[text]}))"
        if text in self.kernel.dynamic:
            return f"static_cast<{unsigned(kind)}>(w.dynamic_shared())"
        raise Unknown(f"the operand `{text}`")

    def address(self, text, kind="u64"):
        found = re.fullmatch(r"\[(.+?)(?:\+(-?\w+))?\]", text)
        base = self.value(found[1], kind)
        offset = int(found[2] or "0", 0) % (1 << 8 * width(kind))
        return base if offset == 0 else f"{base} + {offset}u{'ll' if width(kind) == 8 else ''}"

    def shared_address(self, text):
        found = re.fullmatch(r"\[(.+?)(?:\+(-?\w+))?\]", text)
        register = self.register(found[1])
        wide = register is not None and self.kernel.registers[register] == 8
        return f"static_cast<std::uint32_t>({self.address(text, 'u64' if wide else 'u32')})"

    def set(self, text, expression, guard=()):
        """Assigns an expression of any integer type, a float or a bool to a register."""
        if text == "_":
            return ""
        register = self.register(text)
        if register is None:
            raise Unknown(f"the target `{text}`")
        size = self.kernel.registers[register]
        return f"{self.use(register, True, not guard)} = static_cast<std::uint{8 * size}_t>({expression});"

    def set_float(self, text, expression, guard=()):
        return self.set(text, f"bits_of({expression})", guard)

    # ---- instructions ----
    def translate(self, instruction, following):
        line, guard, op, operands, _ = instruction
        parts = op.split(".")
        if parts[0] == "bra":
            return self.branch(guard, operands, following)
        if parts[0] in ("ret", "exit", "trap"):
            what = f"w.trap(lane, {line});" if parts[0] == "trap" else "w.leave(lane);"
            if guard:
                self.code.append(f"if ({self.condition(guard)}) {what} else w.go(lane, {following});")
            else:
                self.code.append(what)
            self.next = -1
            return None
        condition = self.condition(guard) if guard else None
        if op.startswith(OWN_BLOCK):
            return self.own_block(condition, line, op, parts, operands, guard, following)
        text = self.plain(line, op, parts, operands, guard)
        self.code.append(f"if ({condition}) {{ {text} }}" if condition else text)
        return None

    def condition(self, guard):
        return f"{self.use(guard[1])} {'==' if guard[0] else '!='} 0"

    def branch(self, guard, operands, following):
        if operands[0] not in self.labels:
            raise Unknown(f"a branch to `{operands[0]}`")
        target = self.labels[operands[0]]
        if guard:
            self.code.append(f"w.go(lane, {self.condition(guard)} ? {target} : {following});")
            self.next = -1
        else:
            self.next = target

    def plain(self, line, op, parts, operands, guard):
        base, kind, d, s = parts[0], parts[-1], operands[0], operands[1:]
        if kind not in ("pred", "f32") and not re.fullmatch(r"[bus](8|16|32|64)", kind):
            raise Unknown("its type")
        known = set(parts[1:-1])

        def only(*allowed):
            if known - set(allowed):
                raise Unknown(f"its modifier .{sorted(known - set(allowed))[0]}")

        u = "u" + kind[1:] if kind != "pred" else kind
        wide = "u64" if kind != "pred" and width(kind) == 8 else "u32"

        def arithmetic(expression, *values):
            """In an unsigned type of at least 32 bits, so that nothing overflows."""
            widened = [f"static_cast<{unsigned(wide)}>({self.value(v, u)})" for v in values]
            return self.set(d, f"static_cast<{unsigned(kind)}>({expression.format(*widened)})", guard)

        if base in ("ld", "st"):
            return self.memory(line, base, parts, operands, guard)
        if base == "mov":
            only()
            if d.startswith("{"):
                targets = split(d[1:-1])
                bits = 8 * width(kind) // len(targets)
                value = self.value(s[0], u)
                return f"{{ const {unsigned(kind)} whole = {value}; " + " ".join(
                    self.set(t, f"whole >> {bits * i}", guard) for i, t in enumerate(targets)
                    if not t.startswith("_")) + " }"
            if s[0].startswith("{"):
                sources = split(s[0][1:-1])
                bits = 8 * width(kind) // len(sources)
                return self.set(d, " | ".join(
                    f"static_cast<{unsigned(kind)}>({self.value(v, f'u{bits}')}) << {bits * i}"
                    for i, v in enumerate(sources)), guard)
            if kind == "f32":
                return self.set_float(d, self.value(s[0], kind), guard)
            return self.set(d, self.value(s[0], u), guard)
        if base == "cvta":
            only("to", "global", "shared", "param")
            if "shared" in known:
                return self.set(d, f"{'w.to_shared' if 'to' in known else 'w.from_shared'}({self.value(s[0], 'u64')})", guard)
            return self.set(d, self.value(s[0], "u64"), guard)
        if base == "cvt":
            target, source = parts[-2], parts[-1]
            if len(parts) != 3 or "f" in (target[0], source[0]):
                raise Unknown("this conversion")
            return self.set(d, f"static_cast<{type_of(target)}>({self.value(s[0], source)})", guard)
        if kind == "f32":
            only("rn")
            values = [self.value(v, kind) for v in s]
            if base in ("add", "sub", "mul"):
                return self.set_float(d, f"{values[0]} {dict(add='+', sub='-', mul='*')[base]} {values[1]}", guard)
            if base == "fma":
                return self.set_float(d, f"std::fma({', '.join(values)})", guard)
            raise Unknown("no such operation on floats")
        if base in ("and", "or", "xor"):
            only()
            if kind == "pred":
                symbol = {"and": "&&", "or": "||", "xor": "!="}[base]
                return self.set(d, f"{self.value(s[0], kind)} {symbol} {self.value(s[1], kind)}", guard)
            return arithmetic({"and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}"}[base], *s)
        if base == "not":
            only()
            return self.set(d, f"!{self.value(s[0], kind)}", guard) if kind == "pred" else arithmetic("~{}", *s)
        if base == "neg":
            only()
            return arithmetic("0 - {}", *s)
        if base in ("add", "sub"):
            only()
            return arithmetic(f"{{}} {'+' if base == 'add' else '-'} {{}}", *s)
        if base in ("mul", "mad"):
            only("lo", "wide")
            if "wide" in known:
                to = ("s" if kind[0] == "s" else "u") + str(16 * width(kind))
                product = (f"static_cast<{unsigned(to)}>(static_cast<{type_of(to)}>({self.value(s[0], kind)})) * "
                           f"static_cast<{unsigned(to)}>(static_cast<{type_of(to)}>({self.value(s[1], kind)}))")
                if base == "mad":
                    product += f" + {self.value(s[2], 'u' + to[1:])}"
                return self.set(d, f"static_cast<{unsigned(to)}>({product})", guard)
            return arithmetic("{} * {}" + (" + {}" if base == "mad" else ""), *s)
        if base in ("div", "rem"):
            only()
            return self.set(d, f"{'quotient' if base == 'div' else 'remainder'}({self.value(s[0], kind)}, "
                               f"{self.value(s[1], kind)})", guard)
        if base in ("min", "max"):
            only()
            return self.set(d, f"std::{base}<{type_of(kind)}>({self.value(s[0], kind)}, {self.value(s[1], kind)})", guard)
        if base in ("shl", "shr"):
            only()
            name = "shifted_left" if base == "shl" else "shifted_right"
            return self.set(d, f"{name}<{type_of(kind if base == 'shr' else u)}>({self.value(s[0], kind if base == 'shr' else u)}, "
                               f"{self.value(s[1], 'u32')})", guard)
        if base == "bfi":
            only()
            return self.set(d, f"inserted<{unsigned(kind)}>({self.value(s[0], u)}, {self.value(s[1], u)}, "
                               f"{self.value(s[2], 'u32')}, {self.value(s[3], 'u32')})", guard)
        if base == "setp":
            if len(parts) != 3 or parts[1] not in COMPARISONS:
                raise Unknown("this comparison")
            return self.set(d, f"{self.value(s[0], kind)} {COMPARISONS[parts[1]]} {self.value(s[1], kind)}", guard)
        if base == "selp":
            only()
            return self.set(d, f"{self.value(s[2], 'pred')} ? {self.value(s[0], u)} : {self.value(s[1], u)}", guard)
        raise Unknown("no such instruction")

    def memory(self, line, base, parts, operands, guard):
        kind = parts[-1]
        known = set(parts[1:-1])
        lanes = 4 if "v4" in known else 2 if "v2" in known else 1
        spaces = known & {"global", "shared", "param"}
        strong = known & {"relaxed", "volatile"}
        unknown = known - {"v2", "v4", "global", "shared", "param", "relaxed", "volatile", "sys", "gpu", "cta", "nc"}
        unknown = {word for word in unknown if not word.startswith(("L1::", "L2::"))}
        if unknown:
            raise Unknown(f"its modifier .{sorted(unknown)[0]}")
        space = next(iter(spaces), "generic")
        address, data = (operands[1], operands[0]) if base == "ld" else operands
        data = split(data[1:-1]) if data.startswith("{") else [data]
        if len(data) != lanes:
            raise Unknown("its vector")
        call = {"param": "load_parameter", "global": f"{base}_global", "shared": f"{base}_shared",
                "generic": f"{base}_generic"}[space]
        at = self.shared_address(address) if space == "shared" else self.address(address)
        element = type_of(kind) if kind != "f32" else "std::uint32_t"
        if base == "ld":
            tail = f"<{width(kind) * lanes}>(lane, {at}, v, {line}{', true' if strong else ''})"
            text = f"{element} v[{lanes}]; w.{call}{tail}; "
            text += " ".join(self.set(name, f"v[{i}]", guard) for i, name in enumerate(data))
        else:
            if space == "param":
                raise Unknown("a store to a parameter")
            values = ", ".join(self.value(name, "u32" if kind == "f32" else kind) for name in data)
            text = f"const {element} v[{lanes}] = {{{values}}}; "
            text += f"w.{call}<{width(kind) * lanes}>(lane, {at}, v, {line}{', true' if strong else ''});"
        return f"{{ {text} }}"

    def own_block(self, condition, line, op, parts, operands, guard, following):
        """An instruction that is a block. Returns the code that reads its result in the next block, or None."""
        o = operands
        base = parts[0]
        result = None
        lanes_go = True  # False: the simulator sends the lane to the next block

        def shared(text):
            return self.shared_address(text)

        def word(text, kind="u32"):
            return self.value(text, kind)

        if op in ("bar.sync", "barrier.sync") and o == ["0"]:
            text, lanes_go = f"w.wait_for_cta(lane, {following}, {line});", False
        elif op == "bar.warp.sync":
            text, lanes_go = f"w.wait_for_warp(lane, {word(o[0])}, {following}, {line});", False
        elif base == "shfl" and parts[1] == "sync" and parts[2] in ("idx", "up", "down", "bfly") and parts[3] == "b32":
            d, _, inside = o[0].partition("|")
            text = (f"w.shuffle(lane, Shuffle::{parts[2]}, {word(o[1])}, {word(o[2])}, {word(o[3])}, {word(o[4])}, "
                    f"{following}, {line});")
            lanes_go = False
            result = [(d, "w.result(lane)")] + ([(inside, "w.inside(lane)")] if inside and inside != "_" else [])
        elif op in ("redux.sync.min.u32", "redux.sync.max.u32", "redux.sync.add.u32", "redux.sync.xor.b32"):
            how = "bits" if parts[2] == "xor" else parts[2]  # `xor` is a keyword of C++
            text = f"w.reduce(lane, Reduce::{how}, {word(o[1])}, {word(o[2])}, {following}, {line});"
            lanes_go, result = False, [(o[0], "w.result(lane)")]
        elif base == "nanosleep":
            text = ""
        elif re.fullmatch(r"mbarrier\.init(\.shared(::cta)?)?\.b64", op):
            text = f"w.barrier_init(lane, {shared(o[0])}, {word(o[1])}, {line});"
        elif re.fullmatch(r"mbarrier\.arrive(\.release)?(\.cta)?(\.shared(::cta)?)?\.b64", op) and len(o) == 2:
            text = f"w.barrier_arrive(lane, {shared(o[1])}, {line});"
        elif re.fullmatch(r"mbarrier\.arrive\.expect_tx(\.release)?(\.cta)?(\.shared(::cta)?)?\.b64", op):
            text = f"w.barrier_expect(lane, {shared(o[1])}, {word(o[2])}, {line}); w.barrier_arrive(lane, {shared(o[1])}, {line});"
        elif re.fullmatch(r"mbarrier\.expect_tx(\.relaxed)?(\.cta)?(\.shared(::cta)?)?\.b64", op):
            text = f"w.barrier_expect(lane, {shared(o[0])}, {word(o[1])}, {line});"
        elif re.fullmatch(r"mbarrier\.(try|test)_wait\.parity(\.acquire)?(\.cta)?(\.shared(::cta)?)?\.b64", op):
            text = f"w.barrier_wait(lane, {shared(o[1])}, {word(o[2])}, {following}, {line});"
            lanes_go, result = False, [(o[0], "w.result(lane)")]
        elif op in ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
                    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"):
            text = f"w.bulk_load(lane, {shared(o[0])}, {self.address(o[1])}, {word(o[2])}, {shared(o[3])}, {line});"
        elif op == "cp.async.bulk.global.shared::cta.bulk_group":
            text = f"w.bulk_store(lane, {self.address(o[0])}, {shared(o[1])}, {word(o[2])}, {line});"
        elif op == "cp.async.bulk.commit_group":
            text = "w.bulk_commit(lane);"
        elif op in ("cp.async.bulk.wait_group", "cp.async.bulk.wait_group.read"):
            read = "true" if op.endswith(".read") else "false"
            text, lanes_go = f"w.bulk_wait(lane, {int(o[0])}, {read}, {following}, {line});", False
        elif op in ("fence.proxy.async", "fence.proxy.async.shared::cta", "fence.mbarrier_init.release.cluster"):
            text = "w.fence_proxy(lane);"
        elif base in ("atom", "red"):
            text, result = self.atomic(line, parts, o)
        else:
            raise Unknown("no such instruction")
        go = f" w.go(lane, {following});" if lanes_go else ""
        if condition:
            if result:
                raise Unknown("a condition of its own")
            self.code.append(f"if ({condition}) {{ {text}{go} }} else {{ w.go(lane, {following}); }}")
        else:
            self.code.append(f"{text}{go}")
        self.next = -1
        return result

    def atomic(self, line, parts, o):
        kind = parts[-1]
        known = [word for word in parts[1:-1] if word not in ("global", "relaxed", "gpu", "sys", "cta")]
        if len(known) != 1 or known[0] not in ("add", "min", "max") or kind not in ("u32", "u64", "s32") or (
                kind == "s32" and known[0] != "add"):
            raise Unknown("this atomic operation")
        at, value = (o[1], o[2]) if parts[0] == "atom" else (o[0], o[1])
        text = (f"w.set_result(lane, w.atomic(lane, Atomic::{known[0]}, {self.address(at)}, "
                f"{self.value(value, 'u' + kind[1:])}, {line}));")
        return text, [(o[0], "w.result(lane)")] if parts[0] == "atom" else None


def translate(kernel, file, number):
    """Returns the C++ of a kernel: its struct of registers, its function, and its row of the table."""
    blocks, labels = blocks_of(kernel)
    # A result is read in a block of its own, which is inserted after the block of the instruction.
    places, shift = [], 0
    results = [bool(re.match(r"(shfl|redux|mbarrier\.(try|test)_wait|atom)", block[-1][2])) for block in blocks]
    for number_of_block in range(len(blocks)):
        places.append(number_of_block + shift)
        shift += results[number_of_block]
    labels = {name: places[at] for name, at in labels.items()}
    touched, written, counts = {}, [], []
    for index, block in enumerate(blocks):
        here = places[index]
        writer = Block(kernel, here, labels, touched)
        result = None
        for one in block:
            try:
                result = writer.translate(one, here + 1)
            except Unknown as error:
                raise Unknown(f"{file}:{one[0]}: unknown instruction `{one[4][:MAX_SHOWN]}` ({error}) of kernel "
                              f"{kernel.name}") from None
            except (IndexError, TypeError, AttributeError, KeyError, ValueError):
                raise Unknown(f"{file}:{one[0]}: unknown instruction `{one[4][:MAX_SHOWN]}` (its operands) of kernel "
                              f"{kernel.name}") from None
        written.append((writer.code, here + 1 if writer.next is None else writer.next))
        counts.append(len(block))
        if results[index]:
            reader = Block(kernel, here + 1, labels, touched)
            code = [reader.set(target, expression) for target, expression in result]
            written.append((code, here + 2))
            counts.append(0)
    if blocks[-1][-1][2].split(".")[0] not in ENDS:
        raise Unknown(f"{file}: kernel {kernel.name} does not end with ret")
    local = {name for name, uses in touched.items() if len({at for at, _ in uses}) == 1 and uses[0][1]}
    fields = [f"  std::uint{8 * kernel.registers[name]}_t {name};" for name in
              sorted(set(touched) - local, key=lambda name: (-kernel.registers[name], name))]
    lines = [f"// {kernel.name}", f"struct Registers{number} {{", *(fields or ["  char none;"]), "};",
             f"void run{number}(Warp& w) {{", "  switch (w.block()) {"]
    for index, (code, following) in enumerate(written):
        text = "\n".join(code)
        names = sorted({name for name in re.findall(r"\bR\((\w+)\)", text) if name in local})
        text = re.sub(r"\bR\((\w+)\)", lambda found: found[1] if found[1] in local else f"r.{found[1]}", text)
        lines.append(f"    case {index}:")
        if text:
            lines.append("      for (const std::uint32_t lane : w.lanes()) {")
        if "r." in text:
            lines.append(f"        auto& r = w.registers<Registers{number}>(lane);")
        for size in (8, 4, 2, 1):
            of_size = [name for name in names if kernel.registers[name] == size]
            if of_size:
                lines.append(f"        [[maybe_unused]] std::uint{8 * size}_t {', '.join(of_size)};")
        if text:
            lines += [f"        {one}" for one in text.split("\n") if one]
            lines.append("      }")
        if following >= 0:
            lines.append(f"      w.all_go({following});")
        lines.append("      return;")
    lines += ["    default: return;", "  }", "}"]
    lines.append(f"constexpr std::uint16_t counts{number}[] = {{{', '.join(map(str, counts))}}};")
    rows = ", ".join(f"{{{at}, {size}}}" for at, size in kernel.parameters.values())
    lines.append(f"constexpr Parameter parameters{number}[] = {{{rows}}};" if rows else
                 f"constexpr std::span<const Parameter> parameters{number};")
    return lines


def body_text(kernel):
    """The text that decides the translation, without the names that contain hashes."""
    return repr((readable(kernel.name), kernel.most_threads, list(kernel.parameters.values()),
                 list(kernel.shared.values()), kernel.registers,
                 [(one[1], readable(one[2] or ""), [readable(it) for it in one[3] or []])
                  for one in kernel.instructions]))


def emit(files, name, instead):
    """Returns the C++ for a list of (architecture, path)."""
    lines, rows, known = [], [], {}
    lines.append(f"// Translated by tests/gpu_sim/translate.py from the PTX of {name}.cu.")
    lines.append('#include "tests/gpu_sim/warp.hpp"\n\nnamespace kvtwin::gpu_sim {\nnamespace {\n')
    for position, (architecture, path) in enumerate(files):
        text = path.read_text(encoding="utf-8")
        kernels = kernels_of(text, path.name)
        if instead is not None and position == 0:
            before = {body_text(kernel) for kernel in kernels}
            kernels = [kernel for kernel in kernels_of(instead.read_text(encoding="utf-8"), instead.name)
                       if body_text(kernel) not in before]
        for kernel in kernels:
            if next(one[2] for one in kernel.instructions if one[1] is not None) == "trap":
                continue  # no code for this architecture
            digest = hashlib.sha256(body_text(kernel).encode()).digest()
            if digest not in known:
                known[digest] = len(known)
                lines += [*translate(kernel, path.name, known[digest]), ""]
            number = known[digest]
            dynamic = max(kernel.dynamic.values(), default=1)
            rows.append(f'    {{"{readable(kernel.name)}", "{path.name}", {architecture}, run{number}, '
                        f"sizeof(Registers{number}), {kernel.parameter_bytes}, parameters{number}, "
                        f"{kernel.shared_bytes}, {dynamic}, {kernel.most_threads}, counts{number}}},")
    lines += ["constexpr Kernel kernels[] = {", *rows, "};", "const Registration registration(kernels);", "",
              "}  // namespace", "}  // namespace kvtwin::gpu_sim", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--instead", type=Path)
    parser.add_argument("files", nargs="+", metavar="ARCHITECTURE=FILE.ptx")
    arguments = parser.parse_args()
    files = []
    for text in arguments.files:
        architecture, _, path = text.partition("=")
        if not architecture.isdigit() or not path:
            parser.error(f"`{text}` isn't ARCHITECTURE=FILE.ptx, for example 90=ring_kernel.ptx")
        files.append((int(architecture), Path(path)))
    try:
        text = emit(files, arguments.name, arguments.instead)
    except Unknown as error:
        print(f"translate.py: {error}", file=sys.stderr)
        return 2
    arguments.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
