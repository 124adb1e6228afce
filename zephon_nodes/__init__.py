"""Elastic, resumable data loading for foundation models, as torchdata nodes. See the README for a first program."""

from zephon_nodes.accumulator import Accumulator, Place
from zephon_nodes.dataset import Dataset
from zephon_nodes.distributed import gather_state
from zephon_nodes.drops import DropReport
from zephon_nodes.errors import ClosedError, ConfigError, ReadError, RowError, StateError, WorkerError, ZephonError
from zephon_nodes.explore.show import show
from zephon_nodes.explore.states import diff, inspect_state
from zephon_nodes.formats import register_format
from zephon_nodes.global_batch import GlobalBatchPlan, GlobalBatchSetting, global_batch_plan
from zephon_nodes.index_command import write_index
from zephon_nodes.integrations.stateful_dataloader import LaneDataset, as_dataset, lane_state
from zephon_nodes.loader import Loader
from zephon_nodes.microbatch import Microbatch, Origin
from zephon_nodes.node import Node
from zephon_nodes.ops.batch import Batch
from zephon_nodes.ops.decode_text import DecodeText
from zephon_nodes.ops.ensure_mixture import EnsureMixture
from zephon_nodes.ops.fill_in_the_middle import FillInTheMiddle
from zephon_nodes.ops.filter import Filter
from zephon_nodes.ops.flat_map import FlatMap
from zephon_nodes.ops.group_by_length import GroupByLength
from zephon_nodes.ops.map import Map
from zephon_nodes.ops.map_batch import MapBatch
from zephon_nodes.ops.map_group import MapGroup
from zephon_nodes.ops.pack_flat import PackFlat
from zephon_nodes.ops.pack_sequences import PackSequences
from zephon_nodes.ops.read import Read
from zephon_nodes.ops.shuffle import Shuffle
from zephon_nodes.ops.stateful_transform import Emit, StatefulTransform
from zephon_nodes.ops.switch import Switch
from zephon_nodes.ops.take import Take
from zephon_nodes.ops.tokenize import Tokenize
from zephon_nodes.ops.tokenize_chat import TokenizeChat
from zephon_nodes.options import Options
from zephon_nodes.pipeline import Pipeline
from zephon_nodes.retries import Retries
from zephon_nodes.shard_cache import ShardCache
from zephon_nodes.skipping import skip_spans
from zephon_nodes.state import merge_states
from zephon_nodes.store_counters import StoreReport, store_report
from zephon_nodes.stream import Pointer
from zephon_nodes.work.base import WorkSource, pointer
from zephon_nodes.work.combined import Concat, Mix
from zephon_nodes.work.mixture_spec import MixtureSpec
from zephon_nodes.work.node_source import from_node
from zephon_nodes.work.phases import Phases
from zephon_nodes.work.static_mixture import StaticMixtureWorkSource
from zephon_nodes.work.token_estimation import TokenEstimation

__all__ = [
    "Accumulator",
    "Batch",
    "ClosedError",
    "Concat",
    "ConfigError",
    "Dataset",
    "DecodeText",
    "DropReport",
    "Emit",
    "EnsureMixture",
    "FillInTheMiddle",
    "Filter",
    "FlatMap",
    "GlobalBatchPlan",
    "GlobalBatchSetting",
    "GroupByLength",
    "LaneDataset",
    "Loader",
    "Map",
    "MapBatch",
    "MapGroup",
    "Microbatch",
    "Mix",
    "MixtureSpec",
    "Node",
    "Options",
    "Origin",
    "PackFlat",
    "PackSequences",
    "Phases",
    "Pipeline",
    "Place",
    "Pointer",
    "Read",
    "ReadError",
    "Retries",
    "RowError",
    "ShardCache",
    "Shuffle",
    "StateError",
    "StatefulTransform",
    "StaticMixtureWorkSource",
    "StoreReport",
    "Switch",
    "Take",
    "TokenEstimation",
    "Tokenize",
    "TokenizeChat",
    "WorkSource",
    "WorkerError",
    "ZephonError",
    "as_dataset",
    "diff",
    "from_node",
    "gather_state",
    "global_batch_plan",
    "inspect_state",
    "lane_state",
    "merge_states",
    "pointer",
    "register_format",
    "show",
    "skip_spans",
    "store_report",
    "write_index",
]
