"""The back end `ray`: Ray chooses the nodes, and an actor for each task runs the agent there.

Start reading at `backend.py`. `placement.py` asks Ray for room, `actor.py` is what runs on the nodes, and `actor_process.py`
makes an actor look like the child process that `agents/link.py` talks to. Ray is imported when a job starts.
"""
