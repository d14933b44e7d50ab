"""Judges the models that `regularisation.py` trained, trains FRESH's predictors, and writes the tables.

In domain: SST dev. Out of domain: Movies, its first 256 tokens, and customer reviews. What is finished is kept.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from sklearn.metrics import f1_score

import exegete
from exegete.explainers.attribute import batches
from exegete.models import ExplainedModel
from exegete.models.labels import in_model_labels
from exegete.objectives import ExplanationLoss, Moment
from exegete.recipes import RECIPES, rationales
from exegete.recipes.guidance import guided
from exegete.studies.regularisation import TECHNIQUES, across, explained, foretells, within
from exegete.training.module import TrainingModule
from regularisation import ARGUMENTS, DATA, DEV, GUIDES, SEEDS, SENTENCES, approaches, encoder

MARK = "<!-- tables -->"
OOD = ("movies", "reviews")
CHOOSERS = ("random", *TECHNIQUES)
FAST = ("attention_last", "attention_rollout", "input_x_gradient")


def main() -> None:
    """Judges every finished model, then writes what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the trained models")
    parser.add_argument("--fresh-seeds", default="0")
    parser.add_argument("--sweep", action="store_true", help="train with larger weights, too")
    parser.add_argument("--output", type=Path, required=True, help="the tables, as Markdown; text before a mark stays")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("exegete").setLevel(logging.ERROR)
    for seed in SEEDS:
        for name in approaches():
            folder = options.runs / f"{name.replace(':', '-')}-{seed}"
            if (folder / "metrics.json").exists():
                judged(folder)
                measured(folder)
    for seed in [int(part) for part in options.fresh_seeds.split(",") if part]:
        fresh(options.runs, seed)
    if options.sweep:
        sweep(options.runs)
    written = options.output.read_text() if options.output.exists() else ""
    head, mark, _ = written.partition(MARK)
    options.output.write_text(f"{head}{mark}\n\n{tables(options.runs)}\n" if mark else f"{tables(options.runs)}\n")


def datasets() -> dict[str, Dataset]:
    """What models are judged on."""
    reviews = f"labelled:{DATA / 'reviews' / 'customer-reviews.txt'}?skip_empty=true"
    return {
        "sst": exegete.load_data(f"sst:{DATA / 'sst'}", "dev", limit=200, seed=1),
        "movies": exegete.load_data(f"eraser:{DATA / 'movies'}", "test", limit=60, seed=0),
        "reviews": exegete.load_data(reviews, "all", limit=200, seed=0),
    }


def judged(folder: Path) -> None:
    """F1 and plausibility of one model, beside it."""
    if (folder / "judged.json").exists():
        return
    model = exegete.load(folder, device="cpu")
    model.processing_class.model_max_length = 256
    data = datasets()
    figures = {f"f1_{name}": f1(model, rows) for name, rows in data.items()}
    said = explained(model, data["sst"].select(range(80)), layers=True)
    far = explained(model, data["movies"].select(range(20)), FAST)
    said.plausibility.to_parquet(folder / "plausibility_sst.parquet")
    far.plausibility.to_parquet(folder / "plausibility_movies.parquet")
    lengths = {f"{name}.{i}": row for name, rows in said.scores.items() for i, row in enumerate(rows)}
    np.savez(folder / "scores.npz", **lengths)
    (folder / "judged.json").write_text(json.dumps(figures))
    print(folder.name, figures, flush=True)


def measured(folder: Path) -> None:
    """The explanation loss of every guide on dev, whatever the model was trained by."""
    if (folder / "losses.json").exists():
        return
    model = exegete.load(folder, device="cpu")
    rows = list(exegete.load_data(f"sst:{DATA / 'sst'}", "dev", limit=DEV, seed=0))
    found = {}
    for guide in GUIDES:
        objective = ExplanationLoss(guided(guide))
        module, total, size = TrainingModule(model, [objective]).eval(), 0.0, 0.0
        for indices in batches(model, rows):
            batch = model.encode([rows[index] for index in indices])
            with torch.no_grad():
                value = module(batch, Moment(training=False))["terms"][0]
            total, size = total + float(value * objective.size(batch)), size + float(objective.size(batch))
        found[guide] = total / size
    (folder / "losses.json").write_text(json.dumps(found))


@torch.no_grad()
def f1(model: ExplainedModel, rows) -> float:
    """Macro-F1 of the predictions."""
    listed = in_model_labels(model, rows)
    pairs = [
        pair
        for indices in batches(model, listed)
        for pair in zip(
            (listed[i]["label"] for i in indices),
            model.predict(model.encode([listed[i] for i in indices])).tolist(),
            strict=True,
        )
    ]
    return float(f1_score(*zip(*pairs, strict=True), average="macro"))


