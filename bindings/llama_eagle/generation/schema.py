"""JSON schemas as grammars: llama-cpp-python's converter, with counts, patterns and bounds of our own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from llama_cpp.llama_grammar import PRIMITIVE_RULES, RESERVED_NAMES, STRING_FORMAT_RULES, BuiltinRule, SchemaConverter

from llama_eagle.native import calls

MOST = 2000  # items or characters that a grammar counts, as in eagle_schema.h
COUNTS = (("minItems", "maxItems"), ("minLength", "maxLength"))
FIRST = ("$ref", "oneOf", "anyOf", "const", "enum", "pattern")  # they decide before counts do
# Keys that say what a value is. A schema without one of them allows any value.
DECIDING = {
    *FIRST, "type", "allOf", "properties", "additionalProperties", "items", "prefixItems", "format",
}  # fmt: skip
# As llama-cpp-python's, but without raw control characters, which JSON does not allow in strings.
CHAR = BuiltinRule(
    r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F])', []
)
LONGEST = 15  # digits of an integer without a bound, as llama-cpp-python has it
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def gbnf(schema: str) -> str:
    """The grammar of a schema's values. Raises whatever the converter raises for one that it cannot express."""
    converter = _Converter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    converter.visit(converter.resolve_refs(_with_bare_references(json.loads(schema)), "stdin"), "")
    return str(converter.format_grammar())


def referring(schema: Any, place: str) -> Any:
    """A schema that stands at `place` of a larger one ("#/..."): its references are to parts of itself."""
    if isinstance(schema, list):
        return [referring(entry, place) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: referring(value, place) for key, value in schema.items()}
    ref = schema.get("$ref")
    return found | {"$ref": place + ref[1:]} if isinstance(ref, str) and ref.startswith("#") else found


def _with_bare_references(schema: Any) -> Any:
    """The parent overlooks what stands next to a reference, such as the definitions of a recursive model."""
    if isinstance(schema, list):
        return [_with_bare_references(entry) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _with_bare_references(value) for key, value in schema.items()}
    if isinstance(found.get("$ref"), str) and len(found) > 1:
        found["anyOf"] = [{"$ref": found.pop("$ref")}]
    return found


class _Converter(SchemaConverter):
    def _format_literal(self, literal: str) -> str:
        """A literal of GBNF. The parent leaves backslashes alone, which GBNF reads as escapes."""
        return '"' + json.dumps(literal, ensure_ascii=False)[1:-1] + '"'

    def _add_primitive(self, name: str, rule: Any) -> str:
        return str(super()._add_primitive(name, CHAR if name == "char" else rule))

    def _resolve_ref(self, ref: str) -> str:
        """A rule of its own for each reference: names of definitions may repeat, or be those of other rules."""
        refs = list(self._refs)
        name = f"ref-{refs.index(ref)}"
        if ref in self._refs_being_resolved or name in self._rules:
            return name
        self._refs_being_resolved.add(ref)
        found = self.visit(self._refs[ref], name)
        self._refs_being_resolved.remove(ref)
        return found

    def visit(self, schema: Any, name: str) -> str:
        schema = {} if schema is True else schema
        if not isinstance(schema, Mapping):
            raise TypeError(f"a schema must be an object, not {schema!r:.50}")
        schema = _typed(_within_counts(schema))
        if name and not DECIDING & schema.keys():
            return str(self._add_rule(self._rule_name(name), self._add_primitive("value", PRIMITIVE_RULES["value"])))
        if isinstance(schema.get("type"), list) and not any(key in schema for key in ("$ref", "oneOf", "anyOf")):
            return self._visit_types(schema, name)
        counted = self._counted(schema, name)
        if counted is not None:
            return str(self._add_rule(self._rule_name(name), f"{counted} space"))
        return self._visit_bounds(schema, name)

    def _visit_types(self, schema: Mapping[str, Any], name: str) -> str:
        """Each type with the other keys; the values of `enum` and `const` have their types already."""
        without = {key: value for key, value in schema.items() if key != "type"}
        if "enum" in schema or "const" in schema:
            return self.visit(without, name)
        return self.visit({"anyOf": [{**without, "type": kind} for kind in schema["type"]]}, name)

    def _counted(self, schema: Mapping[str, Any], name: str) -> str | None:
        """The rule of an array or string with a least or greatest length; None: it is another schema."""
        kind = schema.get("type")
        if any(key in schema for key in FIRST) or _is_known_format(schema.get("format")):
            return None
        if kind == "string" and any(key in schema for key in COUNTS[1]):
            char = self._add_primitive("char", CHAR)
            return f'"\\"" {repeated(char, *_count(schema, COUNTS[1]))} "\\""'
        items = schema.get("items") or schema.get("prefixItems") or {}
        is_counted = ("items" in schema and items in ({}, True)) or any(key in schema for key in COUNTS[0])
        if kind == "array" and not isinstance(items, list) and is_counted:
            if items == {} or items is True:
                item = self._add_primitive("value", PRIMITIVE_RULES["value"])
            else:
                item = self.visit(items, f"{name}-item" if name else "item")
            return f'"[" space {separated(item, *_count(schema, COUNTS[0]))} "]"'
        return None

    def _visit_pattern(self, pattern: str, name: str) -> str:
        if not isinstance(pattern, str):
            raise TypeError(f"a pattern must be text, not {pattern!r:.50}")
        return str(self._add_rule(name, f"{calls.pattern_rule(pattern)} space"))

    @staticmethod
    def _rule_name(name: str) -> str:
        return f"{name}-" if name in RESERVED_NAMES else name or "root"

    def _visit_bounds(self, schema: Mapping[str, Any], name: str) -> str:
        is_bounded = schema.get("type") == "integer" and any(key in schema for key in BOUNDS)
        if not is_bounded or "enum" in schema or "const" in schema:
            return str(super().visit(schema, name))
        return str(self._add_rule(self._rule_name(name), f"({integers(*_bounds(schema))}) space"))


