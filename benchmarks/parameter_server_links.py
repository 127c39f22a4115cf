"""Steps per second of parameter_server on slow links: by hand, with `fit`, and with `fit --compression bf16`.

    sudo python benchmarks/parameter_server_links.py [--rates 1gbit,200mbit] [--seconds 8]

Three nodes with one link each (networks.py): chief and worker 0, worker 1, one ps. The programs are those of
parameter_server.py with dense 1024 (7.45 MB of parameters) and one step per call.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import networks
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("rates", ["1gbit", "200mbit"], "Rates of the links, in the notation of `tc`.")
flags.DEFINE_float("seconds", 8.0, "Seconds that each job trains, after its first 3 seconds.")

PROGRAM = Path(__file__).with_name("parameter_server.py")
NODES = {("chief", 0): 0, ("worker", 0): 0, ("worker", 1): 1, ("ps", 0): 2}
WAYS = {"by hand": ("by hand", {}), "fit": ("fit", {}), "fit, bf16": ("fit", {"synchronization": {"compression": "bf16"}})}
FIRST_PORT = 20000


def measure(network, way, number):
    """Returns the steps per second of one job."""
    program, extension = WAYS[way]
    addresses = {"chief": [], "worker": [], "ps": []}
    for place, ((job, _), node) in enumerate(NODES.items()):
        addresses[job].append(f"{network.address(node)}:{FIRST_PORT + 10 * number + place}")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "rate.json")
        command = [sys.executable, str(PROGRAM), "--run", json.dumps([program, "dense 1024", 1, str(result)])]
        command.append(f"--seconds={FLAGS.seconds}")
        processes = []
        for (job, index), node in NODES.items():
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
    print("| link | way | steps per second | times by hand |")
    print("|---|---|---|---|", flush=True)
    number = 0
    with networks.Network(3) as network:
        for link in FLAGS.rates:
            network.shape(link)
            by_hand = None
            for way in WAYS:
                rate = measure(network, way, number)
                by_hand, number = by_hand or rate, number + 1
                print(f"| {link} | {way} | {rate:.1f} | {rate / by_hand:.2f} |", flush=True)


if __name__ == "__main__":
    app.run(main)
