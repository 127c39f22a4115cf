"""Tasks on other machines, started with the user's own `ssh`.

Start reading at `backend.py`. For each host it starts one `ssh` (`link.py`), which runs `agent.py` there. The agent runs the
tasks of its host as the back end `local` runs those of this machine, so a host imports TensorFlow once. `frames.py` is what the
two say.
"""
