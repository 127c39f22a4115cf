"""Tasks as processes on this machine.

Start reading at `processes.py`. It starts one fork server (`fork_server.py`) below a guard (`guard.py`), which imports
TensorFlow once and forks every task; each task runs `run_program.py`. `ports.py` reserves the ports of the tasks.
`local_servers.py` starts the ps and worker tasks of a plain program or notebook, without the launcher. This room imports the
files of `tfdist.launch` that `tfdist.launch.backends` names.
"""
