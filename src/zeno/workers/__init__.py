"""Where gradients come from: the worker, the cluster protocol, clusters in this process and on Ray, momentum."""
