"""Programs of tests whose tasks listen at their addresses without TensorFlow."""

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
