"""Tables: where they come from, how their rows are kept encoded, and how they are split.

`load_dataset` is the one entry to a table with its schema; `fedsyn.data.partition` is what a partitioner builds on.
"""

from fedsyn.data.encoded import EncodedTable, open_client_rows, write_encoded
from fedsyn.data.readers import read_table
from fedsyn.data.registry import DatasetEntry, dataset_names, describe
from fedsyn.data.sources import Dataset, FileSource, file_source, load_dataset, load_table
from fedsyn.data.split import train_test_split
from fedsyn.data.stream import encode_file, encoded_blocks
from fedsyn.data.synthfs import SynthFSOptions, synthfs, synthfs_schema

__all__ = [
    "Dataset",
    "DatasetEntry",
    "EncodedTable",
    "FileSource",
    "SynthFSOptions",
    "dataset_names",
    "describe",
    "encode_file",
    "encoded_blocks",
    "file_source",
    "load_dataset",
    "load_table",
    "open_client_rows",
    "read_table",
    "synthfs",
    "synthfs_schema",
    "train_test_split",
    "write_encoded",
]
