"""The metrics of each paper with its parameters, so that tables can be compared with the published ones.

The token metrics of `er` see the scores of special tokens only in studies with `special_tokens`: `Metric.evaluate`
itself sets scores outside content to 0.
"""

from __future__ import annotations

from typing import Any

_AML = {"rounding": "floor"}
# The reference code divides by one more than the number of fractions; published figures include this.
_AML_AOPC = _AML | {"divisor": "fractions_plus_one"}
FLOORED: dict[str, dict[str, Any]] = {
    "comprehensiveness_minus_sufficiency": _AML,
    "aopc_comprehensiveness_minus_sufficiency": _AML_AOPC,
}
"""Further criteria by which AML's code can select a map, in addition to the metrics of its tables."""
_ER = {"rounding": "er", "fractions": (0.01, 0.2, 0.4, 0.6, 0.8, 1.0)}
# Explanation regularization counts special tokens as negatives, which SMaT and IvRA leave out.
_ER_TOKENS = {"unit": "token", "special_tokens": True, "absolute": True}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "ivra": {
        "aopc_comprehensiveness": {"keep_question": True},
        "aopc_sufficiency": {"keep_question": True},
        "consistency": {},
        "important_tokens": {},
        "rationale_auc": {},
    },
    "er": {
        "normalized_comprehensiveness": _ER,
        "normalized_sufficiency": _ER,
        "rationale_auc": _ER_TOKENS,
        "average_precision": _ER_TOKENS,
        "recall_at_k": _ER_TOKENS,
    },
    "aml": {
        "sufficiency": _AML,
        "log_odds": _AML,
        "comprehensiveness": _AML,
        "aopc_sufficiency": _AML_AOPC,
        "aopc_comprehensiveness": _AML_AOPC,
        "token_f1": {"unit": "token", "k": 25},
    },
    "regex": {
        "normalized_comprehensiveness": {"perturbation": "pad"},
        "normalized_sufficiency": {"perturbation": "pad"},
    },
}
