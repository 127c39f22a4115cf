"""The combinations of Python, TensorFlow and Keras with which tfdist is tested, and the table of them in BUILD.md."""
