"""Models whose variables are sharded over the devices of a replica, as `keras.distribution.ModelParallel` describes.

A replica then has several devices, a row of the device mesh. Every device holds its shard of each variable that the layout map
(or the partition of the cluster's description) names, and of its optimizer slots, and computes with it.

TensorFlow's DTensor, which Keras' backend refers to, is not used: in TensorFlow 2.21 a compiled step that assigns a variable
and reads it again computes with the value before the assignment, so Adam's first update is zero, without an error. With slots
that are laid out unlike their weight the update is wrong by orders of magnitude. A first task that leads and places operations
on the devices of the others would need a context of the whole cluster, which TensorFlow's collectives do not have.

Imports `keras_hooks`, `private_api` and `variable_base`. Start with `split_tensor.py`, the value that flows between layers;
then `rules.py`, what Keras' operations do with it; `split_variable.py`; `layouts.py`, which reads `keras.distribution`;
`described.py`, which stands in for it; `worker_mesh.py`, which knows the devices of worker groups.
"""
