"""The checks of an environment and the verdict."""

import math
import re
import statistics
from collections import Counter
from dataclasses import dataclass

from programs.reward_preflight.environment_process import EnvironmentProcess
from programs.reward_preflight.policies import POLICIES, gold_scripts, shared_scripts
from programs.reward_preflight.preflight import Findings
from programs.reward_preflight.thresholds import AGAIN_ROWS, GIVE_UP, PAYING_ROWS, POLICY_ROWS, SLOW_S, TRIAL_ROWS

OUTCOME = ("return", "turns", "calls", "failures", "ended_by", "turn_rewards")  # what has to be the same again
STOPS_A_RUN = "bear whatever a model may say: bound it, catch what it makes raise, return a finite number"
CAUSES = {
    "shared_state": (
        "something outlives a conversation, such as an attribute of the class or a name of the module",
        "make all state in reset, on self; share only what nothing writes to",
    ),
    "not_deterministic": (
        "chance, time or the outside has a part in it",
        "draw nothing in the environment: let a column of the row say it",
    ),
}


@dataclass
class Played:
    """A conversation of a scripted policy: what it came to, or the problem that ended it."""

    policy: str
    row: dict
    script: list[str] | None  # None: --policy says it
    outcome: dict | None = None
    problem: str = ""

    @property
    def paid(self) -> float | None:
        """Its return."""
        return self.outcome["return"] if self.outcome else None


