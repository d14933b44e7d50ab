"""REGEX: the paper's figures."""

from __future__ import annotations

from typing import Any

from expound_papers.studies import regex
from expound_papers.study import Study, register


@register
def regex_fig_3(study: Study) -> None:
    """REGEX, Figure 3: the weight of explanation guidance."""
    setup, norms = regex.Setup(study), {"log_gradient_norms": True}
    values = [0.01, 0.1, 1.0, 3.0] if study.is_small else [0.0001, 0.001, 0.01, 0.1, 1.0]
    runs = [
        setup.train(f"λ4 = {value:f}".rstrip("0").rstrip("."), guidance_weight=value, options=norms) for value in values
    ]
    setup.judge(runs, regex.SIX)
    setup.add_table("table-fig-3", "Faithfulness by λ4: what random attributions (RAND) gain is no explanation's")
    terms = ["cross_entropy", "gradient_penalty", "virtual_adversarial", "explanation_guided"]
    caption = "Norm of the gradient of each weighted term in training"
    study.figure("terms", "history", caption, metrics=[f"{term}_gradient_norm" for term in terms])
    study.figure("fig-3", "sweep", "Faithfulness by λ4", over="parameters.guidance_weight", metrics=[*regex.METRICS])


@register
def regex_fig_4(study: Study) -> None:
    """REGEX, Figure 4: the share of the tokens that is masked."""
    setup = regex.Setup(study)
    values = [0.05, 0.15, 0.2, 0.3] if study.is_small else [0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
    runs = [setup.train(f"K = {value:g}", mask_fraction=value) for value in values]
    where = {"recipe": [each.name for each in runs]} if study.is_small else {}
    # At λ4 = .01 guidance hardly moves a model, whatever is masked.
    for value in (0.05, 0.15, 0.3) if study.is_small else ():
        how: dict[str, Any] = {"guidance_weight": 3.0, "options": {"log_gradient_norms": True}}
        runs.append(setup.train(f"K = {value:g}, λ4 = 3", mask_fraction=value, **how))
    setup.judge(runs, regex.SIX)
    setup.add_table("table-fig-4", "Faithfulness by K: what random attributions (RAND) gain is no explanation's")
    caption, over = "Faithfulness by the mask ratio K", "parameters.mask_fraction"
    study.figure("fig-4", "sweep", caption, over=over, metrics=[*regex.METRICS], where=where)
