"""How long runs will take: operations at the machine's speed, corrected by finished runs of the same kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from exegete.studies.runs import explainers as explaining
from exegete.studies.runs.speed import USUAL, Speed, known
from exegete.studies.runs.store import Cell, Store
from exegete.studies.spec.sources import Source

if TYPE_CHECKING:
    from exegete.metrics import Metric

STARTING_SECONDS = {"train": 7.0, "judge": 3.0}
BASELINE = 3.0
CRITERIA = {"simulatability": 18.0, "comprehensiveness": 11.0, "sufficiency": 9.0, "consistency": 2.0}
"""Passes of a training step, a backward one counted as two; those that IvRA's criteria add."""
SWAPPED, LONGEST = 110, 512
"""Tokens of a text for each stretch that an attack can swap; tokens that a judged text may have."""
TIMED = 1.06e7
"""Parameters of the layers of the model that a machine's speed is timed with."""

Parts = Mapping[str, Source]


class Estimate(NamedTuple):
    """CPU seconds of work; `measured`: from how many finished runs of the same kinds it is known; whether the machine's
    `speed` was measured.
    """

    seconds: float
    measured: int
    speed: bool = False


class Spent(NamedTuple):
    """CPU seconds that finished runs took, and what they were estimated at without looking at any."""

    seconds: float
    estimated: float


def a_token(model: Source) -> float:
    """Operations of a pass for each token: 2 a parameter; as if more in a small model, whose steps hold little work.

    An operation of a model of a hundredth of the size took about ten times as long.
    """
    return 2 * max(model.parameters, sqrt(TIMED * model.parameters))


def training(train: Source, dev: Source, model: Source, config: Mapping[str, Any]) -> float:
    """Operations of a training run."""
    arguments, length = config["arguments"], config["max_length"] or config["recipe_max_length"]
    epochs, steps = float(arguments.get("num_train_epochs", 3)), arguments.get("max_steps", -1)
    rows = [config["parameters"].get(name) for name in ("student_size", "train_rows")]
    part = min(1.0, *(count / max(len(train.lengths), 1) for count in rows if count)) if any(rows) else 1.0
    if steps > 0:
        epochs = min(epochs, steps * arguments["per_device_train_batch_size"] / max(part * len(train.lengths), 1))
    tokens, once = part * train.tokens(length), _before(config, train)
    each = _passes(config) * tokens + _passes_on_dev(config) * min(dev.tokens(length), tokens)
    return a_token(model) * (epochs * each + once * tokens)


def judging(
    data: Source,
    model: Source,
    explainers: Mapping[str, Mapping[str, Any]],
    metrics: Sequence[Metric],
) -> float:
    """Operations of judging: one pass, each explainer's own, and one for each of its budgets and erasing metrics.

    A metric that removes the same sets for every explainer has one pass for each set.
    """
    tokens = data.tokens(LONGEST)
    erasing = [each for each in metrics if not each.card.needs_rationale]
    passes = 1.0 + sum(getattr(each, "n_masks", 0) for each in erasing)
    erased = sum(max(1, len(getattr(each, "budgets", ()))) for each in erasing if not hasattr(each, "n_masks"))
    passes += explaining.passes(explainers, _mean(data, LONGEST)) + erased * len(explainers)
    return a_token(model) * tokens * passes


def following(data: Source, model: Source, config: Mapping[str, Any], parts: Parts, most: int | None) -> float:
    """Operations of a judgement's protocol, `parts` being the datasets among its options."""
    name, options = config["protocol"]["name"], config["protocol"]["options"]
    passes, tokens = 1.0, data.tokens(LONGEST)
    if name == "attack":
        stretches = _mean(data, LONGEST) / SWAPPED  # a round tries all words for each that is left, and swaps one
        queries = 1 + options["choices"] * stretches * max(1.0, (stretches + 1) / 2)
        passes = min(float(options["budget"] or queries), queries)
    elif name == "simulatability":
        passes = 2.0
    elif name == "select_then_predict":
        passes += explaining.passes({options["explainer"]: {}}, _mean(data, LONGEST))
    elif name == "students":
        pool, groups = parts["pool"], len(config["explainers"])
        epochs = float((options["arguments"] or {}).get("num_train_epochs", 3))
        taught = explaining.passes(config["explainers"], _mean(pool, most)) * pool.tokens(most)
        learned = groups * options["count"] * (epochs * (BASELINE + 1) * pool.tokens(most) + tokens)
        return float(a_token(model) * (taught + learned))
    elif name == "headroom":
        epochs = float((options["arguments"] or {}).get("num_train_epochs", 3))
        lessons = epochs * (BASELINE + 1) * parts["pool"].tokens(most)
        tries = (options["settings"] + 1) * options["count"] * (lessons + parts["dev"].tokens(most))
        return float(a_token(model) * (tries + 2 * options["judged"] * (lessons + tokens)))
    return a_token(model) * tokens * passes


