"""The weights of a list of rewards."""

import ast
from pathlib import Path

from parts.foundation.messages import UserError, need, say
from parts.rewards.extracts import extract, imports_trainer
from parts.rewards.reward_forms import import_file, is_weight, list_weights, weights_in


def check_import(spec: str, file: str) -> None:
    """Raise UserError for a file that trains when it is imported: a port imports it, here and in every worker."""
    if not Path(file).is_file():
        return
    try:
        body = ast.parse(Path(file).read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError):
        return  # importing it says more
    calls = [line.value.func for line in body if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call)]
    trains = [ast.unparse(call) for call in calls if isinstance(call, ast.Attribute) and call.attr == "train"]
    got = f"got --from {spec!r}: {Path(file).name} calls {', '.join(trains)}() when it is imported"
    need(not trains, f'{got}; expected rewards that import alone; try it below `if __name__ == "__main__":`')


def without_trainer(args, spec: str, file: str, name: str) -> str:
    """The file of --from; of one that imports a trainer, a file beside --output with what the reward needs of it."""
    text = Path(file).read_text(encoding="utf-8") if Path(file).is_file() else ""
    try:
        libraries = imports_trainer(text)
    except (SyntaxError, ValueError):
        return file  # importing it says more
    if not libraries or not args.output:
        return file
    extracted = Path(args.output).with_name(f"{Path(file).stem}_rewards.py")
    own = extract(text, [name, spec.partition("*")[2], *(args.weights or [])])
    same = extracted.is_file() and extracted.read_text(encoding="utf-8") == own
    got = f"got {extracted}, which exists and would hold the rewards of {file}"
    need(args.force or same or not extracted.exists(), f"{got}; expected a new name; try --force")
    extracted.write_text(own, encoding="utf-8")
    say(f"note: {file} imports {', '.join(libraries)}; {extracted} has its rewards alone, keep it beside {args.output}")
    return str(extracted)


def weights_of_list(args, file: str, name: str) -> str:
    """The weights of --from, a function, a preset or a list, as code.

    Raises:
        UserError: a list has no weights, or not one for each of its functions.
    """
    members = vars(import_file("reward", args.source, file))
    found, given = members[name], args.weights
    got = f"got --weights {' '.join(given or [])}"
    if not isinstance(found, list):
        need(
            not given, f"{got} with one function; expected a list of them; try --from {file}:{name}*{(given or '1')[0]}"
        )
        return "[1.0]"
    if hasattr(found, "weights"):
        need(not given, f"{got} with {name}, which has weights of its own, {found.weights}; expected none")
        list_weights(args.source, members, found, "")  # one for each, or its error
        return "source().weights"
    lists, count = weights_in(members), len(found)
    functions = f"a list of {count} functions" if count > 1 else "a list of 1 function"
    if not given:
        named = next((other for other, values in lists.items() if len(values) == count), "")
        advice = f"try --weights {named or ' '.join(['1.0'] * count)}"
        raise UserError(f"got {functions} without weights, {name} of {file}; expected one for each; {advice}")
    if len(given) == 1 and given[0].isidentifier():
        near = (
            f"expected a list of numbers in {file}, such as {', '.join(lists)}" if lists else f"{file} has no such list"
        )
        need(given[0] in lists, f"{got}; {near}")
        need(len(lists[given[0]]) == count, f"{got}, {len(lists[given[0]])} weights, for {functions}; expected {count}")
        return f'source("{given[0]}")'
    try:
        numbers = [float(text) for text in given]
    except ValueError:
        numbers = []
    need(numbers and all(map(is_weight, numbers)), f"{got}; expected numbers, or the name of a list of them in {file}")
    need(len(numbers) == count, f"{got}, {len(numbers)} weights, for {functions}; expected {count}")
    return str(numbers)
