"""report.py: what the page says of a run, of several and of evaluations; in a browser: curves, filters, hostile text.

The browser is Chromium with its driver, from the distribution's packages; without them its tests are skipped.
"""

import base64
import gzip
import html
import json
import math
import random
import re
import shutil
import time

import pytest
from conftest import ROOT, load_script, write_lines

from parts.reading.logged_run import LoggedRun
from parts.reading.sample_files import reward_weights, trl_row
from programs.report.curves import thinned
from programs.report.samples import packed_samples
from programs.report.sources import Source

report = load_script("report")
DATA = ROOT / "tests" / "data" / "diagnose"
PWN = "window.pwned=1"
# text, and how it is seen where that differs
HOSTILE = {
    f"<script>{PWN}</script>": None,
    f"</script><script>{PWN}</script>": None,
    f"<img src=x onerror={PWN}>": None,
    f"<svg onload={PWN}>": None,
    f'"><b onmouseover={PWN} style=position:fixed;inset:0>x': None,
    f'<a href="javascript:{PWN}">x</a>': None,
    "<!-- <script>": None,
    f"]]><script>{PWN}</script>": None,
    "{{ 7 * 7 }}{% raw %}": None,
    f"${{{PWN}}}`+{PWN}+`": None,
    "&lt;script&gt;&amp;amp;": None,
    "\u202egnp.exe\u202c": "U+202Egnp.exeU+202C",
    "a\u200bb\ufeffc\u00ad": "aU+200BbU+FEFFcU+00AD",
    "nul \0 bell \a escape \x1b[31m": "nul U+0000 bell U+0007 escape U+001B[31m",
    "\ud800 alone": "U+D800 alone",
    "x" * 200_000: "x" * 20_000 + " … 80,026 more characters",  # cut at 100,000, and a word about it
    "<style>body{display:none}</style>": None,
    "<base href=//evil.example/><meta http-equiv=refresh content=0;url=//evil.example>": None,
    f"<iframe srcdoc='<script>parent.{PWN}</script>'></iframe>": None,
    "one\u2028two\u2029</noscript></textarea></title>": "oneU+2028twoU+2029</noscript></textarea></title>",
}


def metrics(steps: int, seed: int = 0, **more) -> list[dict]:
    """The log of a run that learns."""
    rows = [{"step": 0, "eval/accuracy": 0.25, "eval/rows": 100.0}]
    for step in range(1, steps + 1):
        row = {"step": step, "reward/mean": step / steps + 0.01 * math.sin(step + seed), "reward/std": 0.4}
        row |= {"policy/entropy": 1.0, "kl/ref": 1e-3 * step, "time/rollout": 3.0, "time/update": 1.0, "optim/lr": 1e-5}
        rows.append(row | {"rollout/tokens_per_s": 100.0, "rollout/length_mean": 9.0, "time/reward": 0.0} | more)
    rows[-1] |= {"eval/accuracy": 0.75, "eval/rows": 100.0}
    return rows


def config(**changes) -> dict:
    """Settings of ppo_train.py."""
    return {"ppo_epochs": 1, "minibatches": 1, "batch_size": 16, "steps": 20, "lr": 1e-5, "seed": 0} | changes


def make_run(folder, rows, settings=None, samples=()) -> None:
    """A run's folder."""
    write_lines(folder / "metrics.jsonl", rows)
    (folder / "config.json").write_text(json.dumps(settings or config()))
    if samples:
        write_lines(folder / "samples.jsonl", samples)


def page_of(tmp_path, *sources, code: int = 0, **flags) -> str:
    """The page of some sources."""
    target = tmp_path / "page.html"
    given = [x for name, value in flags.items() for x in (f"--{name}", str(value))]
    assert report.main([*map(str, sources), "--output", str(target), *given]) == code
    return target.read_text(encoding="utf-8")


def data_in(page: str, name: str) -> dict | list:
    """What a block of the page holds."""
    text = re.search(rf'<script type="text/plain" id="{name}-data">([^<]*)</script>', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(text)))


def seen(page: str) -> str:
    """What a page says without JavaScript, spaces made one."""
    text = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(text).split())