def left(cells: Iterable[Cell], store: Store) -> Estimate:
    """The work of the runs that are not done."""
    ratios, speed = _ratios(store), known(store)
    seconds, used = 0.0, set[str]()
    for cell in cells:
        if not store.done(cell.key):
            group = _group(cell.config)
            used.add(group)
            seconds += seconds_of(cell.config, cell.flops, speed or USUAL) * median(ratios.get(group, [1.0]))
    return Estimate(seconds, sum(len(ratios.get(group, ())) for group in used), speed is not None)


def spent(cells: Iterable[Cell], store: Store) -> Spent:
    """The work of the runs that are done, imported ones left out."""
    records, speed = (store.record(cell.key) for cell in cells), known(store) or USUAL
    done = [record for record in records if _timed(record)]
    estimated = (seconds_of(record["config"], record["flops"], speed) for record in done if record)
    return Spent(sum(record["cpu_seconds"] for record in done if record), sum(estimated))


def seconds_of(config: Mapping[str, Any], operations: float, speed: Speed) -> float:
    """CPU seconds of a run on a machine, those included that every run of its kind takes."""
    kind, low = config["kind"], config.get("arguments", {}).get("bf16")
    a_second = speed.judging if kind != "train" else speed.bfloat16 if low else speed.training
    return STARTING_SECONDS.get(kind, 0.0) + operations / a_second


def in_words(seconds: float) -> str:
    """A duration as text, in seconds, minutes, hours or days."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"


def _ratios(store: Store) -> dict[str, list[float]]:
    """How many times its estimate each finished run took, by kinds of runs."""
    found, speed = dict[str, list[float]](), known(store) or USUAL
    for record in map(store.record, store.finished()):
        if record and _timed(record):
            estimated = seconds_of(record["config"], record["flops"], speed)
            found.setdefault(_group(record["config"]), []).append(record["cpu_seconds"] / estimated)
    return found


def _timed(record: Mapping[str, Any] | None) -> bool:
    return bool(record and record.get("flops") and record.get("cpu_seconds") and not record.get("figures_only"))


def _group(config: Mapping[str, Any]) -> str:
    """The kind of a run: a recipe, a protocol, explanations or none."""
    protocol = config.get("protocol", {}).get("name", "explanations" if config.get("explainers") else "")
    return f"{config['kind']} {config.get('recipe', protocol)}"


def _mean(data: Source, most: int | None) -> int:
    return int(data.tokens(most) / max(len(data.lengths), 1))


def _passes(config: Mapping[str, Any]) -> float:
    """Passes of a training step, by what its recipe does beside the plain one; as steps of MiniLM were timed."""
    name, given = config["recipe"], config["parameters"]
    if name.startswith("er_"):
        plain = given.get("weight") == 0
        return BASELINE if plain else BASELINE + (5.0 if given.get("guide") == "input_x_gradient" else 1.0)
    if name == "regex":  # on a few rows a pass costs more than their share
        terms = 5.0 * bool(given["gradient_weight"]) + 12.0 * bool(given["adversarial_weight"])
        guided = 9.0 + 3.0 * (given["points"] if given["teacher"] == "integrated_gradients" else 1)
        return BASELINE + sqrt(given["share"]) * (terms + guided * bool(given["guidance_weight"]))
    if name == "ivra":
        return BASELINE + sum(passes for each, passes in CRITERIA.items() if each in str(given["criteria"]))
    if name == "smat":
        return BASELINE + {"none": 0.0, "learned": 12.0}.get(str(given["explainer_id"]), 4.0)
    if name == "cite":  # the second derivative, ablations of each example, and the original's pass
        return BASELINE * (3.7 + 0.35 * float(given["masks"]) / int(given["every"]))
    return {"aml": 9.0, "at2": 0.0}.get(name, BASELINE)


def _passes_on_dev(config: Mapping[str, Any]) -> float:
    """Passes on dev after an epoch."""
    return 6.0 if config["recipe"] in ("aml", "ivra") else 1.0


def _before(config: Mapping[str, Any], train: Source) -> float:
    """Passes before training, of explainers that teach."""
    given = config["parameters"]
    if config["recipe"] == "at2":
        return 1.0 + float(given["ablations"])
    taught = given.get("explainer_id")
    single = (None, "none", "learned", "untrained", "untrained_last")
    if config["recipe"] not in ("smat", "fresh") or isinstance(taught, Mapping) or taught in single:
        return 1.0
    return 1.0 + explaining.passes({str(taught): {}}, _mean(train, config["max_length"]))
