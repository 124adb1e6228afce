"""The pipeline in the hands of other libraries: their loaders, trainers and checkpoints."""
