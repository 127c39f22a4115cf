"""CloudML's scale tiers. Source: the page "Scale tiers" of Cloud ML Engine (counts and machines)."""

from tfdist.dialects.cloudml.machines import CLOUD_TPU

TIERS: dict[str, tuple[tuple[str, int, str, int], ...]] = {
    "BASIC": (("chief", 1, "n1-standard-4", 0),),
    "STANDARD_1": (("chief", 1, "n1-highcpu-8", 0), ("worker", 4, "n1-highcpu-8", 0), ("ps", 3, "n1-standard-4", 0)),
    "PREMIUM_1": (("chief", 1, "n1-highcpu-16", 0), ("worker", 19, "n1-highcpu-16", 0), ("ps", 11, "n1-highmem-8", 0)),
    "BASIC_GPU": (("chief", 1, "n1-standard-8+1xNVIDIA_TESLA_K80", 1),),
    "BASIC_TPU": (("chief", 1, CLOUD_TPU, 0),),
    "CUSTOM": (),
}
"""Scale tier -> (job, count, machine type as shown, GPUs of each machine) of each job."""


def tier_name(text: object) -> str | None:
    """Returns the scale tier that `text` names in any spelling (`STANDARD_1`, `standard-1`), or None."""
    name = text.strip().upper().replace("-", "_") if isinstance(text, str) and len(text) < 40 else ""
    return name if name in TIERS else None
