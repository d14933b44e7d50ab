"""Help pages: options in groups, and flags without a type."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

FEWEST_GROUPED = 12
"""Commands with fewer options show them in one list."""
WIDEST_CHOICES = 12
"""Choices with more characters are named in the help text, where they can be wrapped."""
GROUPS = {
    "Model and data": (
        "model", "data", "pair", "split", "train_split", "dev_split", "limit", "text_column", "text_pair_column",
        "label_column", "rationale_column", "task", "template", "labels", "max_length", "allow_incomplete_weights",
        "processing_class",
    ),
    "Generated text": (
        "prompt", "messages", "source", "response", "raw_prompt", "max_new_tokens", "temperature", "attribute_target",
    ),
    "Method": (),
    "Recipe": (),
    "Parts of the recipe": (),
    "Training": (
        "config", "epochs", "learning_rate", "eval_steps", "argument", "masked_share", "head_lr_multiplier",
        "head_dropout", "head_activation", "scalar_mix", "early_stopping_patience", "early_stopping_threshold",
        "log_gradient_norms", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets",
    ),
    "Server": ("api", "host", "port", "name"),
    "Output": (
        "output_dir", "keep_columns", "overwrite", "resume", "html", "json", "dry_run", "quiet", "report_to", "help",
    ),
    "Machine": ("device", "dtype", "batch_size", "workers", "threads", "ray", "rows_per_part", "seed"),
}  # fmt: skip


class GroupedCommand(TyperCommand):
    """A command whose help page shows what belongs together in one panel, and fits a terminal of 80 columns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Line breaks of a docstring are not those of the terminal.
        paragraphs = (self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        self.is_grouped = len(self.params) >= FEWEST_GROUPED
        for option in self.params:
            _prepare_option(option, self.is_grouped)
        titles = [None, *GROUPS]
        self.params.sort(key=lambda option: titles.index(getattr(option, "rich_help_panel", None)))

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help."""
        option = super().get_help_option(ctx)
        if option is not None:
            _prepare_option(option, self.is_grouped)
        return option


def _prepare_option(option: Any, is_grouped: bool) -> None:
    if option.param_type_name != "option":
        return
    # A flag takes no value, and typer would show <bool> beside it.
    if option.is_flag:
        option.metavar = ""
    elif option.metavar is None and (option.min is not None or option.max is not None):
        option.metavar = "N"
    choices = [str(choice) for choice in option.type_descriptor.choices or ()]
    if option.metavar is None and len("|".join(choices)) > WIDEST_CHOICES:
        option.metavar = "NAME"
        option.help = f"{option.help} One of {', '.join(choices)}."
    if is_grouped and option.rich_help_panel is None:
        groups = [title for title, names in GROUPS.items() if option.name in names]
        option.rich_help_panel = groups[0] if groups else "Method"
    # Their second names take a column, which long names of the other options need.
    elif option.rich_help_panel == "Recipe" and option.secondary_opts:
        option.rich_help_panel = "Parts of the recipe"
