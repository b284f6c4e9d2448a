"""A small drawing of a run for the top of the page, which needs no JavaScript."""

from parts.reading.logged_run import LoggedRun
from programs.report.run_curves import thinned

WIDTH, HEIGHT, EDGE = 320, 96, 4


def path_of(points: list[tuple[int, float]], box: tuple[float, float, float, float]) -> str:
    """An SVG path through points; `box` is what they may span: lowest and highest step, lowest and highest value."""
    left, right, low, high = box
    corners = []
    for step, value in points:
        x = EDGE + (step - left) / max(right - left, 1) * (WIDTH - 2 * EDGE)
        y = HEIGHT - EDGE - (value - low) / max(high - low, 1e-12) * (HEIGHT - 2 * EDGE)
        corners.append(f"{x:.1f} {y:.1f}")
    return "M" + "L".join(corners)


def score_range(runs: list[LoggedRun]) -> tuple[float, float]:
    """Lowest and highest score of all runs, so that their drawings have one scale."""
    values = [value for run in runs for value in run.series.get("score", {}).values()]
    return min(values, default=0.0), max(values, default=1.0)


def small_curve(run: LoggedRun, scores: tuple[float, float]) -> dict | None:
    """Paths of the score, in the range of all runs, and of the held-out figure; None without either."""
    found = {name: sorted(run.series.get(name, {}).items()) for name in ("score", "held_out")}
    drawn = {name: thinned(points, 200) for name, points in found.items() if len(points) > 1}
    if not drawn:
        return None
    steps = [step for points in drawn.values() for step, _ in points]
    shares = all(0 <= value <= 1 for _, value in found["held_out"])
    paths, ends = {}, {}
    for name, points in drawn.items():
        values = [value for _, value in points]
        low, high = scores if name == "score" else (0.0, 1.0) if shares else (min(values), max(values))
        paths[name] = path_of(points, (min(steps), max(steps), low, high))
        ends[name] = (f"{values[0]:.3g}", f"{values[-1]:.3g}")
    return {"paths": paths, "ends": ends, "width": WIDTH, "height": HEIGHT, "steps": (min(steps), max(steps))}
