"""CloudML (later AI Platform Training): scale tiers, config.yaml and gcloud's flags.

`training_input` reads a job with the fields of `messages`; `tiers` and `machines` have the vocabulary; `write` writes
config.yaml. This package imports `parsing` and `writing`. Start with `training_input.py`.
"""

from tfdist.dialects.cloudml import training_input, write
from tfdist.dialects.cloudml.tiers import TIERS
from tfdist.dialects.cloudml.tiers import tier_name as tier_name
from tfdist.dialects.dialect import Dialect, Presets, TextReader, Writer
from tfdist.dialects.writing.unsupported import address_notes

DIALECT = Dialect(
    name=training_input.NAME,
    title="CloudML",
    example="CloudML config.yaml (trainingInput: {scaleTier: STANDARD_1})",
    text=TextReader(
        training_input.parse,
        words=training_input.WORDS,
        marks=training_input.MARKS,
        is_mapping=True,
        presets=Presets("scale tier", tuple(TIERS), tier_name, lambda name: {"scaleTier": name}),
        overrides={name: text for name, (_, text) in training_input.OVERRIDES.items()},
        standalone=frozenset({"tier"}),
    ),
    writer=Writer(write.write, notes=lambda cluster: address_notes(cluster, "CloudML")),
)
