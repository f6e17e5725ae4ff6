"""Tables: sources, encoded rows and partitions.

The package says where tables come from, how their rows are kept encoded, and how they are split.

`load_dataset` is the one entry to a table with its schema; `fedsyn.table.data.partition` is what a partitioner builds
on.
"""

from fedsyn.table.data.datasets import dataset_names, describe
from fedsyn.table.data.encoded import EncodedTable, write_encoded
from fedsyn.table.data.readers import encode_file, encoded_blocks, read_table
from fedsyn.table.data.sources import load_dataset

__all__ = [
    "EncodedTable",
    "dataset_names",
    "describe",
    "encode_file",
    "encoded_blocks",
    "load_dataset",
    "read_table",
    "write_encoded",
]
