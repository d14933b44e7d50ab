"""The registry of training methods by their id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exegete.data.registry import Registry

if TYPE_CHECKING:
    from exegete.recipes.base import RecipeFactory

RECIPES: Registry[RecipeFactory] = Registry(
    "recipe",
    "exegete.recipes",
    {
        "baseline": "baseline:baseline",
        "lora": "lora:lora",
        "er_joint": "er_joint:er_joint",
        "er_constrained": "er_constrained:er_constrained",
        "er_bound": "er_bound:er_bound",
        "fresh": "fresh:fresh",
        "roar": "roar:roar",
        "random_labels": "random_labels:random_labels",
        "regex": "regex:regex",
        "smat": "smat:smat",
        "ivra": "ivra:ivra",
        "aml": "aml:aml",
        "at2": "at2:at2",
        "cite": "cite:cite",
        "custom": "custom:custom",
    },
)
