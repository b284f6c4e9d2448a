"""Example values that a JSON Schema accepts, for tests of rewards."""

import itertools
import json


def checker_of(schema):
    """A validator of a JSON Schema that fetches nothing; an invalid schema raises jsonschema's SchemaError."""
    import jsonschema
    from referencing import Registry

    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, registry=Registry())


def example_of(schema):
    """A value that a JSON Schema (or its text) accepts, with as many properties as it allows; None if none is found.

    Deliberately left out: texts for `pattern`, and conditions by `if`.
    """
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        checker = checker_of(schema)
        return next((value for value in examples(schema, schema, 0) if checker.is_valid(value)), None)
    except Exception:  # libraries raise many kinds for odd schemas
        return None


def examples(schema, root, depth: int):
    """At most a few dozen candidates for a part of a schema."""
    if not isinstance(schema, dict):
        return ["text"] if schema else []
    if "$ref" in schema:
        return examples(target_of(schema["$ref"], root) | without(schema, "$ref"), root, depth + 1)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            choices = (examples(merged([without(schema, word), one]), root, depth) for one in schema[word])
            return list(itertools.islice(itertools.chain.from_iterable(choices), 24))
    if "allOf" in schema:
        return examples(merged([without(schema, "allOf"), *schema["allOf"]]), root, depth)
    given = [schema["const"]] if "const" in schema else schema.get("enum") or schema.get("examples")
    return list(given) if given else values_of(schema, root, depth)


def without(schema: dict, word: str) -> dict:
    """A schema without one of its keywords."""
    return {name: value for name, value in schema.items() if name != word}


def target_of(reference: str, root) -> dict:
    """The part of the root schema that a reference `#/a/b` means."""
    for word in reference.removeprefix("#").split("/")[1:]:
        root = root[int(word) if isinstance(root, list) else word.replace("~1", "/").replace("~0", "~")]
    return root


def merged(schemas: list) -> dict:
    """One schema for several that all hold: objects and `required` are merged; of other keywords the last counts."""
    whole = {}
    for schema in schemas:
        for name, value in (schema if isinstance(schema, dict) else {}).items():
            old = whole.get(name)
            whole[name] = old | value if isinstance(old, dict) else old + value if name == "required" and old else value
    return whole


def values_of(schema: dict, root, depth: int) -> list:
    """Candidates for a schema without alternatives, by its type."""
    kind = schema.get("type") or ("object" if "properties" in schema else "array" if "items" in schema else "string")
    kind = next((k for k in kind if k != "null"), "null") if isinstance(kind, list) else kind
    low, high = schema.get("minLength", 0), schema.get("maxLength", 10**4)
    if kind == "object":
        return objects(schema, root, depth)
    if kind == "array":
        return arrays(schema, root, depth)
    if kind in ("integer", "number"):
        step = schema.get("multipleOf", 1)
        ends = [schema[w] for w in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if w in schema]
        candidates = [end + shift for end in ends for shift in (0, step, -step, 0.5, -0.5)]
        candidates += [(ends[0] + ends[-1]) / 2, *(-(-end // step) * step for end in ends)] if ends else []
        return [int(x) if x == int(x) else x for x in [step, 0, *candidates]]
    if kind != "string":
        return [True, False] if kind == "boolean" else [None]
    return [("text " * (low // 5 + 1)).strip().ljust(low, "x")[:high]]


def objects(schema: dict, root, depth: int) -> list:
    """Two candidates for an object: with all properties, each with its first fitting value, and with required ones."""
    required, properties = schema.get("required", []), schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    more = [f"key{i}" for i in range(schema.get("minProperties", 0) - len({*required, *properties}))]
    names = [
        name for name in [*properties, *required, *more] if depth < 4 or name not in properties or name in required
    ]
    fitting = {name: first_fitting(properties.get(name, rest), root, depth) for name in names}
    value = {name: values[0] for name, values in fitting.items() if values}
    return [value, {name: value[name] for name in required if name in value}]


def first_fitting(schema, root, depth: int) -> list:
    """[the first candidate that a part of a schema accepts], or []."""
    checker = checker_of(root).evolve(schema=schema)
    return [value for value in examples(schema, root, depth + 1) if checker.is_valid(value)][:1]


def arrays(schema: dict, root, depth: int) -> list:
    """Candidates for an array with as few items as allowed, but at least one if possible."""
    fixed = [value for one in schema.get("prefixItems", []) for value in first_fitting(one, root, depth)]
    items = schema.get("items", True)
    count = min(max(schema.get("minItems", 1), 1 if depth < 4 else 0), schema.get("maxItems", 10**4)) - len(fixed)
    if not schema.get("uniqueItems") and count > 0:
        return [fixed + first_fitting(items, root, depth) * count]
    choices = examples(items, root, depth + 1)
    return [fixed + (choices + [f"text {i}" for i in range(count)])[: max(0, count)], fixed]
