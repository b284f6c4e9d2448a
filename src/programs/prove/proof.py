"""What a proof says: figures, sentences, what was found against the thing and what was not measured."""

from dataclasses import dataclass, field


@dataclass
class Proof:
    """The outcome for one thing."""

    kind: str
    thing: str
    figures: dict = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)

    def say(self, sentence: str) -> None:
        """Add a sentence that can be quoted."""
        self.sentences.append(sentence)

    def find(self, finding: str) -> None:
        """Add a finding against the thing."""
        self.findings.append(finding)

    def skip(self, what: str, why: str) -> None:
        """Note, as a sentence too, what could not be measured."""
        self.not_measured.append(f"{what}: {why}")
        self.say(f"{what} was not measured: {why}.")


def shown(values, digits: int = 3) -> str:
    """Numbers as `0.434 to 0.910`, one number as it is."""
    return " to ".join(f"{x:.{digits}f}" for x in (values if isinstance(values, list | tuple) else [values]))
