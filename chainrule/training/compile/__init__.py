"""torch.compile and CUDA graphs: how a training step is run, chosen by measurement.

    runner.py          eager, compiled, or replayed as a CUDA graph
    trial.py           how long a step takes each way, without an effect on training
    step_graph.py      a step captured as a CUDA graph
    batch_shapes.py    batches padded to a few shapes, so that a few graphs are enough
"""