def fresh(runs: Path, seed: int) -> None:
    """A predictor for every method that chooses, tested on rationales of sentences that neither model saw."""
    support = exegete.load(runs / f"baseline-{seed}", device="cpu")
    sst = f"sst:{DATA / 'sst'}"
    train, dev, test = (
        exegete.load_data(sst, split, limit=limit, seed=0)
        for split, limit in (("train", SENTENCES), ("dev", DEV), ("test", 300))
    )
    for chooser in CHOOSERS:
        folder = runs / f"fresh-{chooser}-{seed}"
        if (folder / "test.json").exists():
            continue
        recipe = RECIPES["fresh"](chooser, 0.2, support=str(runs / f"baseline-{seed}"))
        model = recipe.train(encoder(), train, dev, folder, arguments=ARGUMENTS, max_length=64, seed=seed).model
        value = f1(model, rationales(support, test, chooser, 0.2))
        (folder / "test.json").write_text(json.dumps({"f1": value, "whole": f1(support, test)}))
        print(folder.name, value, flush=True)


def sweep(runs: Path) -> None:
    """Larger weights of the explanation loss, one seed."""
    train = exegete.load_data(f"sst:{DATA / 'sst'}", "train", limit=SENTENCES, seed=0)
    dev = exegete.load_data(f"sst:{DATA / 'sst'}", "dev", limit=DEV, seed=0)
    for guide in ("attention", "rollout"):
        for weight in (10.0, 100.0):
            recipe = RECIPES["er_joint"](guide, weight)
            recipe.train(
                encoder(), train, dev, runs / f"sweep-{guide}-{weight:g}-0", arguments=ARGUMENTS, max_length=64
            )


def tables(runs: Path) -> str:
    """All tables that can be made of what is finished."""
    models = collected(runs)
    parts = [
        ("Classification (macro-F1, %)", classification(models)),
        ("Explanation loss on dev, by guide", explanation_losses(runs, models)),
        ("Plausibility in domain, AUC (%)", spread(models, [f"auc_{name}" for name in TECHNIQUES])),
        ("Plausibility in domain, average precision (%)", spread(models, [f"ap_{name}" for name in TECHNIQUES])),
        ("Plausibility in domain, recall@k (%)", spread(models, [f"recall_{name}" for name in TECHNIQUES])),
        ("Plausibility out of domain (Movies), AUC (%)", spread(models, [f"far_{name}" for name in FAST])),
        ("AUC (%) by layer, in domain", layers(runs)),
        (
            "Agreement of a technique across approaches (Kendall's tau-b); the baseline's row is the floor",
            kendall(runs),
        ),
        ("Agreement between techniques on one model (Kendall's tau-b)", kendall_within(runs)),
        ("What foretells out-of-domain F1 (Spearman's rho over models)", predictors(models)),
        ("Dev cross-entropy against explanation loss as lambda grows (seed 0)", weights(runs)),
        ("FRESH at 20 %, macro-F1 (%) on rationales of 300 test sentences", selected(runs)),
    ]
    return "\n\n".join(f"### {title}\n\n{markdown(table)}" if len(table) else "" for title, table in parts)