def test_top_says_what_came_of_a_run(tmp_path):
    make_run(tmp_path / "run", metrics(20))
    (tmp_path / "run" / "summary.json").write_text('{"seconds": 90.0}')
    text = seen(page_of(tmp_path, tmp_path / "run"))
    # Wilson 1927, 25 and 75 of 100, worked out by hand: (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n)
    assert "0.250 (0.175 to 0.343) → 0.750 (0.657 to 0.825)" in text
    assert "It ran to its end: step 20 of 20." in text
    assert "time 90 s" in text
    assert "best held out 0.750 at step 20" in text


def test_findings_stand_at_the_top_with_cause_and_remedy(tmp_path):
    page = page_of(tmp_path, DATA / "grpo_hack")
    text, cause = seen(page), report.part_bought
    assert text.index("broken since step 23: part_bought") < text.index(cause.says) < text.index("Curves The curves")
    assert cause.change in text
    marks = data_in(page, "curve")["runs"][0]["findings"]
    assert {"id": "part_bought", "step": 23, "metric": "reward/mean"} not in marks and marks


def test_a_run_that_goes_on_says_how_far_it_is(tmp_path):
    make_run(tmp_path / "run", metrics(12))
    text = seen(page_of(tmp_path, tmp_path / "run"))
    assert "The log ends at step 12 of 20; last written 20" in text


