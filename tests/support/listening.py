"""Programs of tests whose tasks listen at their addresses, or report as a training does, without TensorFlow."""

LISTENS = """
import json, os, pathlib, signal, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]
name = f"{me['type']}-{me['index']}"
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
if me["type"] in config["cluster"]:
    listener.bind(("", int(config["cluster"][me["type"]][me["index"]].rpartition(":")[2])))
    listener.listen()
"""
"""The first lines of a program: its task listens, so that the launcher takes it for started."""

ALL_LISTEN = """
while not os.path.exists("all-listen"): time.sleep(0.02)
"""
"""The next lines of one that waits until the quick launcher knows that all tasks listen."""

REPORTS = """
def report(**progress):
    import json, os, pathlib, time
    read = pathlib.Path("progress-read")
    read.unlink(missing_ok=True)
    path = os.environ["TFDIST_REPORT"] + ".progress"
    pathlib.Path(path + ".part").write_text(json.dumps({"phase": "fit", "epoch": 1, "epochs": 9, **progress}))
    os.replace(path + ".part", path)
    while not read.exists(): time.sleep(0.05)
"""
"""The first lines of one that says how far `fit` is, and then waits until the quick launcher has read it."""