class EnvironmentPreflight:
    """Plays scripted policies, and looks at what they are paid, what fails, and what is not the same again."""

    def __init__(self, args, rows: list[dict], process: EnvironmentProcess):
        self.args, self.rows, self.process = args, rows, process
        self.findings, self.spent, self.causes = Findings(), Counter(), {}
        self.places = {row["number"]: place for place, row in enumerate(rows)}
        self.kinds = process.functions["of_rows"]
        self.report = {"environment": args.environment, "reward": args.reward, "data": args.data}
        self.report |= {"rows": len(rows), "seed": args.seed}

    def run(self) -> dict:
        """All checks; returns the report with the verdict."""
        if self.args.tokenizer:
            self.check_template()
        golds, step = self.gold(), max(1, len(self.rows) // POLICY_ROWS)
        rows, kinds = self.rows[::step][:POLICY_ROWS], self.kinds[::step][:POLICY_ROWS]
        plays_of = {"gold": golds} if golds else {}
        for name in POLICIES:
            plays_of[name] = self.played(name, shared_scripts(rows, kinds, name, self.args))
        few = [play for name in plays_of if name != "injection" for play in plays_of[name][:AGAIN_ROWS]]
        few = [play for play in few if play.outcome and not play.outcome["hung"]]
        self.again(few)
        self.together(few)
        self.reused(few)
        self.report["policies"] = [self.line(name, plays, golds) for name, plays in plays_of.items() if plays]
        return self.report | self.findings.verdict()

    # ---- playing

    def find(self, check: str, message: str, play: Played | None, advice: str, failed: bool = True) -> None:
        """Add a finding."""
        extra = {"row": play.row["number"], "policy": play.policy} if play else {}
        self.findings.add(check, message, failed, advice, extra)

    def job(self, play: Played) -> dict:
        """What the environment's process is told of a conversation."""
        return {"row": self.places[play.row["number"]], "script": play.script}

    def played(self, policy: str, pairs: list[tuple]) -> list[Played]:
        """Play (row, script) pairs one after the other."""
        plays = [Played(policy, row, script) for row, script in pairs]
        for play in plays:
            if self.spent["lost"] >= GIVE_UP:
                play.problem = f"not played after {GIVE_UP} conversations that hung or died"
                continue
            reply = self.process.play([self.job(play)])
            if "talks" in reply:
                play.outcome = reply["talks"][0]
                self.look_at_tools(play)
            else:
                self.note_problem(play, reply)
        return plays

    def note_problem(self, play: Played, reply: dict) -> None:
        """A finding about a conversation that came to no end."""
        check = next(kind for kind in ("fault", "hung", "died") if kind in reply)
        self.spent["lost"] += check != "fault"
        text = re.sub(r"row \d+ of the batch", f"row {play.row['number']}", reply[check])
        where = f" ({reply['where']})" if reply.get("where") else ""
        play.problem = f"{text}{where}"
        advice = {
            "fault": STOPS_A_RUN,
            "hung": "bound the work of reset, reply and get_reward; --timeout_s for more time",
            "died": "never run in this process what a model wrote: use a process of its own, such as sandbox.py",
        }[check]
        self.find(check, play.problem if check == "fault" else f"a conversation {play.problem}", play, advice)

    def look_at_tools(self, play: Played) -> None:
        """A finding about tools that gave no answer in time."""
        for name in dict.fromkeys(play.outcome["hung"]):
            self.spent["lost"] += 1
            message = (
                f"tool {name} gave no answer in {self.args.tool_timeout:g} s: each such call costs a step that time"
            )
            self.find("hung_tool", message, play, "a limit within the tool; --tool_timeout for more time")

    # ---- gold

    def gold(self) -> list[Played]:
        """Play what should have full marks, in the variant that is paid best."""
        if self.args.policy:
            golds, order = self.played("gold", [(row, None) for row in self.rows]), [f"--policy {self.args.policy}"]
        else:
            scripts = [gold_scripts(row, kind, self.args) for row, kind in zip(self.rows, self.kinds, strict=True)]
            order = self.ranked(scripts)
            chosen = [next((variants[name] for name in order if name in variants), None) for variants in scripts]
            pairs = [(row, script) for row, script in zip(self.rows, chosen, strict=True) if script]
            golds = self.played("gold", pairs)
        if not golds:
            message = "no row has gold answers, so what other policies are paid is compared with full marks"
            advice = (
                "a column gold with the answers of each turn, a text or a call {name, arguments}; or --policy FILE.py:f"
            )
            self.find("gold", message, None, advice, failed=False)
            self.report["gold"] = None
            return []
        self.judge_gold(golds, order)
        return golds

    def ranked(self, scripts: list[dict]) -> list[str]:
        """Names of the variants of gold, the best first: they are tried on the first rows."""
        names = list(dict.fromkeys(name for variants in scripts for name in variants))
        if len(names) < 2:
            return names
        figures, trial = {}, list(zip(self.rows, scripts, strict=True))
        for name in names:
            jobs = [
                {"row": self.places[row["number"]], "script": variants[name]}
                for row, variants in trial
                if name in variants
            ]
            replies = [self.process.play([job]) for job in jobs[:TRIAL_ROWS]]
            paid = [outcome["return"] for reply in replies for outcome in reply.get("talks", ())]
            full = sum(value >= self.full() for value in paid)
            figures[name] = (-full, -statistics.fmean(paid) if paid else math.inf)
        return sorted(names, key=figures.__getitem__)

    def full(self) -> float:
        """The return from which a conversation has full marks."""
        score = 1.0 if self.args.full_score is None else self.args.full_score
        return score * (self.args.full_share if score > 0 else 1.0) - 1e-6

    def judge_gold(self, golds: list[Played], order: list[str]) -> None:
        """Findings about gold that is not paid, or whose calls fail."""
        paid = [play.paid for play in golds if play.outcome]
        full = sum(value >= self.full() for value in paid) / len(golds)
        self.report["gold"] = {"variant": order[0], "rows": len(golds), "full_marks": full}
        if full < self.args.min_recall:
            message = (
                f"of {len(golds)} gold conversations {full:.1%} have full marks, the share that eval/accuracy counts"
            )
            advice = "another gold: --gold_template, --gold_column, --policy"
            if paid and max(paid) > 0 and not full:
                advice += f"; --full_score {max(paid):g} if more is not meant to be reached"
            self.find("gold", message, None, advice)
        for play in [p for p in golds if p.outcome and p.paid < self.full()][:2]:
            reasons = play.outcome["errors"][:1] or [f"it ended by {play.outcome['ended_by']}"]
            message = f"gold is paid {play.paid:g} after {play.outcome['turns']} turns: {reasons[0]}"
            self.find("gold", message, play, "look at this row", failed=full < self.args.min_recall)
        failed = [play for play in golds if play.outcome and play.outcome["failures"]]
        if failed:
            message = (
                f"calls of {len(failed)} of {len(golds)} gold conversations fail: {failed[0].outcome['errors'][0]}"
            )
            self.find("gold_calls", message, failed[0], "a gold that calls the tools as they are", failed=False)

    # ---- the same again

    def again(self, plays: list[Played]) -> None:
        """Play conversations a second time: they have to be the same."""
        for play in plays:
            reply = self.process.play([self.job(play)])
            self.compare(play, reply, "when it is played again")

    def together(self, plays: list[Played]) -> None:
        """Play conversations all at once, turn by turn: they have to be what each is alone."""
        if len(plays) < 2:
            return
        reply = self.process.play(list(map(self.job, plays)), limit_s=self.process.timeout_s * len(plays) / 4)
        for i, play in enumerate(plays):
            one_reply = {"talks": reply["talks"][i : i + 1]} if "talks" in reply else reply
            self.compare(play, one_reply, "beside others, turn by turn")
            if "talks" not in reply:  # one finding for all
                return

    def reused(self, plays: list[Played]) -> None:
        """Play a conversation with an object that has served another one, as with TRL: reset has to begin anew."""
        if self.causes:
            return
        by_kind = {}
        for play in plays:
            by_kind.setdefault(self.kinds[self.places[play.row["number"]]]["name"], []).append(play)
        for plays_of_kind in by_kind.values():
            outcomes = self.process.play([self.job(plays_of_kind[-1]), self.job(plays_of_kind[0])], reuse=True).get(
                "talks"
            )
            names = differs(plays_of_kind[0].outcome, outcomes[1]) if outcomes else ["raises"]
            if names:
                message = f"an object's second conversation is not like its first ({', '.join(names)})"
                self.find(
                    "reset",
                    message,
                    plays_of_kind[0],
                    "set every attribute in reset: TRL uses objects again",
                    failed=False,
                )

    def compare(self, play: Played, reply: dict, how: str) -> None:
        """A finding where a conversation is another one than before."""
        if "talks" not in reply:
            loss = next(str(reply[kind]) for kind in ("fault", "hung", "died") if kind in reply)
            return self.name_cause(play, f"is lost {how}: {loss}", True)
        outcome = reply["talks"][0]
        names = differs(play.outcome, outcome)
        if names:
            message = ", ".join(f"{name} {play.outcome[name]} becomes {outcome[name]}" for name in names)
            self.name_cause(play, f"changes {how}: {message}", True)
        elif outcome["said"] != play.outcome["said"]:
            self.name_cause(play, f"says other words {how}", False)
        return None

    def name_cause(self, play: Played, message: str, failed: bool) -> None:
        """Add a finding that says whether chance or what another conversation left behind is the cause."""
        if failed not in self.causes:  # the first of its kind is played in two new processes
            alone = []
            for _ in range(2):
                with EnvironmentProcess(self.args, self.rows) as fresh:
                    alone += fresh.play([self.job(play)]).get("talks", [])
            same = len(alone) == 2 and all(alone[0][name] == alone[1][name] for name in (*OUTCOME, "said"))
            self.causes[failed] = "shared_state" if same else "not_deterministic"
        cause, advice = CAUSES[self.causes[failed]]
        self.find(self.causes[failed], f"a conversation {message}; {cause}", play, advice, failed)

    # ---- what is paid

    def line(self, name: str, plays: list[Played], golds: list[Played]) -> dict:
        """One line of the table of policies, with its findings."""
        known = [play for play in plays if play.outcome]
        paid, turns = [play.paid for play in known], sum(play.outcome["turns"] for play in known)
        line = {"name": name, "conversations": len(plays), "problems": len(plays) - len(known)}
        line |= dict(zip(("mean", "min", "max"), three(paid), strict=True))
        for key in ("turns", "calls", "failures", "seconds"):
            line[key] = statistics.fmean(play.outcome[key] for play in known) if known else None
        line["limit"] = sum(p.outcome["ended_by"] in ("turns", "tokens") for p in known) / len(known) if known else None
        seconds = sum(play.outcome["seconds"] for play in known) / max(1, turns)
        if seconds > SLOW_S and name != "injection":
            message = f"tools and replies take {seconds:.1f} s a turn with the policy {name}"
            self.find(
                "latency", message, None, "bound the work of a call; tools of a step run side by side", failed=False
            )
        return line | self.shares(name, known, golds)

    def shares(self, name: str, known: list[Played], golds: list[Played]) -> dict:
        """How a policy's returns compare with gold's; findings where they are too high."""
        if name == "gold":
            return {"share": 1.0, "allowed": None, "status": "", "what": "What should have full marks."}
        allowed, what = self.args.allow.get(name, POLICIES[name][0]), POLICIES[name][1].__doc__
        best = {play.row["number"]: play.paid for play in golds if play.outcome}
        usual = statistics.fmean(best.values()) if best else self.full()
        every = [play.paid for play in known]
        floor = 0.0 if usual > 1e-9 else min([0.0, usual, *every])
        line = {"share": None, "allowed": allowed, "status": "n/a", "what": what}
        if not known or usual - floor < 1e-9:
            return line
        golds_of = [best.get(play.row["number"], usual) for play in known]
        golds_of = [gold if gold - floor > 1e-9 else usual for gold in golds_of]
        shares = [(play.paid - floor) / (gold - floor) for play, gold in zip(known, golds_of, strict=True)]
        line["share"] = (statistics.fmean(every) - floor) / (usual - floor)
        paying = sorted(((s, i) for i, s in enumerate(shares) if s > allowed + 1e-6), reverse=True)
        failed = line["share"] > allowed + 1e-6 or len(paying) > PAYING_ROWS * len(shares)
        for share, i in paying[:3]:
            text = f"pays {share:.0%} of gold's return, {allowed:.0%} allowed, for: {what[0].lower()}{what[1:-1]}"
            advice = f"pay for what was asked alone, or --allow {name}={math.ceil(100 * share) / 100:g} if it is meant"
            self.find(name, text, known[i], advice, failed)
        return line | {"status": "FAIL" if failed and paying else "warning" if paying else "pass"}

    # ---- template

    def check_template(self) -> None:
        """A finding where a model's chat template cannot go on turn by turn, or shows no form of calls."""
        reply = self.process.told("template", {})
        if "tool_format" in reply:
            self.report["tool_format"] = reply["tool_format"]
            return
        loss = next(str(reply[kind]) for kind in ("fault", "hung", "died") if kind in reply)
        message, _, advice = loss.rpartition("; try ")
        self.find("template", message or loss, None, advice)


def differs(one: dict, two: dict) -> list[str]:
    """Names of what two outcomes do not share."""
    return [name for name in OUTCOME if one[name] != two[name]]


def three(values: list[float]) -> tuple:
    """Mean, least and greatest; None without values."""
    return (statistics.fmean(values), min(values), max(values)) if values else (None, None, None)
