"""Weights in the object store: the bytes, their owner, and the file that a subprocess reads."""

from __future__ import annotations

import os

import numpy as np
import pytest
import ray
import torch

from actors.weight_transfer import WeightManifest, publish, staged
from apprentice.errors import WeightSyncError

pytestmark = pytest.mark.ray

WEIGHTS = {
    "a.weight": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
    "b.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4).T,  # not contiguous
    "c.bias": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
    "d.scale": torch.tensor(3.0),  # no dimension
    "e.empty": torch.empty(0, 4),
    "f.index": torch.tensor([7, -1], dtype=torch.int64),
}


def unpack(manifest: WeightManifest) -> dict[str, torch.Tensor]:
    out = {}
    for bucket in manifest.buckets:
        arrays = ray.get(bucket.data, timeout=30)
        for info, array in zip(bucket.tensors, arrays, strict=True):
            dtype = getattr(torch, info.dtype)
            out[info.name] = (
                torch.frombuffer(array.copy(), dtype=dtype).view(info.shape)
                if array.nbytes
                else torch.empty(info.shape, dtype=dtype)
            )
    return out


def test_every_byte_of_every_tensor_arrives(ray_cluster: None) -> None:
    manifest = publish(WEIGHTS.items(), 3, bucket_bytes=100)
    assert (manifest.version, manifest.transport, manifest.delivered) == (3, "object_store", False)
    assert manifest.nbytes == sum(t.nbytes for t in WEIGHTS.values())
    got = unpack(manifest)
    assert list(got) == list(WEIGHTS)
    for name, tensor in WEIGHTS.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].shape == tensor.shape
        assert torch.equal(got[name], tensor)


def test_a_bucket_is_put_when_it_is_full_and_one_byte_makes_one_each(ray_cluster: None) -> None:
    # 60 + 48 bytes fill the first bucket of 100; 4 + 4 + 0 + 16 stay below a second one.
    names = [[t.name for t in b.tensors] for b in publish(WEIGHTS.items(), 0, bucket_bytes=100).buckets]
    assert names == [["a.weight", "b.weight"], ["c.bias", "d.scale", "e.empty", "f.index"]]
    # An empty tensor fills nothing, so it travels with the next.
    assert len(publish(WEIGHTS.items(), 0, bucket_bytes=1).buckets) == 5
    assert publish([], 0).buckets == ()


def test_floats_are_converted_to_the_engines_type_and_nothing_else_is(ray_cluster: None) -> None:
    got = unpack(publish(WEIGHTS.items(), 0, dtype=torch.bfloat16))
    assert torch.equal(got["a.weight"], WEIGHTS["a.weight"].to(torch.bfloat16))
    assert got["f.index"].dtype == torch.int64


def test_publishing_reads_weights_and_leaves_them_alone_afterwards(ray_cluster: None) -> None:
    tensor = torch.ones(4)
    manifest = publish([("w", tensor)], 0)
    tensor.fill_(9.0)
    assert unpack(manifest)["w"].tolist() == [1.0] * 4


def test_a_subprocess_reads_aligned_tensors_from_a_file_that_is_gone_afterwards(ray_cluster: None) -> None:
    (bucket,) = publish(WEIGHTS.items(), 0).buckets
    arrays = ray.get(bucket.data, timeout=30)
    with staged(bucket, arrays, in_process=False) as info:
        mapped = np.fromfile(info["path"], np.uint8)
        for array, offset in zip(arrays, info["offsets"], strict=True):
            assert offset % 64 == 0
            assert np.array_equal(mapped[offset : offset + array.nbytes], array)
        path = info["path"]
        # vLLM's own channel to its process carries plain values only.
        assert all(isinstance(value, list | str) for value in info.values())
    assert not os.path.exists(path)
    with pytest.raises(KeyError), staged(bucket, arrays, in_process=False) as info:
        path = info["path"]
        raise KeyError
    assert not os.path.exists(path)


def test_no_room_to_stage_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch, ray_cluster: None) -> None:
    (bucket,) = publish([("w", torch.ones(4))], 0).buckets
    monkeypatch.setattr("actors.weight_transfer._free_bytes", lambda folder: 0)
    with (
        pytest.raises(WeightSyncError, match=r"no room to stage.*--shm-size"),
        staged(bucket, [], in_process=False),
    ):
        pass
