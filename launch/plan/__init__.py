"""`tfdist plan`: measures a program for a minute, and says how fast it would train on clusters of other sizes.

`command.py` is the command, `arguments.py` its command line. `probe.py` runs the user's unchanged program in the small
configurations of `configurations.py`, as processes of this machine, and ends each after some seconds. `processor_time.py` reads
what their tasks have used, and `window.py` makes a run of it. What is predicted from that is in `tfdist/planner/`. The room
imports the launcher's back end `local`, and `tfdist.planner`. Start with `probe.py`.
"""
