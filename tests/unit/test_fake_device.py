"""The fake device shows the faults that only a GPU would, and runs what is right."""

from __future__ import annotations

import pytest
import torch

from river_core.errors import RiverError
from river_core.execution.device import STEPS, Answer, KernelCall, pack, unpack, weight_ids
from river_core.execution.fake_device import FakeDevice

CAPACITY = 8


@pytest.fixture(params=range(3))
def device(request):
    return FakeDevice(seed=request.param)


def real(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def test_a_graph_runs_on_what_its_buffers_hold_then(device):
    x, y = device.static((2,), torch.float32), device.static((2,), torch.float32)
    weight = real([[2.0, 0.0], [1.0, 1.0]])
    graph = device.capture("y", lambda: y.copy_(weight @ x + 1), reads=weight_ids([weight]))
    assert y.tolist() == [0, 0], "a capture runs nothing"
    for values in ([1.0, 2.0], [3.0, 5.0]):
        device.put(x, values)
        device.launch(graph)
        device.drain()
        assert torch.equal(y, weight @ real(values) + 1)


def test_a_position_of_python_is_baked_in(device):
    """What a capture takes from Python stays as it was then; a tensor on the device moves."""
    row, at = device.static((1,), torch.float32), device.static((1,), torch.int64)
    baked, moved = (device.static((CAPACITY,), torch.float32) for _ in range(2))
    position = 2

    def piece():
        baked[position : position + 1] = row
        moved.index_copy_(0, at, row)

    graph = device.capture("write", piece)
    position = 5
    device.put(at, [5])
    device.put(row, [7.0])
    device.launch(graph)
    device.drain()
    assert baked.nonzero().tolist() == [[2]] and moved.nonzero().tolist() == [[5]]


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        (lambda x: x.add_(x[0].item()), "reads a value back"),
        (lambda x: x.add_(1) if x[0] > 0 else None, "reads a value back"),
        (lambda x: x.add_(float(x.sum())), "reads a value back"),
        (lambda x: x[x > 0].sum(), "reads a value back"),
        (lambda x: x.copy_(torch.tensor([1.0, 2.0])), "takes a value of the host"),
    ],
)
def test_a_capture_that_needs_the_host_is_refused(device, piece, why):
    x = device.static((2,), torch.float32)
    with pytest.raises(RiverError, match=why):
        device.capture("piece", lambda: piece(x))
    assert x.tolist() == [0, 0]


def posting(device):
    """A mailbox and a graph that posts 0.75 against the threshold on the device."""
    mailbox = device.mailbox(3)
    step, threshold = device.static((1,), torch.int64), device.static((1,), torch.float32)
    value = device.static((1,), torch.float32)
    value.fill_(0.75)
    graph = device.capture("post", lambda: mailbox.post(1, pack(step, value, threshold)))
    return mailbox, step, threshold, graph


def test_a_word_comes_by_polling_only(device):
    mailbox, step, threshold, graph = posting(device)
    device.put(step, [4])
    device.put(threshold, [0.5])
    device.launch(graph)
    assert unpack(int(mailbox.words[1])) == (0, Answer(False, 0.0)), "read without polling: stale"
    assert device.poll(mailbox, 1, 4, 1.0) == Answer(True, 0.75)
    device.put(threshold, [0.75])
    device.put(step, [5])
    device.launch(graph)
    assert device.poll(mailbox, 1, 5, 1.0) == Answer(False, 0.75), "strictly above"


def test_what_follows_goes_by_the_flag(device):
    mailbox, step, threshold, graph = posting(device)
    ran = device.static((2,), torch.float32)
    stay = device.capture("stay", lambda: ran[:1].add_(1))
    leave = device.capture("leave", lambda: ran[1:].add_(1))
    for number, (limit, expected) in enumerate([(0.8, [1, 0]), (0.7, [1, 1])], start=1):
        device.put(threshold, [limit])
        device.put(step, [number])
        device.launch(graph)
        device.poll(mailbox, 1, number, 1.0, (stay, leave))
        device.drain()
        assert ran.tolist() == expected


def test_a_word_that_nobody_writes_is_a_deadlock(device):
    mailbox, step, _, graph = posting(device)
    with pytest.raises(RiverError, match="deadlock: slot 1 holds step 0, not 1"):
        device.poll(mailbox, 1, 1, 1.0)
    device.put(step, [1])
    device.launch(graph)
    with pytest.raises(RiverError, match="deadlock: slot 1 holds step 1, not 2"):
        device.poll(mailbox, 1, 2, 1.0)


def test_a_dropped_graph_cannot_be_launched(device):
    x, y = device.static((2,), torch.float32), device.static((2,), torch.float32)
    weight, other = real([2.0, 3.0]), real([5.0, 7.0])
    gone = device.capture("gone", lambda: x.copy_(weight * 2), reads=weight_ids([weight]))
    stays = device.capture("stays", lambda: y.copy_(other * 2), reads=weight_ids([other]))
    device.drop(weight_ids([weight]))
    with pytest.raises(RiverError, match="gone was dropped"):
        device.launch(gone)
    device.launch(stays)
    device.drain()
    assert y.tolist() == [10, 14] and weight.tolist() == [2, 3], "the model's own are untouched"


def test_weights_dropped_under_a_launched_graph_are_nan(device):
    y, weight = device.static((2,), torch.float32), real([2.0, 3.0])
    graph = device.capture("y", lambda: y.copy_(weight.flip(0)), reads=weight_ids([weight]))
    device.launch(graph)
    device.drop(weight_ids([weight]))  # without a drain before
    device.drain()
    assert y.isnan().all() and weight.tolist() == [2, 3]


def test_a_weight_that_a_graph_did_not_name_is_found_when_it_goes(device):
    y, weight = device.static((2,), torch.float32), real([2.0, 3.0])
    device.capture("careless", lambda: y.copy_(weight * 2))
    with pytest.raises(RiverError, match="careless reads weights that it did not name"):
        device.drop(weight_ids([weight]))


def test_an_intermediate_is_lost_after_its_graph(device):
    x, kept = device.static((2,), torch.float32), []
    graph = device.capture("leaks", lambda: kept.append(x + 1))
    device.launch(graph)
    device.drain()
    assert kept[0].isnan().all()


def test_a_kernel_reads_what_the_device_holds_when_it_runs(device):
    at, out = device.static((1,), torch.int64), device.static((1,), torch.int64)
    call = KernelCall("twice", lambda: None, lambda: out.fill_(2 * int(at)), [out])
    graph = device.capture("kernel", lambda: device.kernel(call))
    assert out.item() == 0
    device.put(at, [21])
    device.launch(graph)
    device.drain()
    assert out.item() == 42


def test_a_warm_up_is_for_scratch_and_a_capture_leaves_statics(device):
    x, scratch = device.static((1,), torch.float32), device.static((1,), torch.float32)
    device.capture("x", lambda: x.add_(1), warm_up=lambda: scratch.add_(1))
    assert (x.item(), scratch.item()) == (0, 1)


@pytest.mark.parametrize("step", [1, 2, 1 << 30, STEPS])
@pytest.mark.parametrize("value", [0.5, -0.25, 1.0, -1.0, 0.1])
def test_a_word_keeps_step_flag_and_similarity(step, value):
    threshold = real([0.25])
    word = pack(real([step], torch.int64), real([value]), threshold)
    assert word.shape == (1,) and word.dtype == torch.int64
    expected = Answer(value > 0.25, float(real(value)))
    assert unpack(int(word)) == (step, expected)
    assert unpack(int(word) & (1 << 64) - 1) == (step, expected)
