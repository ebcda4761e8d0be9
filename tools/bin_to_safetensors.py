#!/usr/bin/env python3
"""Converts the pytorch_model*.bin weights of a Hugging Face model directory to safetensors.

  python3 tools/bin_to_safetensors.py MODEL_DIR [--output DIR] [--force]

Needs torch and safetensors. The weights are read without running code of the file. Each .bin file
becomes one .safetensors file; several get a model.safetensors.index.json. With --output the other
files of the model (config, tokenizer) are copied, so that DIR is a complete model directory.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shutil
import sys
import tempfile
from pathlib import Path

INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"pytorch_model-(\d+)-of-(\d+)\.bin")
LFS = b"version https://git-lfs.github.com/spec/"


class ConversionError(Exception):
    """Something about the input; its text is one line for the user."""


def import_libraries() -> None:
    """What a plain Python does not have. Only after the arguments have been checked."""
    global torch, save_file, SafetensorError
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file


def find_inputs(folder: Path) -> list[Path]:
    if folder.is_file():
        raise ConversionError(f"{folder} is a file; give the model directory that it is in")
    if not folder.exists():
        raise ConversionError(f"{folder} does not exist; give a model directory on this machine")
    if not folder.is_dir():
        raise ConversionError(f"{folder} is not a directory")
    single = folder / "pytorch_model.bin"
    if single.exists():
        return [single]
    shards = {int(m[1]): p for p in folder.iterdir() if (m := SHARD.fullmatch(p.name))}
    counts = {int(SHARD.fullmatch(p.name)[2]) for p in shards.values()}
    if not shards:
        if existing_weights(folder):
            raise ConversionError(f"{folder} has safetensors already, and no pytorch_model.bin")
        raise ConversionError(f"{folder} has neither pytorch_model.bin nor its shards")
    if len(counts) != 1:
        raise ConversionError(f"{folder} mixes shards of several checkpoints")
    missing = sorted(set(range(1, counts.pop() + 1)) ^ shards.keys())
    if missing:
        raise ConversionError(f"{folder}: missing or surplus shards with the numbers {missing}")
    return [shards[number] for number in sorted(shards)]


def check_inputs(inputs: list[Path]) -> None:
    for path in inputs:
        with path.open("rb") as file:
            start = file.read(len(LFS))
        if not start:
            raise ConversionError(f"{path} is empty; download it again")
        if start == LFS:
            raise ConversionError(
                f"{path} is a pointer of git-lfs, not the weights; run git lfs pull in its directory"
            )


def load(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of one file, contiguous, no two of them in the same memory."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Torch's own message advises to load unsafely.
        raise ConversionError(f"{path} is damaged or holds more than tensors") from error
    except Exception as error:  # torch.load raises many other types for damaged files
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConversionError(f"cannot read {path}: {reason}") from error
    if not isinstance(state, dict):
        raise ConversionError(f"{path} holds a {type(state).__name__}, not a dictionary of tensors")

    tensors = {}
    memory = set()
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise ConversionError(f"{path}: {name!r} is a {type(tensor).__name__}, not a tensor")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ConversionError(f"{path}: {name} is sparse or quantized; only dense is supported")
        # safetensors has no aliases: a tied tensor is stored once under each of its names.
        tensor = tensor.detach().contiguous()
        address = tensor.untyped_storage().data_ptr()
        if address in memory:
            tensor = tensor.clone()
        memory.add(address)
        tensors[name] = tensor
    return tensors


def convert(inputs: list[Path], folder: Path) -> None:
    """Writes the safetensors files, and with several inputs the index, into `folder`."""
    weight_map = {}
    total_size = 0
    for number, path in enumerate(inputs, start=1):
        name = "model.safetensors"
        if len(inputs) > 1:
            name = f"model-{number:05}-of-{len(inputs):05}.safetensors"
        tensors = load(path)
        twice = tensors.keys() & weight_map.keys()
        if twice:
            raise ConversionError(f"{path}: {min(twice)} is in another shard, too")
        try:
            save_file(tensors, folder / name, metadata={"format": "pt"})
        except KeyError as error:
            raise ConversionError(f"{path}: safetensors cannot hold the type {error}") from error
        except SafetensorError as error:  # a full disk, among others
            raise ConversionError(f"cannot write {folder / name}: {error}") from error
        weight_map.update(dict.fromkeys(tensors, name))
        total_size += sum(t.numel() * t.element_size() for t in tensors.values())
        print(f"{path.name} -> {name}, {len(tensors)} tensors")
    if len(inputs) > 1:
        index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def existing_weights(folder: Path) -> list[Path]:
    return [p for p in [*folder.glob("model*.safetensors"), folder / INDEX] if p.exists()]


def copy_companions(source: Path, target: Path) -> None:
    for path in source.iterdir():
        if path.name.endswith(".index.json"):
            continue
        if path.suffix in {".json", ".model", ".txt"} and path.is_file():
            shutil.copyfile(path, target / path.name)


def run(model: Path, output: Path, force: bool) -> None:
    inputs = find_inputs(model)
    check_inputs(inputs)
    if output.exists() and not output.is_dir():
        raise ConversionError(f"{output} is a file; --output takes a directory")
    old = existing_weights(output)
    if old and not force:
        raise ConversionError(f"{old[0]} exists; --force replaces it")
    import_libraries()
    output.mkdir(parents=True, exist_ok=True)
    # Nothing gets its final name before everything is written, and the index comes last.
    with tempfile.TemporaryDirectory(prefix=".safetensors-", dir=output) as temporary:
        staged = Path(temporary)
        convert(inputs, staged)
        if not output.samefile(model):
            copy_companions(model, staged)
        for path in old:
            path.unlink()
        for path in sorted(staged.iterdir(), key=lambda p: p.name == INDEX):
            os.replace(path, output / path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL_DIR")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: MODEL_DIR itself")
    parser.add_argument("--force", action="store_true", help="replace existing safetensors files")
    args = parser.parse_args()
    try:
        run(args.model, args.output or args.model, args.force)
    except KeyboardInterrupt:
        sys.exit(130)
    except ImportError as error:
        sys.exit(
            f"error: cannot import {error.name}; this script needs torch and safetensors, in a "
            "virtual environment if pip asks for one: python3 -m pip install torch safetensors numpy"
        )
    except (ConversionError, OSError, MemoryError) as error:
        message = str(error) or "out of memory"
        sys.exit("error: " + " ".join(message.split()))


if __name__ == "__main__":
    main()
