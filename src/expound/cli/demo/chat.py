"""`expound demo --model MODEL`: a chat model answers questions on four documents, each answer with its source."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expound.cli.shared.console import say

if TYPE_CHECKING:
    from expound.reports.explanations import Explanation

DOCUMENTS = {
    "hours": "The museum opens at nine in the morning and closes at six in the evening. On Mondays it stays closed.",
    "tickets": "A ticket costs twelve euros. Children under ten pay nothing, and guided tours cost five euros more.",
    "café": "The café on the second floor serves soup and fresh bread until three in the afternoon.",
    "history": "The museum was built in 1892 by Clara Weiss, an architect from Prague, who had won a competition.",
}
QUESTIONS = ("How much does a ticket cost?", "Who built the museum?", "When does the museum open?")
FORM = "Answer in one short sentence."
LONGEST = 24
MOST_TIMES = 1_000_000


def run(folder: Path, source: str, device: str | None) -> None:
    """Write the documents, ask the questions, print each answer with its source, and write them as a page."""
    import expound

    documents = folder / "documents"
    documents.mkdir(parents=True, exist_ok=True)
    for name, text in DOCUMENTS.items():
        (documents / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
    model: Any = expound.load(source, device=device, task="generation")
    chats = []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": f"{{sources}}\n\n{question} {FORM}"}]
        chats.append({"messages": messages, "sources": DOCUMENTS})
    answered = model.respond(chats, LONGEST)
    results = expound.attribute(model, answered, "occlusion?output=log_prob", "sentences", unit="source")
    for question, result in zip(QUESTIONS, results, strict=True):
        say(f"\n{question}")
        for row, target in enumerate(result.targets):
            say(f"  {target.text.strip()}\n    {_describe_source(result, row)}")
    results.to_html(folder / "answers.html")
    say(f"\ndocuments: {documents}\npage: {folder / 'answers.html'}")


def _describe_source(result: Explanation, row: int) -> str:
    """Return a sentence's best source, what the sentence loses without it, and its tokens' mean probability."""
    source, drop = result.top(1, row)[0]
    sure = f"mean probability of a token: {result.targets[row].mean_probability:.2f}"
    if drop <= 0:
        return f"no source: no document makes it likelier; {sure}"
    times = f"more than {MOST_TIMES:,}"
    if drop < math.log(MOST_TIMES):
        times = f"{math.exp(drop):,.0f}"
    return f"source: {source} (without it {times} times less likely); {sure}"
