import numpy as np

from chunkwise.data.buffers import LentBuffers


def test_memory_comes_back_when_nobody_holds_it():
    buffers = LentBuffers()
    one = buffers.lend((3, 100), np.float32)
    address = one.ctypes.data
    assert address % 4096 == 0
    view = one[1:][:, ::2]
    del one
    other = buffers.lend((3, 100), np.float32)
    assert other.ctypes.data != address  # a view of a view still looks into the first
    del view
    assert buffers.lend((3, 100), np.float32).ctypes.data == address


def test_only_some_unused_memory_is_kept():
    buffers = LentBuffers(spares=2)
    lent = [buffers.lend((10,), np.uint8) for _ in range(5)]
    del lent
    assert len(buffers._free[(10,), np.dtype(np.uint8)]) == 2
