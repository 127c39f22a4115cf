"""The back end `kubernetes`: hands a job to Kubernetes, which runs and supervises the pods.

Start reading at `backend.py`. `manifests.py` makes what is submitted and shown, with the writers of
`tfdist.dialects.kubernetes`; `server.py` talks to the API server through the official client; `state.py` says in plain words
how jobs and pods are doing; `logs.py` reads the output of pods. The client is imported when it is needed.
"""
