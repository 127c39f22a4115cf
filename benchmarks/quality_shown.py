"""The tables and the plot of the results of `quality.py`."""

import statistics

from tfdist.planner.costs import COMPRESSED

BYTES = 4
"""Bytes of a parameter on the wire, as float32."""

UNITS = {"mnist1d": ("test accuracy, %", 2, 1), "text": ("test loss, nats", 3, -1)}
"""The figure of a task, its decimals, and 1 if more is better, else -1."""


def bytes_per_step(result, groups):
    """Returns the bytes that a worker sends and receives per step of its own, on average.

    Hogwild: the push of its progress and the pull of the global parameters, once per period. Synchronous: a ring all-reduce,
    2 (groups - 1) / groups of the parameters' bytes per step.
    """
    size = result["parameters"] * BYTES
    if result["period"]:
        return 2 * size * COMPRESSED[dict(result["options"]).get("compression")] / result["period"]
    return 2 * (groups - 1) / groups * size


def show(results, settings, tasks, plot):
    order = [setting.name for setting in settings]
    for name, task in tasks.items():
        found = {}
        for result in results:
            if result["task"] == name and result["name"] in order:
                found.setdefault(result["name"], []).append(result)
        if found:
            _table(name, task, dict(sorted(found.items(), key=lambda item: order.index(item[0]))))
    _plot(results, settings, tasks, plot)


def _table(name, task, found):
    unit, decimals, sign = UNITS[name]
    # Chosen on the validation split, like every setting here.
    best = max((s for s in found.values() if not s[0]["period"]), key=lambda s: sign * _mean(s, "validation"))
    base = _mean(best, "test")
    print(f"| {name} | learning rate | {unit} | against synchronous | kB per worker and step | s |")
    print("|---|---|---|---|---|---|")
    for seeds in found.values():
        first = seeds[0]
        values = sorted(seed["test"] for seed in seeds)
        mean = statistics.mean(values)
        spread = f" ({values[0]:.{decimals}f} to {values[-1]:.{decimals}f})" if len(values) > 1 else " (one seed)"
        gap = f"{mean - base:+.2f}" if name == "mnist1d" else f"{100 * (mean / base - 1):+.1f} %"
        sent = bytes_per_step(first, task.groups) / 1000
        seconds = statistics.median(seed["curve"][-1][1] for seed in seeds)
        print(
            f"| {_label(first)} | {first['rate']} | {mean:.{decimals}f}{spread} | {'' if seeds is best else gap} | {sent:.1f} "
            f"| {seconds:.0f} |"
        )
    print()


def _mean(seeds, what):
    return statistics.mean(seed[what] for seed in seeds)


def _label(result):
    if not result["period"]:
        return "synchronous"
    options = dict(result["options"])
    outer = options.pop("outer", "nesterov" if options else "defaults")
    rates = "/".join(str(options.pop(key)) for key in ("outer_learning_rate", "outer_momentum") if key in options)
    rest = [f"{key} {value}" for key, value in options.items()]
    return ", ".join([f"period {result['period']}", f"{outer} {rates}".strip(), *rest])


def _plot(results, settings, tasks, file):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tfdist"
    from matplotlib import pyplot

    shown = [name for name in tasks if any(result["task"] == name for result in results)]
    figure, rows = pyplot.subplots(len(shown), 2, figsize=(14, 4.4 * len(shown)), squeeze=False)
    for name, (by_time, by_bytes) in zip(shown, rows, strict=True):
        colors = iter(pyplot.cm.tab20.colors)
        for setting in settings:
            seeds = [result for result in results if result["name"] == setting.name and result["task"] == name]
            if not seeds:
                continue
            each = bytes_per_step(seeds[0], tasks[name].groups) * tasks[name].groups / 1e6
            points = list(zip(*(seed["curve"] for seed in seeds), strict=True))
            values = [statistics.mean(point[2] for point in at) for at in points]
            style = {"label": _label(seeds[0]), "linestyle": "-" if setting.period else "--", "marker": ".", "markersize": 3}
            style["color"] = next(colors)
            by_time.plot([statistics.median(point[1] for point in at) for at in points], values, **style)
            by_bytes.plot([at[0][0] * each for at in points], values, **style)
        by_time.set(xlabel="seconds, on a busy machine", ylabel=UNITS[name][0].replace("test", "validation"), title=name)
        by_bytes.set(xlabel="MB sent by all workers and ps", xscale="log", title=name)
        by_bytes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
        if name == "mnist1d":
            by_time.set_ylim(70, 95)
            by_bytes.set_ylim(70, 95)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