def _typed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the type that counts imply where nothing else says what the value is."""
    if DECIDING & schema.keys():
        is_array = "items" in schema and not (DECIDING - {"items"}) & schema.keys()
        return {**schema, "type": "array"} if is_array else schema
    for keys, kind in zip(COUNTS, ("array", "string"), strict=True):
        if any(key in schema for key in keys):
            return {**schema, "type": kind}
    return schema


def _is_known_format(name: Any) -> bool:
    return isinstance(name, str) and (name.startswith("uuid") or f"{name}-string" in STRING_FORMAT_RULES)


def _within_counts(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Before anything is built: without a greatest count above `MOST`, which many schemas have and no answer reaches.

    Raises ValueError for what is no count, or for a least count above `MOST`.
    """
    found = dict(schema)
    for keys in COUNTS:
        for key in keys:
            value = schema.get(key, 0)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
                raise ValueError(f"{key} must be a non-negative integer")
            if key in found:
                found[key] = int(value)
            if value > MOST and key.startswith("min"):
                raise ValueError(f"{key} {int(value)} is above {MOST}, the most that a grammar counts")
        low, high = _count(found, keys)
        if high is not None and low > high:
            raise ValueError(f"{keys[0]} {low} is above {keys[1]} {high}")
        if high is not None and high > MOST:
            del found[keys[1]]
    return found


def _count(schema: Mapping[str, Any], keys: tuple[str, str]) -> tuple[int, int | None]:
    return schema.get(keys[0], 0), schema.get(keys[1])


def repeated(item: str, low: int, high: int | None) -> str:
    """`item` from `low` to `high` times, None: any number."""
    return '""' if high == 0 else f"{item}{{{low},{'' if high is None else high}}}"


def separated(item: str, low: int, high: int | None) -> str:
    """The same with commas between."""
    if high == 0:
        return '""'
    rest = repeated(f'("," space {item})', max(low - 1, 0), None if high is None else high - 1)
    return f"({item} {rest})" if low else f"({item} {rest})?"


def _bounds(schema: Mapping[str, Any]) -> tuple[int | None, int | None]:
    for key in BOUNDS:
        if key in schema and not (_is_number(schema[key]) and abs(schema[key]) <= 2**62):
            raise ValueError(f"{key} must be a number within 2^62")
    lows = [math.ceil(schema["minimum"])] if "minimum" in schema else []
    lows += [math.floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    highs = [math.floor(schema["maximum"])] if "maximum" in schema else []
    highs += [math.ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    return max(lows, default=None), min(highs, default=None)


def integers(low: int | None, high: int | None) -> str:
    """A rule for the integers from `low` to `high`, None: any of up to LONGEST digits. Raises ValueError for none."""
    if low is not None and high is not None and low > high:
        raise ValueError(f"no integer is from {low} to {high}")
    parts = []
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        parts.append(f'"-" ({" | ".join(_naturals(least, None if low is None else -low))})')
    if high is None or high >= 0:
        parts += _naturals(max(low or 0, 0), high)
    return " | ".join(parts)


def _naturals(low: int, high: int | None) -> Iterator[str]:
    """Rules for the numbers of each length."""
    longest = max(LONGEST, len(str(low))) if high is None else len(str(high))
    for length in range(len(str(low)), longest + 1):
        least = max(low, 10 ** (length - 1) if length > 1 else 0)
        most = 10**length - 1
        yield _digits(str(least), str(most if high is None else min(high, most)))


def _digits(low: str, high: str) -> str:
    """The numbers between two of the same length."""
    n_left = len(low) - 1
    zeros, nines = "0" * n_left, "9" * n_left
    if not n_left:
        return f"[{low}-{high}]"
    if low[0] == high[0]:
        return f'"{low[0]}" ({_digits(low[1:], high[1:])})'
    first, last, parts = int(low[0]), int(high[0]), []
    if low[1:] != zeros:
        parts.append(f'"{first}" ({_digits(low[1:], nines)})')
        first += 1
    if high[1:] != nines:
        parts.append(f'"{last}" ({_digits(zeros, high[1:])})')
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}] [0-9]{{{n_left}}}")
    return " | ".join(parts)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
