"""What Keras iterates under tfdist's strategies: sources of batches, and the batches that a replica or a worker group gets.

`source.py` defines the interface. There is one implementation for each way in which batches reach the replicas:
`batch_shards.py` (every task reads all batches and each replica takes its shard), `input_feed.py` (the chief reads, and sends
batches to workers), `worker_input.py` (each worker group reads its own data). Batch shards also split a batch among the workers
of a group, therefore both `data_parallel` and `coordinator` import this room. It imports `private_api` only. Start with
`source.py`.
"""