def markdown(table: pd.DataFrame) -> str:
    """The table's rows between bars; nothing where there is no number."""
    rows = [list(map(str, table.columns)), ["---"] * len(table.columns)]
    rows += [["" if pd.isna(value) else str(value) for value in row] for row in table.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def collected(runs: Path) -> pd.DataFrame:
    """A row a model."""
    rows = []
    for name in approaches():
        for seed in SEEDS:
            folder = runs / f"{name.replace(':', '-')}-{seed}"
            if (folder / "losses.json").exists():
                rows.append({"approach": name, "seed": seed, **figures(folder)})
    return pd.DataFrame(rows)


def figures(folder: Path) -> dict[str, float]:
    """Everything measured of a model, in percent but for losses."""
    found = {name: 100 * value for name, value in json.loads((folder / "judged.json").read_text()).items()}
    metrics = json.loads((folder / "metrics.json").read_text())
    losses = json.loads((folder / "losses.json").read_text())
    found |= {"cross_entropy": metrics["cross_entropy"]} | {f"loss_{guide}": value for guide, value in losses.items()}
    found["feasible"] = metrics.get("feasible", float("nan"))
    near, far = (pd.read_parquet(folder / f"plausibility_{name}.parquet") for name in ("sst", "movies"))
    for frame, names in (
        (near, {"auc": "auc", "ap": "average_precision", "recall": "recall_at_k"}),
        (far, {"far": "auc"}),
    ):
        own = frame[frame["layer"] == -1]
        for short, column in names.items():
            found |= {f"{short}_{m}": 100 * value for m, value in own.groupby("method")[column].mean().items()}
    return found


def spread(models: pd.DataFrame, columns: list[str], digits: int = 1) -> pd.DataFrame:
    """Mean ± standard deviation over seeds."""
    rows = []
    for name in approaches():
        part = models[models["approach"] == name]
        if not part.empty:
            many = len(part) > 1
            cells = {
                c.split("_", 1)[1]: f"{part[c].mean():.{digits}f}" + (f" ± {part[c].std():.{digits}f}" if many else "")
                for c in columns
            }
            rows.append({"approach": name, "seeds": len(part), **cells})
    return pd.DataFrame(rows)


def classification(models: pd.DataFrame) -> pd.DataFrame:
    """F1 in and out of domain, losses, and how many runs kept the bound."""
    table = spread(models, ["f1_sst", "f1_movies", "f1_reviews"])
    kept = models.groupby("approach")["feasible"].sum(min_count=1)
    table["feasible"] = [
        f"{kept[n]:.0f} of {len(models[models.approach == n])}" if kept[n] == kept[n] else "" for n in table["approach"]
    ]
    return table


def explanation_losses(runs: Path, models: pd.DataFrame) -> pd.DataFrame:
    """Last the lowest that a run on the loss alone reached, which the dev bound is."""
    table = spread(models, [f"loss_{guide}" for guide in GUIDES], digits=4)
    alone = {"approach": "the loss alone", "seeds": 1}
    for guide in GUIDES:
        metrics = json.loads((runs / f"bound-{guide}" / "seed-0" / "metrics.json").read_text())
        alone[guide] = f"{metrics['explanation']:.4f}"
    return pd.concat([table, pd.DataFrame([alone])])


def finished(runs: Path, name: str) -> list[Path]:
    """The judged models of an approach."""
    folders = [runs / f"{name.replace(':', '-')}-{seed}" for seed in SEEDS]
    return [folder for folder in folders if (folder / "losses.json").exists()]


def layers(runs: Path) -> pd.DataFrame:
    """Mean over examples and seeds."""
    rows = []
    for name in approaches():
        frames = [pd.read_parquet(folder / "plausibility_sst.parquet") for folder in finished(runs, name)]
        if frames:
            every = pd.concat(frames)
            for method in ("attention_last", "attention_rollout", "alti"):
                part = every[(every["method"] == method) & (every["layer"] >= 0)]
                means = {
                    f"layer {layer + 1}": round(100 * value, 1)
                    for layer, value in part.groupby("layer")["auc"].mean().items()
                }
                rows.append({"approach": name, "technique": method, **means})
    return pd.DataFrame(rows)


def stored_scores(runs: Path) -> dict[str, list[dict[str, list[np.ndarray]]]]:
    """The scores of each seed's model by approach."""
    found = {}
    for name in approaches():
        models = []
        for folder in finished(runs, name):
            with np.load(folder / "scores.npz") as stored:
                models.append({t: [stored[f"{t}.{i}"] for i in range(80)] for t in TECHNIQUES})
        if models:
            found[name] = models
    return found


def kendall(runs: Path) -> pd.DataFrame:
    """Mean over examples."""
    scores = stored_scores(runs)
    if len(scores.get("baseline", ())) < 2:
        return pd.DataFrame()
    table = across(scores).pivot_table(index="approach", columns="method", values="tau", sort=False)
    return table.round(2)[list(TECHNIQUES)].reset_index()


def kendall_within(runs: Path) -> pd.DataFrame:
    """Mean over examples and seeds."""
    frame = within(stored_scores(runs))
    frame["pair"] = frame["method"] + " / " + frame["other"]
    return frame.pivot_table(index="pair", columns="approach", values="tau", sort=False).round(2).reset_index()


def predictors(models: pd.DataFrame) -> pd.DataFrame:
    """In-domain F1 and plausibility against F1 on each other dataset."""
    names = ["f1_sst", *(f"{short}_{name}" for short in ("auc", "ap", "recall") for name in TECHNIQUES)]
    tables = [foretells(models, f"f1_{target}", names).assign(outcome=f"F1 {target}") for target in OOD]
    far = foretells(models, "f1_movies", ["far_input_x_gradient"]).assign(outcome="F1 movies")
    return pd.concat([*tables, far]).round(2)


def weights(runs: Path) -> pd.DataFrame:
    """λ = 0 is the baseline; the explanation loss alone stands for the largest one there is."""
    rows = []
    for guide in ("attention", "rollout"):
        folders = {"0": runs / "baseline-0", "1": runs / f"er_joint-{guide}-0"}
        folders |= {weight: runs / f"sweep-{guide}-{weight}-0" for weight in ("10", "100")}
        for weight, folder in folders.items():
            if (folder / "metrics.json").exists():
                metrics = json.loads((folder / "metrics.json").read_text())
                loss = metrics["explanation"]
                if weight == "0":
                    loss = json.loads((folder / "losses.json").read_text())[guide]
                figures = {"CE": f"{metrics['cross_entropy']:.3f}", "L_expl": f"{loss:.4f}"}
                rows.append({"guide": guide, "lambda": weight, **figures, "F1": f"{100 * metrics['f1_macro']:.1f}"})
    return pd.DataFrame(rows)


def selected(runs: Path) -> pd.DataFrame:
    """By the method that chose."""
    rows = []
    for chooser in CHOOSERS:
        found = [json.loads(path.read_text()) for path in sorted(runs.glob(f"fresh-{chooser}-*/test.json"))]
        if found:
            values = [100 * each["f1"] for each in found]
            cell = f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")
            rows.append(
                {
                    "chosen by": chooser,
                    "seeds": len(values),
                    "F1": cell,
                    "whole sentences": f"{100 * np.mean([each['whole'] for each in found]):.1f}",
                }
            )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main()
