"""Tasks on other hosts, run there by an agent whose standard input and output lead to the launcher.

Start reading at `remote_tasks.py`, the launcher's side, which starts a child process such as `ssh` for each host (`link.py`)
that runs `agent.py` there. The agent runs the tasks of its host as the back end `local` runs those of this machine, so a host
imports TensorFlow once. `frames.py` is what the two say. Back ends on other hosts differ in the command only.
"""
