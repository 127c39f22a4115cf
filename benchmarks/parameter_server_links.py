"""Steps per second of parameter_server on slow links: by hand, and with `fit`.

    sudo python benchmarks/parameter_server_links.py [--rates 1gbit,200mbit] [--clusters 2+1,3+1,2+2] [--jobs 3]

Each task has a node with a link (networks.py), but the chief is beside worker 0, and in 2+2 each ps is beside a worker. The
programs are those of parameter_server.py with dense 1024 (7.45 MB of parameters) and one step per call. Chance decides the
order of the workers in a job, so there are several. "fit without order" is `fit` whose workers begin as soon as they are free.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import networks
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("rates", ["1gbit", "200mbit"], "Rates of the links, in the notation of `tc`.")
flags.DEFINE_list("clusters", ["2+1", "3+1", "2+2"], "Workers and ps.")
flags.DEFINE_list("ways", [], "Only these ways.")
flags.DEFINE_integer("jobs", 3, "Jobs of each way.")
flags.DEFINE_float("warm", 35.0, "Seconds that each job trains before steps count: `fit` tries orders.")
flags.DEFINE_float("seconds", 8.0, "Seconds that count.")

PROGRAM = Path(__file__).with_name("parameter_server.py")
WAYS = {
    "by hand": ("by hand", {}),
    "fit without order": ("fit without order", {}),
    "fit": ("fit", {}),
    "fit with bf16": ("fit", {"synchronization": {"compression": "bf16"}}),
}
FIRST_PORT = 20000


def nodes_of(workers, ps):
    """Returns the node of each task."""
    nodes = {("chief", 0): 0} | {("worker", index): index for index in range(workers)}
    return nodes | {("ps", index): index + (0 if workers == ps else workers) for index in range(ps)}


def measure(network, nodes, way, number):
    """Returns the steps per second of one job."""
    program, extension = WAYS[way]
    addresses = {"chief": [], "worker": [], "ps": []}
    for place, ((job, _), node) in enumerate(nodes.items()):
        addresses[job].append(f"{network.address(node)}:{FIRST_PORT + 10 * number + place}")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "rate.json")
        command = [sys.executable, str(PROGRAM), "--run", json.dumps([program, "dense 1024", 1, str(result)])]
        command += [f"--seconds={FLAGS.seconds}", f"--warm={FLAGS.warm}"]
        processes = []
        for (job, index), node in nodes.items():
            config = {"cluster": addresses, "task": {"type": job, "index": index}, "tfdist": extension}
            environment = {"TF_CONFIG": json.dumps(config)}
            processes.append(network.start(node, command, Path(folder, f"{job}-{index}.log"), environment))
        try:
            processes[0].wait(200)
            rate = json.loads(result.read_text())
        except (subprocess.TimeoutExpired, OSError):
            print(Path(folder, "chief-0.log").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            network.end(processes)
        return rate


def main(_):
    print("| workers + ps | link | way | steps per second | times by hand | jobs |")
    print("|---|---|---|---|---|---|", flush=True)
    number = 0
    for cluster in FLAGS.clusters:
        nodes = nodes_of(*map(int, cluster.split("+")))
        with networks.Network(1 + max(nodes.values())) as network:
            for link in FLAGS.rates:
                network.shape(link)
                rates = {way: [] for way in FLAGS.ways or WAYS}
                for _ in range(FLAGS.jobs):
                    for way, found in rates.items():
                        found.append(measure(network, nodes, way, number := number + 1))
                by_hand = statistics.median(rates.get("by hand") or [float("nan")])
                for way, found in rates.items():
                    middle, jobs = statistics.median(found), ", ".join(f"{each:.1f}" for each in sorted(found))
                    print(f"| {cluster} | {link} | {way} | {middle:.1f} | {middle / by_hand:.2f} | {jobs} |", flush=True)


if __name__ == "__main__":
    app.run(main)
