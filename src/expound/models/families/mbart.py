"""mBART and Pegasus."""

from dataclasses import replace

from expound.models.families.bart import FAMILY as BART

# BART with norms first.
FAMILY = replace(BART, norm_first=True, final_norm="encoder.layer_norm")
