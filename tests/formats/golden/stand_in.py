"""mosaicml-streaming without torchvision: two names that it imports, and that nothing here uses, are stood in for."""

import importlib.machinery
import sys
import types

import transformers  # noqa: F401 (first: it looks for torchvision as well)

if "torchvision" not in sys.modules:
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.datasets"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    sys.modules["torchvision.datasets"].VisionDataset = type("VisionDataset", (), {})
    sys.modules["torchvision.transforms.functional"].to_tensor = None

from streaming import MDSWriter, StreamingDataset  # noqa: F401
from streaming.base.util import clean_stale_shared_memory  # noqa: F401