def test_what_was_left_out_of_a_log_stands_on_the_page(tmp_path):
    rows = metrics(20)
    rows[7]["policy/entropy"], rows[9]["policy/entropy"] = math.nan, math.inf
    make_run(tmp_path / "run", rows, samples=[{"step": 1, "completion": "a", "score": 1.0}])
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 21, "reward/me')
    with (tmp_path / "run" / "samples.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "completion": "\xff\xfe<b>", "score": 0.5}\n{"step": 3, "comp')
    page = page_of(tmp_path, tmp_path / "run")
    text = seen(page)
    assert "the last line is torn (line 22)" in text
    assert "policy/entropy is not finite at 2 steps, first at step 7" in text
    assert "samples.jsonl beside it: 1 lines are not JSON (line 3)" in text
    entropy = next(m for m in data_in(page, "curve")["metrics"] if m["name"] == "policy/entropy")["series"][0]
    assert entropy["bad"] == [7, 9] and 7 not in entropy["x"] and len(entropy["x"]) == 18
    assert [row[6] for row in data_in(page, "sample")["rows"]] == ["a", "\ufffd\ufffd<b>"]


def test_settings_that_differ(tmp_path):
    settings = {"a": {"seed": 1, "alone": 1}, "b": {"seed": 2, "alone": 1}, "c": {"seed": 1, "lr": 3e-5}}
    for name, changes in settings.items():
        make_run(tmp_path / name, metrics(20), config(output_dir=name) | changes)
    page = page_of(tmp_path, *(tmp_path / name for name in "abc"))
    text = seen(page)
    assert "seed 1 2 1" in text and "output_dir a" not in text.split("Each run")[0]
    assert "lr 1e-05 1e-05 3e-05 seed 1 2 1 alone 1 1 –" in text
    assert f"python scripts/ppo_train.py --config {tmp_path / 'a' / 'config.json'} --output_dir NEW_FOLDER" in text


RECORDED = ROOT / "tests" / "data" / "report"  # runs of TRL 1.16 and verl 0.9.1


def test_completions_of_trl_are_shown(tmp_path):
    page = page_of(tmp_path, RECORDED / "trl")
    found = data_in(page, "sample")
    rows, text = found["rows"], seen(page)
    assert len(rows) == 3 * 16 and {row[1] for row in rows} == {2, 4, 6}
    # read with pyarrow by hand: the sixth row of the first table
    assert rows[5][:7] == [0, 2, "train", None, 1, 1, "<answer>170</answer>"]
    assert rows[5][7] == {"correct": 0, "well_formed": 1, "brief": 0}
    assert rows[5][8] == {"advantage": pytest.approx(-0.49990, abs=1e-5)}
    assert found["prompts"][1] == [{"role": "user", "content": "99+81="}]
    assert "do not state the rewards' weights" in text
    assert "It ran to its end: step 6 of 6" in text and "train_batch_size" in text
    assert "time 3.15 s" in text  # means of two steps each: 2 x (0.5544 + 0.5175 + 0.5053)


def test_dumps_of_verl_are_shown(tmp_path):
    page = page_of(tmp_path, RECORDED / "verl")
    rows = data_in(page, "sample")["rows"]
    kinds = {(row[1], row[2]) for row in rows}
    assert kinds == {(0, "eval"), (1, "eval"), (2, "eval"), (1, "train"), (2, "train")}
    first = next(row for row in rows if row[2] == "eval")
    assert first[3] == 1.2 and first[6] == "<answer>118</answer>" and first[8] == {"ground truth": "118"}
    assert first[7] == {"reward": 1.2, "correct": 1, "tidy": 1}
    curves = {m["name"]: m["group"] for m in data_in(page, "curve")["metrics"]}
    assert any(name.startswith("val-core/") and group == "Look first" for name, group in curves.items())


def test_weights_of_trls_rewards_where_settings_tell_them():
    rng = random.Random(0)
    means = [{f"rewards/{name}/mean": rng.random() for name in "ab"} for _ in range(5)]
    columns = {key: {i: row[key] for i, row in enumerate(means)} for key in means[0]}
    for weight, config, expected in (
        (1.0, {}, {"a": 1.0, "b": 1.0}),
        (0.2, {"reward_weights": [1.0, 0.2]}, {"a": 1.0, "b": 0.2}),
        (0.2, {}, None),
        (0.3, {"reward_weights": [1.0, 0.2]}, None),
    ):
        total = {i: row["rewards/a/mean"] + weight * row["rewards/b/mean"] for i, row in enumerate(means)}
        run = LoggedRun("log", "trainer_state.json", "trl", columns | {"reward": total}, config=config)
        assert reward_weights(run) == expected
    row = {"step": 1, "prompt": "p", "completion": "c", "a": 2.0, "b": math.nan, "note": "x", "advantage": 0.5}
    assert trl_row(row, {"a": 1.0, "b": 0.2})["score"] == 2.0 and trl_row(row, None)["score"] is None


def test_conversations_of_trl_have_their_turns():
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    turns = [call, {"role": "tool", "content": "4"}, {"role": "assistant", "content": "It is 4."}]
    prompt = [{"role": "user", "content": "2+2="}]
    found = trl_row({"step": 1, "prompt": prompt, "completion": turns, "advantage": 0.0}, {})
    assert found["messages"] == prompt + turns and found["completion"] == "It is 4."
    assert "messages" not in trl_row({"step": 1, "prompt": prompt, "completion": turns[2:], "advantage": 0.0}, {})


def test_dumps_that_are_torn_or_no_dumps_are_said(tmp_path):
    folder = tmp_path / "verl"
    shutil.copytree(RECORDED / "verl", folder)
    with (folder / "samples" / "2.jsonl").open("a") as file:
        file.write('{"input": "a", "outp\n[1]\n{"score": 1}\n')
    (folder / "notes").mkdir()
    (folder / "notes" / "readme.jsonl").write_text("{}")
    page, text = page_of(tmp_path, folder), "2.jsonl beside it: 2 lines are not JSON"
    assert text in seen(page) and "verl's dumps of samples: 1 lines are not samples; left out" in seen(page)
    assert len(data_in(page, "sample")["rows"]) == 3 * 8 + 2 * 32
    folder = tmp_path / "trl"
    shutil.copytree(RECORDED / "trl", folder)
    (folder / "completions" / "completions_00004.parquet").write_bytes(b"PAR1 torn")
    page = page_of(tmp_path, folder)
    assert "completions_00004.parquet beside it has no rows" in seen(page)
    assert len(data_in(page, "sample")["rows"]) == 32


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(tmp_path, capsys):
    make_run(tmp_path / "run", metrics(20))
    (tmp_path / "empty").mkdir()
    assert "not readable" in seen(page_of(tmp_path, tmp_path / "run", tmp_path / "empty", code=2))
    assert "with no log" in capsys.readouterr().err
    assert report.main([str(tmp_path / "empty")]) == 2 and not (tmp_path / "empty" / "report.html").exists()


def test_only_a_page_of_ours_is_replaced(tmp_path, capsys):
    make_run(tmp_path / "run", metrics(20))
    page_of(tmp_path, tmp_path / "run")
    page_of(tmp_path, tmp_path / "run")
    (tmp_path / "page.html").write_text("mine")
    assert report.main([str(tmp_path / "run"), "--output", str(tmp_path / "page.html")]) == 2
    assert "is not a page of this program" in capsys.readouterr().err and (tmp_path / "page.html").read_text() == "mine"


def evaluation(folder, right: list[int]) -> None:
    """What evaluation.py leaves of a task of right and wrong answers."""
    n = len(right)
    metric = {"value": sum(right) / n, "stderr": None, "ci95": [0.1, 0.6], "n": n, "of": n}
    values = {"top": right, "bottom": None, "exp": False, "higher_is_better": True}
    task = {"metrics": {"accuracy": metric}, "definition": "d", "keys": [f"k{i}" for i in range(n)]}
    folder.mkdir()
    model = {"name": folder.name}
    found = {"tasks": {"sums": task | {"values": {"accuracy": values}}}, "model": model}
    (folder / "results.json").write_text(json.dumps(found))
    row = {"task": "sums", "prompt": "1+1=", "completion": "2", "metrics": {"accuracy": 1.0}, "finish": "stop"}
    write_lines(folder / "samples.jsonl", [row])


def test_evaluations_with_intervals_and_the_paired_test(tmp_path):
    evaluation(tmp_path / "before", [0] * 9 + [1])
    evaluation(tmp_path / "after", [1] * 10)
    page = page_of(tmp_path, tmp_path / "before", tmp_path / "after")
    text = seen(page)
    assert "sums accuracy 0.1 0.1 to 0.6 10" in text and "Curves" not in text
    assert "p = 0.0039 (exact McNemar, 10 rows, 9 rows better, 0 worse)" in text  # 2 / 2^9
    assert [row[:5] for row in data_in(page, "sample")["rows"]] == [[i, None, "sums", 1, 1] for i in (0, 1)]
    assert len(page) < 200_000  # no curves, no library


def test_samples_are_thinned_by_groups_and_held_out_ones_stay():
    digits = [str(math.sin(i))[3:] * 4 for i in range(4000)]
    train = [{"step": i // 40, "kind": "train", "prompt": f"p{i // 8}", "completion": digits[i]} for i in range(4000)]
    held_out = [{"step": step, "kind": "eval", "prompt": "h", "completion": digits[step]} for step in (0, 50, 99)]
    source = Source("run", ROOT, samples=[*train, *held_out])
    data, kept = packed_samples([source], 30_000)
    rows = json.loads(gzip.decompress(base64.b64decode(data)))["rows"]
    assert 10_000 < len(data) <= 30_000 and len(rows) == kept < 4000
    groups = {}
    for row in rows:
        groups.setdefault((row[1], row[2], row[5]), []).append(row)
    assert {len(group) for key, group in groups.items() if key[1] == "train"} == {8}
    assert {key[0] for key in groups if key[1] == "eval"} >= {0, 99}
    assert {step for step, kind, _ in groups if kind == "train" and step < 20} and max(groups)[0] > 80  # all along
    everything, count = packed_samples([source], 1e9)
    assert count == 4003 and len(everything) > 60_000


def test_long_curves_keep_their_extremes():
    points = [(i, 0.0) for i in range(10_000)]
    points[1234], points[7777] = (1234, 9.0), (7777, -9.0)
    kept = thinned(points)
    assert len(kept) <= 2000 and {(1234, 9.0), (7777, -9.0)} <= {*kept} and kept == sorted(kept)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Headless Chromium, driven by selenium."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("no chromium and chromedriver; sh tools/browser.sh installs them on Debian")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    quiet = ("background-networking", "component-update", "sync", "quic", "gpu")
    folder = tmp_path_factory.mktemp("chromium")
    for flag in ("headless", "no-sandbox", "no-first-run", f"user-data-dir={folder}", *(f"disable-{x}" for x in quiet)):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    chrome.set_script_timeout(120)
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A page of two seeds and a third run, with hostile text wherever a run may put some."""
    folder = tmp_path_factory.mktemp("site")
    names = [f"<img src=x onerror={PWN}>", "second", "third"]
    texts = [*HOSTILE]
    samples = [
        {"step": 1 + i // 4, "kind": "train", "prompt": texts[-1 - i // 4], "completion": text, "score": float(i)}
        | {"rewards": {texts[2]: i / 10, "odd": math.nan}, "finished": i != 3, "note": texts[i - 1][:99]}
        for i, text in enumerate(texts)
    ]
    talk = [{"role": "user", "content": texts[0]}, {"role": texts[1], "content": texts[2]}]
    called = [{"function": {"name": texts[3], "arguments": {"a": texts[4]}}}]
    call = {"role": "assistant", "content": "", "tool_calls": called}
    said = [{"sampled": True, "text": f"\U0001f600{texts[0]}<|end|>"}, {"sampled": False, "text": texts[1]}]
    said.append({"sampled": True, "text": "ab<|end|>"})
    last = {"prompt": talk, "messages": [*talk, call], "pieces": said, "completion": ""}
    samples.append(last | {"step": 9, "kind": "train", "score": 0.5, "advantage": -0.25})
    samples.append({"step": 9, "kind": "train", "prompt": "t", "completion": "to", "score": 0.5})
    samples[4] |= {"turn_rewards": [math.inf, None], "huge": 10**400, "__proto__": {"score": 1}}
    samples[5]["step"] = math.nan
    for step, said in ((0, "the answer is five"), (20, "the answer is <b>four</b>")):
        entry = {"step": step, "kind": "eval", "prompt": "2+2=", "completion": said, "score": step / 20}
        samples.append(entry)
    for i, name in enumerate(names):
        settings = config(seed=i, data=texts[1], lr=1e-5 if i < 2 else 3e-5)
        make_run(folder / name, metrics(20, i, **{f"reward/{texts[2]}": 1.0}), settings, samples if i == 0 else ())
    page_of(folder, *(folder / name for name in names))
    return folder / "page.html"


def wait(browser, script: str, what: str, *arguments):
    """What a script returns, once that is something."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found = browser.execute_script(f"return {script}", *arguments)
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {what}: {browser.get_log('browser')}")


def visit(browser, page, width: int = 1300, height: int = 900) -> None:
    """Open a page and wait for its curves to be ready; they are drawn when they are near."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    wait(browser, "document.querySelectorAll('figure.chart').length", "chart")


def open_samples(browser) -> None:
    """Bring the table of samples into sight."""
    browser.execute_script("byId('samples').scrollIntoView()")
    wait(browser, "byId('sample-count') && byId('sample-count').textContent", "table")


def ask(browser, **values) -> str:
    """Set filters as a person does; the count that is then shown."""
    browser.execute_script("byId('sample-count').textContent = ''; byId('filters').reset()")
    for name, value in values.items():
        browser.execute_script("byId('filters').elements[arguments[0]].value = arguments[1]", name, value)
    browser.execute_script("byId('filters').dispatchEvent(new Event('input', {bubbles: true}))")
    wanted = "byId('sample-count').textContent"
    wait(browser, wanted, "count")
    time.sleep(0.3)  # both the reset and the input have their say
    return browser.execute_script(f"return {wanted}")


def test_page_has_curves_of_all_runs_and_no_error(browser, site):
    from selenium.webdriver import ActionChains

    visit(browser, site)
    plot = browser.find_element("css selector", "[data-metric='reward/mean'] .plot")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    lines = "document.querySelectorAll(\"[data-metric='reward/mean'] .scatterlayer .js-line\").length"
    assert wait(browser, lines, "lines") == 3  # a line for each run
    ActionChains(browser).move_to_element(plot).perform()
    hover = wait(browser, "document.querySelector('#plots .hoverlayer .legend')?.textContent", "hover text")
    assert "third" in hover and "<img" in hover
    browser.execute_script("byId('curves-smooth').value = 0.9; byId('curves-smooth').dispatchEvent(new Event('input'))")
    ends = "arguments[0]._fullData.filter(t => t.opacity === 1).map(t => t.y[19])"
    smooth = browser.execute_script(f"return {ends}", plot)
    raw = [row["reward/mean"] for row in metrics(20)[1:]]
    weights = [0.9 ** (19 - i) for i in range(20)]
    expected = sum(w * y for w, y in zip(weights, raw, strict=True)) / sum(weights)
    assert len(smooth) == 3 and smooth[0] == pytest.approx(expected, rel=1e-4)  # its points have six digits
    assert browser.get_log("browser") == []


def test_filters_groups_and_held_out_prompts_before_and_after(browser, site):
    from selenium.webdriver.common.keys import Keys

    visit(browser, site)
    open_samples(browser)
    assert ask(browser) == "24 samples"
    assert ask(browser, text="IFRAME") == "5 of 24"  # one completion, and a prompt of four
    assert ask(browser, low="5", high="7") == "3 of 24"
    assert ask(browser, stepLow="9", stepHigh="9") == "2 of 24"
    assert ask(browser, kind="eval") == "2 of 24"
    assert ask(browser, reward=f"<img src=x onerror={PWN}>", rewardLow="1.85") == "1 of 24"
    ask(browser, stepLow="1", stepHigh="1")
    browser.find_element("id", "row-3").click()
    cards = "[...document.querySelectorAll('#sample-detail .side > .box')].map(b => b.textContent)"
    group = browser.execute_script(f"return {cards}")
    assert len(group) == 4 and "score 3" in group[3] and "cut off" in group[3]
    assert "+1.5 from the mean of these" in group[3]
    assert browser.execute_script("return document.querySelector('tr[aria-selected=true]').id") == "row-3"
    ask(browser, stepLow="9", stepHigh="9")
    browser.find_element("id", "row-0").send_keys(Keys.ENTER)
    said = browser.execute_script("return byId('sample-detail').textContent")
    assert all(text in said for text in [*HOSTILE][:4]) and "calls" in said
    before = "[...document.querySelectorAll('#browser button')].find(b => /before/.test(b.textContent))"
    browser.execute_script(f"{before}.click()")
    pairs = browser.execute_script("return [...document.querySelectorAll('#browser .pair')].map(x => x.textContent)")
    assert pairs == ["before, step 0: score 0the answer is fiveafter, step 20: score 1the answer is <b>four</b>"]
    assert browser.get_log("browser") == []


def test_hostile_text_is_shown_and_never_runs(browser, site):
    visit(browser, site)
    open_samples(browser)
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert ask(browser) == "24 samples"
    texts = browser.execute_script(
        "return samples.found.slice(0, 20).map((_, i) => { choose(i); "
        "return document.querySelector('#sample-detail .chosen > div pre').textContent; })"
    )
    assert texts == [text if as_seen is None else as_seen for text, as_seen in HOSTILE.items()]
    last = browser.execute_script("return document.querySelector('#sample-detail .chosen p').textContent")
    assert last == f"<img src=x onerror={PWN}> 1.9 · odd – · +1.5 from the mean of these · note: {texts[18]}"
    assert browser.execute_script("return [window.pwned, document.title.includes('<img')]") == [None, True]
    inside = "#main script, #main img, #main iframe, #main base, #main style, #main a[href^=java], [onerror], [onload]"
    assert browser.execute_script("return document.querySelectorAll(arguments[0]).length", inside) == 0
    assert browser.get_log("browser") == []  # the policy had nothing to refuse either


def test_a_script_that_got_into_the_page_would_not_run(browser, site, tmp_path):
    """The policy holds where escaping would fail."""
    got_in = f"<img src=x onerror={PWN}><script>{PWN}</script></main>"
    page = site.read_text(encoding="utf-8").replace("</main>", got_in)
    (tmp_path / "broken.html").write_text(page, encoding="utf-8")
    visit(browser, tmp_path / "broken.html")
    assert browser.execute_script("return window.pwned") is None
    assert sum("Content Security Policy" in entry["message"] for entry in browser.get_log("browser")) >= 2
